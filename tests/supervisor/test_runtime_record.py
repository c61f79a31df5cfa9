"""instance.json is written again where it is gone, and what hinders that is said once."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shmq.daemon.runtime_files import LOOK_SECONDS, RuntimeFiles
from shmq.shm.instance import Instance, read_instance, segment_names
from shmq.shm.place import Place

INSTANCE = Instance(
    broker_name="recorded",
    generation=1,
    kind="posix",
    segments=segment_names("recorded", 1),
    segment_bytes=(1, 1, 1),
    presence_key=1,
    store_path="/srv/store",
    uid=0,
    mode=0o600,
    boot_id="",
    pid_namespace=0,
)


class Kept:
    """A record on a clock that stands, and what it logs."""

    def __init__(self, place: Place) -> None:
        self.path = place.instance_path
        self.events: list[str] = []
        self.record = RuntimeFiles(place, self._log)  # type: ignore[arg-type]
        self.now = 100.0

    def _log(self, event: str, **values: Any) -> None:
        self.events.append(event.removeprefix("instance."))

    def look(self, times: int = 1) -> list[str]:
        """What was logged while so many looks were due."""
        self.events.clear()
        for _ in range(times):
            assert self.record.look(self.now, INSTANCE) == self.now + LOOK_SECONDS
            assert self.record.look(self.now + LOOK_SECONDS / 2, INSTANCE) == self.now + LOOK_SECONDS
            self.now += LOOK_SECONDS
        return list(self.events)


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Kept]:
    (tmp_path / "run").mkdir()
    kept = Kept(Place("recorded", tmp_path / "run"))
    assert kept.record.write(INSTANCE) is None and not kept.events
    yield kept


def test_what_is_there_is_left_alone(kept: Kept) -> None:
    before = kept.path.stat().st_ino
    assert kept.look(3) == []
    assert kept.path.stat().st_ino == before
    kept.path.write_text("{")  # another program's: it is written again when a process starts
    assert kept.look(3) == []


def test_it_is_written_again_where_it_is_gone(kept: Kept) -> None:
    for _ in range(2):
        kept.path.unlink()
        assert kept.look(3) == ["written_again"]
        assert read_instance(kept.path) == INSTANCE


def test_where_it_cannot_be_written_that_is_said_once_for_each_time(kept: Kept) -> None:
    moved = kept.path.parent.with_name("moved")
    for _ in range(2):
        kept.path.unlink()
        kept.path.parent.rename(moved)
        assert kept.look(5) == ["not_written"]
        assert kept.record.write(INSTANCE) is not None
        assert kept.look(5) == []
        moved.rename(kept.path.parent)
        assert kept.look(5) == ["written_again"]


def test_of_a_process_that_has_ended_nothing_is_written_again(kept: Kept) -> None:
    path = kept.path.with_name("tcp.json")
    path.write_text('{"broker": "127.0.0.1:10911"}')
    kept.record.learn("bridge")
    path.unlink()
    assert kept.look(2) == ["addresses.written_again"]
    assert path.read_text() == '{"broker": "127.0.0.1:10911"}'
    kept.record.forget("bridge")
    path.unlink()
    assert kept.look(2) == [] and not path.exists()


def test_a_process_that_listens_nowhere_has_no_file(kept: Kept) -> None:
    kept.record.learn("bridge")
    kept.record.learn("keeper")
    assert kept.look(2) == []
