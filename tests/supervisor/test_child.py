"""A process of the broker: one that cannot be started, and one that is to stop when it has hardly begun."""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shmq.daemon.__main__ import _CHILDREN
from shmq.daemon.child import Child
from shmq.errors import UsageError
from shmq.options.broker import Options
from shmq.shm.instance import Instance
from shmq.shm.place import prepare_runtime
from shmq.shm.segment import unlink_segments

Serve = Callable[..., Any]


def test_an_interpreter_that_cannot_be_executed_is_named_and_nothing_stays_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interpreter = tmp_path / "python3"
    interpreter.touch(0o600)
    monkeypatch.setattr(sys, "executable", str(interpreter))
    ends = os.pipe()
    before = set(os.listdir("/proc/self/fd"))
    with pytest.raises(UsageError, match=f"interpreter {interpreter} cannot be executed for the keeper: Permission"):
        Child("keeper", Options(), alive_descriptor=ends[0], lock_descriptors=(ends[1],))
    assert set(os.listdir("/proc/self/fd")) <= before
    for end in ends:
        os.close(end)


def test_a_child_that_has_hardly_begun_stops_in_order(tmp_path: Path) -> None:
    alive = os.pipe()
    places = {"runtime_dir": str(tmp_path / "run"), "store": str(tmp_path / "store")}
    options = Options(broker_name="early", file_bytes=256 << 10, **places)
    prepare_runtime(options.place, mode=0o700, gid=-1)
    child = Child("keeper", options, alive_descriptor=alive[0], lock_descriptors=())
    child.ask_to_stop()
    assert child.wait(60.0) == 0
    assert child.hear() and "ready" in child.message
    unlink_segments(Instance.from_object(child.message["ready"]["instance"]))
    child.close()
    for end in alive:
        os.close(end)


def test_no_child_is_left_with_a_stop_that_cannot_reach_it(serve: Serve) -> None:
    """Each begins with SIGTERM blocked, so that none comes before it can stop in order."""
    addresses = {
        "listen": "127.0.0.1:0",
        "nameserver_listen": "127.0.0.1:0",
        "metrics": "127.0.0.1:0",
        "ha_listen": "127.0.0.1:0",
    }
    served = serve(tcp=True, bridges=2, **addresses)
    children = {role: mark for role, mark in served.instance.processes.items() if role != "supervisor"}
    assert {role.partition("-")[0] for role in children} == set(_CHILDREN), "a new child is missing here"
    blocked = {role: blocked_signals(mark.pid) for role, mark in children.items()}
    assert not {role for role, mask in blocked.items() if mask >> (signal.SIGTERM - 1) & 1}, blocked


def blocked_signals(pid: int) -> int:
    """The mask of a process's main thread."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1], 16) for line in lines if line.startswith("SigBlk:"))
