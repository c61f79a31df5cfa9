"""Memory in /dev/shm is removed only when nobody lives who uses it, and no start of a broker would go on from it."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from shmq.shm.holders import StillHeld
from shmq.shm.instance import SEGMENT_PARTS, write_instance
from shmq.shm.leftovers import Leftover, find_leftovers, remove_leftover
from shmq.shm.liveness import ProcessMark, own_mark
from shmq.shm.place import Place
from shmq.shm.presence import presence_count, remove_presence
from shmq.shm.sysv_table import sysv_segments, sysv_semaphore_keys
from tests.shm.private_memory import private_memory
from tests.shm.test_sweep import VIEWER, Broker, successor_of


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    with private_memory():
        yield


@pytest.fixture
def place(tmp_path: Path, broker_name: str) -> Place:
    place = Place(broker_name, tmp_path / "run" / broker_name)
    place.runtime_dir.mkdir(parents=True)
    return place


def only(place: Place) -> Leftover:
    [found] = [entry for entry in find_leftovers(place) if entry.broker_name == place.broker_name]
    return found


def test_what_a_dead_broker_left_is_dead_and_goes(place: Place) -> None:
    broker = Broker(place.broker_name, "posix")
    write_instance(place.instance_path, broker.instance, mode=0o600, gid=-1)
    assert only(place).state == "living"
    with pytest.raises(StillHeld):
        remove_leftover(place, only(place))
    names = broker.names()
    broker.kill()
    found = only(place)
    assert (found.state, found.holders, sorted(found.names)) == ("dead", (), names)
    assert found.size_bytes >= sum(broker.instance.segment_bytes[::2])
    assert sorted(remove_leftover(place, found)) == names
    assert broker.names() == [] and presence_count(broker.instance) == 0
    assert remove_leftover(place, found) == []


def test_what_a_living_process_maps_stays_although_nobody_is_recorded_or_counted(place: Place, tmp_path: Path) -> None:
    (tmp_path / "store" / "commitlog").mkdir(parents=True)
    broker = Broker(place.broker_name, "posix", str(tmp_path / "store"))
    # A successor, which only who looks from here can see: another broker of this host would wait for its return.
    write_instance(place.instance_path, successor_of(broker.instance), mode=0o600, gid=-1)
    text = broker.instance.to_json()
    with subprocess.Popen(
        [sys.executable, "-c", VIEWER, text], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as viewer:
        assert viewer.stdout and viewer.stdout.readline() == b"mapped\n"
        dead = only(place)
        broker.kill()
        found = only(place)
        assert (found.state, [mark.pid for mark in found.holders]) == ("mapped", [viewer.pid])
        for asked in (found, dead._replace(state="dead")):  # what was believed before does not count
            with pytest.raises(StillHeld):
                remove_leftover(place, asked)
        assert len(broker.names()) == 4
        viewer.kill()
    assert only(place).state == "dead"
    remove_leftover(place, only(place))


def test_the_sysv_segments_of_a_dead_broker_are_found_by_what_it_recorded_and_go(place: Place) -> None:
    broker = Broker(place.broker_name, "sysv")
    write_instance(place.instance_path, broker.instance, mode=0o600, gid=-1)
    identifiers = {int(identifier) for identifier in broker.instance.segments}
    assert only(place).state == "living"
    broker.kill()
    found = only(place)
    assert (found.state, {segment.identifier for segment in found.sysv.values()}) == ("dead", identifiers)
    assert [found.sysv[part].size_bytes for part in SEGMENT_PARTS] == list(broker.instance.segment_bytes)
    with subprocess.Popen(
        [sys.executable, "-c", VIEWER, broker.instance.to_json()], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as viewer:
        assert viewer.stdout and viewer.stdout.readline() == b"mapped\n"
        assert only(place).state == "mapped"
        with pytest.raises(StillHeld):
            remove_leftover(place, found)
        assert identifiers <= sysv_segments().keys()
        viewer.kill()
    assert {f"sysv:{identifier}" for identifier in identifiers} <= set(remove_leftover(place, found))
    assert not identifiers & sysv_segments().keys() and broker.instance.presence_key not in sysv_semaphore_keys()


def test_an_identifier_that_the_kernel_has_given_to_somebody_else_is_not_the_dead_brokers(place: Place) -> None:
    broker = Broker(place.broker_name, "sysv")
    sizes = tuple(size + 4096 for size in broker.instance.segment_bytes)
    write_instance(place.instance_path, broker.instance._replace(segment_bytes=sizes), mode=0o600, gid=-1)
    broker.kill()
    assert only(place).sysv == {}
    write_instance(place.instance_path, broker.instance, mode=0o600, gid=-1)
    assert len(only(place).sysv) == 3
    remove_leftover(place, only(place))


def test_what_lies_beside_sysv_segments_is_judged_only_where_these_are_recorded(place: Place) -> None:
    """Else a broker of another runtime directory would take the presence of segments that it cannot see."""
    broker = Broker(place.broker_name, "sysv")
    broker.kill()
    assert (only(place).state, only(place).segments) == ("unjudged", ())
    write_instance(place.instance_path, broker.instance, mode=0o600, gid=-1)
    assert only(place).state == "dead"
    remove_leftover(place, only(place))


def test_a_presence_semaphore_whose_segments_somebody_removed_is_found_and_goes(place: Place) -> None:
    broker = Broker(place.broker_name, "posix")
    write_instance(place.instance_path, broker.instance, mode=0o600, gid=-1)
    for path in only(place).paths:
        path.unlink()
    assert only(place).state == "living"
    broker.kill()
    found = only(place)
    assert (found.state, found.names, found.size_bytes) == ("dead", (), 0)
    assert broker.instance.presence_key in sysv_semaphore_keys()
    assert remove_leftover(place, found) == [f"sem:{broker.instance.presence_key:#x}"]
    assert broker.instance.presence_key not in sysv_semaphore_keys()
    assert not [entry for entry in find_leftovers(place) if entry.broker_name == place.broker_name]


def test_a_recorded_pid_that_a_stranger_has_now_protects_nothing(place: Place) -> None:
    broker = Broker(place.broker_name, "posix")
    broker.kill()
    reused = ProcessMark(os.getpid(), own_mark().start + 1)
    write_instance(place.instance_path, broker.instance.with_processes(supervisor=reused), mode=0o600, gid=-1)
    assert (only(place).state, only(place).holders) == ("dead", ())
    # The very process does: a supervisor between two keepers maps nothing.
    write_instance(place.instance_path, broker.instance.with_processes(supervisor=own_mark()), mode=0o600, gid=-1)
    assert (only(place).state, only(place).holders) == ("living", (own_mark(),))
    with pytest.raises(StillHeld):
        remove_leftover(place, only(place))
    write_instance(place.instance_path, broker.instance, mode=0o600, gid=-1)
    assert len(remove_leftover(place, only(place))) == 4


def test_memory_that_the_next_start_goes_on_from_waits_for_it(place: Place, tmp_path: Path) -> None:
    (tmp_path / "store" / "commitlog").mkdir(parents=True)
    broker = Broker(place.broker_name, "posix", str(tmp_path / "store"))
    write_instance(place.instance_path, broker.instance, mode=0o600, gid=-1)
    broker.kill()
    assert only(place).state == "waiting"
    with pytest.raises(StillHeld, match="next start"):
        remove_leftover(place, only(place))
    place.instance_path.unlink()
    assert only(place).state == "waiting"  # also when only the memory itself says which store it is of
    # Another generation of the same store has taken its place.
    write_instance(place.instance_path, successor_of(broker.instance), mode=0o600, gid=-1)
    assert only(place).state == "dead"
    remove_leftover(place, only(place))


def test_without_its_presence_semaphore_nothing_is_judged(place: Place) -> None:
    broker = Broker(place.broker_name, "posix")
    broker.kill()
    remove_presence(broker.instance.presence_key, uid=os.geteuid())
    assert only(place).state == "unjudged"
    with pytest.raises(StillHeld, match="IPC namespace"):
        remove_leftover(place, only(place))
    for path in only(place).paths:
        path.unlink()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a segment to somebody else")
def test_somebody_elses_is_not_ours_to_remove_even_for_root(place: Place) -> None:
    broker = Broker(place.broker_name, "posix")
    broker.kill()
    for path in only(place).paths:
        os.chown(path, 65534, -1)
    assert only(place).state == "foreign"
    with pytest.raises(StillHeld, match="uid 65534"):
        remove_leftover(place, only(place))
    for path in only(place).paths:
        path.unlink()
    remove_presence(broker.instance.presence_key, uid=os.geteuid())
