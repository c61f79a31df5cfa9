"""Memory in /dev/shm is removed only when no living process uses it and no start of a broker would go on from it."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import sysv_ipc

from shmq.shm.holders import StillHeld
from shmq.shm.instance import SEGMENT_PARTS, write_instance
from shmq.shm.leftovers import Leftover, find_leftovers, find_settled_leftovers, remove_leftover
from shmq.shm.liveness import ProcessMark, own_mark
from shmq.shm.place import Place
from shmq.shm.presence import presence_count, remove_presence
from shmq.shm.sweep import sweep
from shmq.shm.sysv_generations import unnamed_generations
from shmq.shm.sysv_table import SysvSegment, sysv_segments
from tests.shm.test_sweep import VIEWER, Broker, successor_of


def sysv_semaphore_keys() -> list[int]:
    """The keys of all semaphore sets, as the kernel lists them."""
    return [int(line.split()[0]) for line in Path("/proc/sysvipc/sem").read_text().splitlines()[1:]]


@pytest.fixture
def place(tmp_path: Path, broker_name: str) -> Place:
    place = Place(broker_name, tmp_path / "run" / broker_name)
    place.runtime_dir.mkdir(parents=True)
    return place


def only(place: Place, find: Callable[[Place], list[Leftover]] = find_leftovers) -> Leftover:
    """What this test left: tests before it in this process left theirs."""
    [found] = [entry for entry in find(place) if entry.broker_name == place.broker_name]
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


def test_who_looks_at_the_same_moment_is_waited_for(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Broker(place.broker_name, "posix")
    write_instance(place.instance_path, successor_of(broker.instance), mode=0o600, gid=-1)
    with subprocess.Popen(
        [sys.executable, "-c", VIEWER, broker.instance.to_json()], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as viewer:
        assert viewer.stdout and viewer.stdout.readline() == b"mapped\n"
        broker.kill()
        assert only(place).state == "mapped"
        monkeypatch.setattr("shmq.shm.leftovers.time.sleep", lambda _: viewer.communicate())
        found = only(place, find_settled_leftovers)
    assert (found.state, viewer.returncode) == ("dead", 0)
    remove_leftover(place, found)


def test_what_a_living_process_maps_stays_although_none_is_recorded_or_counted(place: Place, tmp_path: Path) -> None:
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


def test_an_identifier_that_the_kernel_has_used_again_is_not_the_dead_brokers(place: Place) -> None:
    broker = Broker(place.broker_name, "sysv")
    stranger = sysv_ipc.SharedMemory(sysv_ipc.IPC_PRIVATE, sysv_ipc.IPC_CREX, 0o600, 4096)
    identifiers = (*broker.instance.segments[:2], stranger.id)
    sizes = (*broker.instance.segment_bytes[:2], 8192)
    write_instance(
        place.instance_path, broker.instance._replace(segments=identifiers, segment_bytes=sizes), mode=0o600, gid=-1
    )
    broker.kill()
    stranger.detach()
    assert stranger.id not in {segment.identifier for segment in only(place).sysv.values()}
    write_instance(place.instance_path, broker.instance, mode=0o600, gid=-1)
    assert len(only(place).sysv) == 3
    remove_leftover(place, only(place))
    assert stranger.id in sysv_segments()
    stranger.remove()


def test_sysv_segments_are_found_by_what_is_in_them_when_nothing_names_them_any_more(
    place: Place, tmp_path: Path
) -> None:
    (tmp_path / "store" / "commitlog").mkdir(parents=True)
    broker = Broker(place.broker_name, "sysv", str(tmp_path / "store"))
    identifiers = {int(identifier) for identifier in broker.instance.segments}
    bystander = sysv_ipc.SharedMemory(sysv_ipc.IPC_PRIVATE, sysv_ipc.IPC_CREX, 0o600, 4096, b"x")
    bystander.detach()
    # While it lives it is attached, and not looked into; its semaphores are seen.
    assert (only(place).state, only(place).sysv) == ("living", {})
    broker.kill()
    found = only(place)
    assert (found.state, found.generation, found.uid) == ("waiting", broker.instance.generation, os.geteuid())
    assert [found.sysv[part].size_bytes for part in SEGMENT_PARTS] == list(broker.instance.segment_bytes)
    assert {segment.identifier for segment in found.sysv.values()} == identifiers
    assert found.size_bytes >= sum(broker.instance.segment_bytes)
    with pytest.raises(StillHeld, match="next start"):
        remove_leftover(place, found)
    (tmp_path / "store" / "commitlog").rmdir()  # no start of it will come
    assert only(place).state == "dead"
    with subprocess.Popen(
        [sys.executable, "-c", VIEWER, broker.instance.to_json()], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as viewer:
        assert viewer.stdout and viewer.stdout.readline() == b"mapped\n"
        with pytest.raises(StillHeld):
            remove_leftover(place, only(place))
        viewer.kill()
    assert {f"sysv:{identifier}" for identifier in identifiers} <= set(remove_leftover(place, only(place)))
    assert not identifiers & sysv_segments().keys() and broker.instance.presence_key not in sysv_semaphore_keys()
    assert bystander.id in sysv_segments()
    bystander.remove()


def test_sysv_segments_that_nothing_names_go_with_the_next_start_of_their_broker(place: Place, tmp_path: Path) -> None:
    (tmp_path / "store" / "commitlog").mkdir(parents=True)
    broker = Broker(place.broker_name, "sysv", str(tmp_path / "store"))
    broker.kill()
    other = Place("other", tmp_path / "run" / "other")
    sweep(other)
    assert set(broker.instance.segments) <= sysv_segments().keys()
    sweep(place)
    assert not set(broker.instance.segments) & sysv_segments().keys()


def test_units_that_could_be_of_either_of_two_generations_belong_to_neither() -> None:
    table = {
        pid: [SysvSegment(pid * 3 + part, 4096, 4096, 0, os.geteuid(), 0o600, creator=pid) for part in range(3)]
        for pid in (7, 8)
    }
    assert unnamed_generations([segment for each in table.values() for segment in each], ()) == []
    both = [Broker("twins", "sysv"), Broker("twins", "sysv")]
    named = {int(identifier) for broker in both for identifier in broker.instance.segments}
    for broker in both:
        broker.kill()
    left = [segment for segment in sysv_segments().values() if segment.identifier in named]
    assert {found.generation for found in unnamed_generations(left, ())} == {one.instance.generation for one in both}
    assert unnamed_generations(left, named) == []
    assert unnamed_generations([segment._replace(creator=1) for segment in left], ()) == []
    for segment in left:
        sysv_ipc.remove_shared_memory(segment.identifier)
    for broker in both:
        remove_presence(broker.instance.presence_key, uid=os.geteuid())


def test_a_presence_semaphore_whose_segments_were_removed_is_found_and_goes(place: Place) -> None:
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


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a segment to another user")
def test_another_users_memory_is_not_ours_to_remove_even_for_root(place: Place) -> None:
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
