"""What a stress run has beside it: processes that compute, one that writes and syncs, one that holds keepers.

A keeper is held by ptrace, not by SIGSTOP: tests stop keepers themselves, and SIGCONT would end that as well. A process
that is held can be stopped and killed, and it goes on when the one that holds it ends.
"""

import contextlib
import ctypes
import multiprocessing
import os
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Final

import psutil

from tests.interop.peers.process import die_with_parent

BUSY_PROCESSES: Final = 4
HELD_SECONDS: Final = 0.8
_SYNCED_BYTES: Final = 4 << 20

_PTRACE_DETACH, _PTRACE_SEIZE, _PTRACE_INTERRUPT = 17, 0x4206, 0x4207  # <sys/ptrace.h>
_WALL: Final = 0x40000000  # <sys/wait.h>: waits for threads as well


@contextlib.contextmanager
def held(pid: int) -> Iterator[bool]:
    """Keep every thread of a process from its work for the length of a with block; yield whether it could be.

    It cannot be if the process has ended, or is traced by another one. If it is killed meanwhile, its parent learns
    that afterwards. It must not be a child of this process, which would have its exit status here.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = (ctypes.c_long, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
    libc.ptrace.restype = ctypes.c_long
    threads = []
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for thread in map(int, os.listdir(f"/proc/{pid}/task")):
            if libc.ptrace(_PTRACE_SEIZE, thread, None, None) == 0:
                threads.append(thread)
                libc.ptrace(_PTRACE_INTERRUPT, thread, None, None)
                os.waitpid(thread, _WALL)
    try:
        yield bool(threads)
    finally:
        for thread in reversed(threads):  # the end of the first one is reported after those of the others
            if libc.ptrace(_PTRACE_DETACH, thread, None, None) != 0:  # it was killed, and the kernel waits for our look
                os.waitpid(thread, _WALL)


def keepers_of(run_pid: int) -> list[int]:
    """The keepers that a run has started, or that are started for it, and live now."""
    found = []
    for process in psutil.Process(run_pid).children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if process.cmdline()[3:5] == ["shmq.daemon", "keeper"]:
                found.append(process.pid)
    return found


def compute() -> None:
    """Have one processor's time, without end."""
    while True:
        pass


def write_and_sync() -> None:
    """Have the disk write, without end."""
    with tempfile.TemporaryFile() as file:
        while True:
            file.seek(0)
            file.write(bytes(_SYNCED_BYTES))
            file.flush()
            os.fsync(file.fileno())


def hold_keepers(run_pid: int, seed: int) -> None:
    """Hold one keeper of the run after another, without end."""
    chance = random.Random(seed)
    while True:
        time.sleep(chance.uniform(0.05, 0.3))  # not a wait: the work of the keepers
        if keepers := keepers_of(run_pid):
            with held(chance.choice(keepers)):
                time.sleep(chance.uniform(0.05, HELD_SECONDS))  # not a wait: what they have no time for


def _until_the_run_ends(work: Callable[..., None], arguments: tuple[int, ...]) -> None:
    die_with_parent()
    work(*arguments)


@contextlib.contextmanager
def disturbed(run_pid: int, seed: int) -> Iterator[None]:
    """Have this machine without time, its disk busy and the keepers of a run late, for the length of a with block."""
    works: list[tuple[Callable[..., None], tuple[int, ...]]] = [(compute, ())] * BUSY_PROCESSES
    works += [(write_and_sync, ()), (hold_keepers, (run_pid, seed))]
    forking = multiprocessing.get_context("fork")
    processes = [forking.Process(target=_until_the_run_ends, args=work, daemon=True) for work in works]
    for process in processes:
        process.start()
    try:
        yield
        ended = [process.name for process in processes if not process.is_alive()]
        assert not ended, f"the run was not disturbed to its end: {ended}"
    finally:
        for process in processes:
            process.kill()
            process.join()
