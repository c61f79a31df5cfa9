"""The semaphore a client slot sleeps on: made when the slot is handed out, at zero, with the right owner and mode.

Writers and other readers post to it (bindings/core/log/wake.c), and the slot's owner waits on it (sleep.c). A semaphore
is never removed by itself: writers keep it open, and a post to a removed one would wake no reader. It goes with the
segments.

Invariants:
 1. After `prepare_semaphore` the semaphore exists, is ours, has exactly the wanted mode and the value 0.
 2. A name that another user has taken is refused, never used.
"""

import os
import stat
from pathlib import Path

import posix_ipc  # type: ignore[import-untyped,import-not-found,unused-ignore]

from shmq.errors import SegmentError

SEMAPHORE_DIRECTORY = Path("/dev/shm")  # where Linux keeps named semaphores, as sem.<name>
_DRAIN_MAX = 1 << 16  # wake-ups a slot can have missed; more means that another process posts at will


def prepare_semaphore(name: str, *, mode: int, gid: int) -> None:
    """Make sure that the semaphore `name` exists and stands at zero.

    Args:
        name: begins with a slash, as POSIX wants it.
        gid: its group, -1 to leave it.

    Raises:
        SegmentError: the name is taken by another user, or the system refuses.
    """
    path = SEMAPHORE_DIRECTORY / f"sem.{name[1:]}"
    try:
        try:
            semaphore = posix_ipc.Semaphore(name, posix_ipc.O_CREX, mode=0o600, initial_value=0)
            # Afterwards, because the umask would have its say in the mode given at creation.
            os.chown(path, -1, gid, follow_symlinks=False)
            os.chmod(path, mode)
        except posix_ipc.ExistentialError:
            _refuse_foreign(path, mode)
            semaphore = posix_ipc.Semaphore(name)
            _drain(semaphore, path)
        semaphore.close()
    except (posix_ipc.Error, OSError, ValueError) as error:
        raise SegmentError(f"the semaphore {path} could not be made: {error}", hint=f"ls -l {path}") from error


def _refuse_foreign(path: Path, mode: int) -> None:
    status = os.lstat(path)
    if (
        not stat.S_ISREG(status.st_mode)
        or status.st_uid != os.geteuid()
        or status.st_nlink != 1
        or stat.S_IMODE(status.st_mode) != mode
    ):
        raise SegmentError(
            f"{path} belongs to uid {status.st_uid} with mode {stat.S_IMODE(status.st_mode):04o}; "
            f"uid {os.geteuid()} with mode {mode:04o} was expected",
            hint=f"remove {path} if no broker of yours uses it",
        )


def _drain(semaphore: posix_ipc.Semaphore, path: Path) -> None:
    """Take away posts meant for an earlier holder of the slot."""
    for _ in range(_DRAIN_MAX):
        try:
            semaphore.acquire(0)
        except posix_ipc.BusyError:
            return
    raise SegmentError(f"{path} was posted more than {_DRAIN_MAX} times")
