"""A spare waits with its modules imported, begins when it is taken, and ends with its supervisor or without a word."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from shmq.daemon.child import Child
from shmq.daemon.spares import WANTED_SECONDS, Spares
from shmq.errors import UsageError
from shmq.options.broker import Options
from shmq.shm.place import prepare_runtime

PATIENCE = 60.0


class Started:
    """The spares of one supervisor, and every child that they started."""

    def __init__(self, options: Options) -> None:
        self.children: list[Child] = []
        self._options = options
        self.alive = os.pipe()
        self.spares = Spares(["bridge"], self._start)

    def _start(self, role: str) -> Child:
        child = Child(role, self._options, alive_descriptor=self.alive[0], lock_descriptors=(), waits=True)
        self.children.append(child)
        return child

    def have(self, role: str = "bridge") -> None:
        self.spares.want(role, 0.0)
        assert self.spares.turn(WANTED_SECONDS) == []


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Started]:
    places = {"runtime_dir": str(tmp_path / "run"), "store": str(tmp_path / "store")}
    options = Options(broker_name="spare", **places)
    prepare_runtime(options.place, mode=0o700, gid=-1)
    made = Started(options)
    yield made
    made.spares.close()
    for child in made.children:
        with contextlib.suppress(ProcessLookupError):
            child.kill()
    for end in made.alive:
        os.close(end)


def test_a_spare_is_started_a_while_after_it_is_wanted_and_once(started: Started) -> None:
    started.spares.want("bridge", 10.0)
    assert started.spares.turn(10.0) == [10.0 + WANTED_SECONDS]
    assert not started.children
    assert started.spares.turn(10.0 + WANTED_SECONDS) == []
    started.have()
    assert len(started.children) == 1


def test_what_is_no_bridge_has_no_spare(started: Started) -> None:
    started.have("keeper")
    assert not started.children and started.spares.take("keeper") is None


def test_a_spare_that_is_taken_begins_its_work(started: Started) -> None:
    started.have()
    child = started.spares.take("bridge")
    assert child is not None and started.spares.take("bridge") is None
    assert child.wait(PATIENCE)
    assert child.hear() and "error" in child.message, "there are no segments to serve"
    child.close()


def test_a_spare_that_has_died_is_not_taken(started: Started) -> None:
    started.have()
    [child] = started.children
    child.kill()
    child.wait(PATIENCE)
    assert started.spares.take("bridge") is None
    started.have()
    assert len(started.children) == 2


def test_a_spare_that_dies_as_it_is_taken_is_not_taken(started: Started, monkeypatch: pytest.MonkeyPatch) -> None:
    started.have()
    [child] = started.children
    child.kill()
    child.wait(PATIENCE)
    monkeypatch.setattr(child, "wait", lambda timeout: None)  # a moment before
    assert started.spares.take("bridge") is None


def test_a_spare_ends_by_itself_when_its_supervisor_is_gone(started: Started) -> None:
    started.have()
    [child] = started.children
    os.close(child._go)  # as the kernel does
    child._go = -1
    assert child.wait(PATIENCE) == 0
    assert child.hear() and child.message == {}


def test_a_spare_that_cannot_be_started_is_tried_again_and_harms_nothing() -> None:
    def start(role: str) -> Child:
        raise UsageError("no more processes")

    spares = Spares(["bridge"], start)
    spares.want("bridge", 0.0)
    [again] = spares.turn(WANTED_SECONDS)
    assert again > WANTED_SECONDS and spares.take("bridge") is None


def test_no_spare_is_left_when_the_broker_stops(started: Started) -> None:
    started.have()
    started.spares.close()
    assert started.children[0].wait(PATIENCE) == -signal.SIGKILL
