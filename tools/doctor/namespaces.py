"""Checks of namespaces: whether broker, clients and this shell see the same pids, semaphores and users."""

from __future__ import annotations

import os
from collections.abc import Iterator

from shmq.figures.verdict import Finding
from shmq.tools.doctor.case import Case
from shmq.tools.doctor.finding import ok, warn

KINDS = ("ipc", "pid", "user")
_FIX = {
    "ipc": "start it in the broker's: docker run --ipc=container:<broker> (compose: ipc: service:<broker>)",
    "pid": "start it in the broker's: docker run --pid=container:<broker>; or connect over TCP",
    "user": "map the broker's uid to the same uid inside, or connect over TCP",
}


def check_namespaces(case: Case) -> Iterator[Finding]:
    """IPC, PID and user namespaces of all processes of the broker and its clients, compared."""
    if not case.own_processes:
        yield ok("machine.namespaces", "no broker runs whose namespaces could differ", **namespaces_of(os.getpid()))
        return
    reference = case.own_processes[0]
    expected = namespaces_of(reference.pid)
    others = [("this shell", os.getpid()), *((client.name or "client", client.pid) for client in case.clients)]
    unseen, differing = 0, False
    for name, pid in others:
        found = namespaces_of(pid)
        unseen += not found
        for kind in KINDS:
            if kind in found and kind in expected and found[kind] != expected[kind]:
                differing = True
                text = f"{name} (pid {pid}) lives in another {kind.upper()} namespace than the broker"
                yield warn("machine.namespaces", text, _FIX[kind], kind=kind, pid=pid, ours=found[kind])
    if not differing:
        seen = len(others) - unseen
        note = f", {unseen} could not be looked into" if unseen else ""
        text = f"broker and {seen} other process{'es' * (seen != 1)} share IPC, PID and user namespaces{note}"
        yield ok("machine.namespaces", text, **expected)


def namespaces_of(pid: int) -> dict[str, int]:
    """Return the inodes of a process' namespaces; {} when they are not ours to see."""
    found = {}
    for kind in KINDS:
        try:
            found[kind] = os.stat(f"/proc/{pid}/ns/{kind}").st_ino
        except OSError:
            continue
    return found
