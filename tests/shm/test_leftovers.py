"""Memory in /dev/shm is removed only when nobody lives who uses it, and no start of a broker would go on from it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from shmq.shm.holders import StillHeld
from shmq.shm.instance import segment_names, write_instance
from shmq.shm.leftovers import Leftover, find_leftovers, remove_dead
from shmq.shm.liveness import ProcessMark, own_mark
from shmq.shm.place import Place
from shmq.shm.presence import presence_count, remove_presence
from tests.shm.test_sweep import Broker

# Any broker that starts on this host, in tests beside these, may sweep what a test left dead for a moment.
pytestmark = pytest.mark.flaky(reruns=5)

VIEWER = """
import sys
from pathlib import Path
from shmq.shm.instance import Instance
from shmq.shm.segment import open_store
store = open_store(Instance.from_json(sys.argv[1]), writable=False)
print("mapped", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def place(tmp_path: Path, broker_name: str) -> Place:
    place = Place(broker_name, tmp_path / "run" / broker_name)
    place.runtime_dir.mkdir(parents=True)
    return place


@pytest.fixture
def store(tmp_path: Path) -> str:
    """A store that a broker may be started on: while it exists no other broker's sweep takes the memory."""
    (tmp_path / "store" / "commitlog").mkdir(parents=True)
    return str(tmp_path / "store")


def without_its_store(place: Place, store: str) -> Leftover:
    """What is left when nobody can go on from it; from now on any broker that starts may take it away."""
    Path(store, "commitlog").rmdir()
    return only(place)


def only(place: Place) -> Leftover:
    [found] = [entry for entry in find_leftovers(place) if entry.broker_name == place.broker_name]
    return found


def test_what_a_dead_broker_left_is_dead_and_goes(place: Place, store: str) -> None:
    broker = Broker(place.broker_name, "posix", store)
    write_instance(place.instance_path, broker.instance, mode=0o600, gid=-1)
    assert only(place).state == "living"
    with pytest.raises(StillHeld):
        remove_dead(place, only(place))
    names = broker.names()
    broker.kill()
    found = without_its_store(place, store)
    assert (found.state, found.holders, sorted(found.names)) == ("dead", (), names)
    assert found.size_bytes >= sum(broker.instance.segment_bytes[::2])
    assert sorted(remove_dead(place, found)) == names
    assert broker.names() == [] and presence_count(broker.instance) == 0
    assert remove_dead(place, found) == []


def test_what_a_living_process_maps_stays_although_nobody_is_recorded_or_counted(place: Place, store: str) -> None:
    broker = Broker(place.broker_name, "posix", store)
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
                remove_dead(place, asked)
        assert len(broker.names()) == 4
        viewer.kill()
    found = without_its_store(place, store)
    assert found.state == "dead"
    remove_dead(place, found)


def test_a_recorded_pid_that_a_stranger_has_now_protects_nothing(place: Place, store: str) -> None:
    broker = Broker(place.broker_name, "posix", store)
    broker.kill()
    # The very process does: a supervisor between two keepers maps nothing.
    write_instance(place.instance_path, broker.instance.with_processes(supervisor=own_mark()), mode=0o600, gid=-1)
    assert (only(place).state, only(place).holders) == ("living", (own_mark(),))
    with pytest.raises(StillHeld):
        remove_dead(place, only(place))
    reused = ProcessMark(os.getpid(), own_mark().start + 1)
    write_instance(place.instance_path, broker.instance.with_processes(supervisor=reused), mode=0o600, gid=-1)
    assert (only(place).state, only(place).holders) == ("waiting", ())
    found = without_its_store(place, store)
    assert (found.state, found.holders) == ("dead", ())
    assert len(remove_dead(place, found)) == 4


def test_memory_that_the_next_start_goes_on_from_waits_for_it(place: Place, store: str) -> None:
    broker = Broker(place.broker_name, "posix", store)
    write_instance(place.instance_path, broker.instance, mode=0o600, gid=-1)
    broker.kill()
    assert only(place).state == "waiting"
    place.instance_path.unlink()
    assert only(place).state == "waiting"  # also when only the memory itself says which store it is of
    # Another generation of the same store has taken its place.
    generation = broker.instance.generation ^ 2
    successor = broker.instance._replace(generation=generation, segments=segment_names(place.broker_name, generation))
    write_instance(place.instance_path, successor, mode=0o600, gid=-1)
    assert only(place).state == "dead"
    remove_dead(place, only(place))


def test_without_its_presence_semaphore_nothing_is_judged(place: Place) -> None:
    broker = Broker(place.broker_name, "posix")
    broker.kill()
    remove_presence(broker.instance.presence_key, uid=os.geteuid())
    assert only(place).state == "unjudged"
    with pytest.raises(StillHeld, match="IPC namespace"):
        remove_dead(place, only(place))
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
        remove_dead(place, only(place))
    for path in only(place).paths:
        path.unlink()
    remove_presence(broker.instance.presence_key, uid=os.geteuid())
