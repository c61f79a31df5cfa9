"""A process of the broker that cannot be started."""

import os
import sys
from pathlib import Path

import pytest

from shmq.daemon.child import Child
from shmq.errors import UsageError
from shmq.options.broker import Options


def test_an_interpreter_that_cannot_be_executed_is_named_and_nothing_stays_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interpreter = tmp_path / "python3"
    interpreter.touch(0o600)
    monkeypatch.setattr(sys, "executable", str(interpreter))
    ends = os.pipe()
    before = os.listdir("/proc/self/fd")
    with pytest.raises(UsageError, match=f"interpreter {interpreter} cannot be executed for the keeper: Permission"):
        Child("keeper", Options(), alive_descriptor=ends[0], lock_descriptors=(ends[1],))
    assert os.listdir("/proc/self/fd") == before
    for end in ends:
        os.close(end)
