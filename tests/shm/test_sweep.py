"""Sweeping: what dead brokers left goes, what a living process uses stays."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import posix_ipc
import pytest
import sysv_ipc

from shmq.shm.instance import Instance, segment_names, write_instance
from shmq.shm.liveness import own_mark
from shmq.shm.place import Place
from shmq.shm.presence import presence_count
from shmq.shm.segment import SHM_DIRECTORY, SegmentSizes, create_segments, unlink_segments
from shmq.shm.sweep import sweep

# A broker that makes segments, says where, and waits to be killed.
BROKER = """
import os, sys
import posix_ipc
from shmq.shm.segment import SegmentSizes, create_segments
name, kind, store_path = sys.argv[1:]
sizes = SegmentSizes(file_bytes=1 << 20, topic_max=64, queue_max=256, frame_max=4096, client_max=16, group_max=16,
                     offset_max=256)
instance, store = create_segments(name, store_path=store_path, sizes=sizes, kind=kind)
posix_ipc.Semaphore(instance.semaphore_prefix + "0", posix_ipc.O_CREX, mode=0o600).close()
print(instance.to_json().replace("\\n", ""), flush=True)
sys.stdin.read()
"""


# A read-only viewer: it is not counted, and no file names it.
VIEWER = """
import sys
from shmq.shm.instance import Instance
from shmq.shm.segment import open_store
store = open_store(Instance.from_json(sys.argv[1]), writable=False, observing=True)
print("mapped", flush=True)
sys.stdin.read()
"""


class Broker:
    """A process with segments."""

    def __init__(self, name: str, kind: str, store_path: str = "/nowhere") -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", BROKER, name, kind, store_path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout
        self.instance = Instance.from_json(self.process.stdout.readline())

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.communicate()

    def names(self) -> list[str]:
        """What it has in /dev/shm, and its SysV segments that still exist."""
        found = [name for name in os.listdir(SHM_DIRECTORY) if self.instance.broker_name in name]
        for identifier in self.instance.segments if self.instance.kind == "sysv" else ():
            try:
                sysv_ipc.attach(identifier, None, sysv_ipc.SHM_RDONLY).detach()
            except (sysv_ipc.Error, ValueError):
                continue
            found.append(f"sysv:{identifier}")
        return sorted(found)


def successor_of(instance: Instance) -> Instance:
    """The next generation of the same broker, as far as instance.json tells."""
    generation = instance.generation ^ 2
    return instance._replace(generation=generation, segments=segment_names(instance.broker_name, generation))


@pytest.fixture
def place(tmp_path: Path, broker_name: str) -> Place:
    place = Place("mine", tmp_path / "run" / "mine")
    for name in ("mine", broker_name):
        (tmp_path / "run" / name).mkdir(parents=True)
    return place


def record(place: Place, instance: Instance) -> None:
    """What the dead broker wrote beside ours."""
    path = place.runtime_dir.parent / instance.broker_name / "instance.json"
    write_instance(path, instance, mode=0o600, gid=-1)


@pytest.mark.parametrize("kind", ["posix", "sysv"])
def test_what_a_dead_broker_left_goes(place: Place, broker_name: str, kind: str) -> None:
    broker = Broker(broker_name, kind)
    record(place, broker.instance)
    left = broker.names()
    assert len(left) == 4
    broker.kill()
    removed = sweep(place)
    assert broker.names() == []
    assert set(left) <= set(removed) | {name for name in left if name.startswith("sem.")}


@pytest.mark.parametrize("recorded", [True, False])
def test_what_another_broker_left_stays_while_its_store_exists(
    place: Place, broker_name: str, tmp_path: Path, recorded: bool
) -> None:
    (tmp_path / "store" / "commitlog").mkdir(parents=True)
    broker = Broker(broker_name, "posix", str(tmp_path / "store"))
    if recorded:
        record(place, broker.instance)
    before = broker.names()
    broker.kill()
    assert not [name for name in sweep(place) if broker_name in name]
    assert broker.names() == before
    (tmp_path / "store" / "commitlog").rmdir()
    sweep(place)
    assert broker.names() == []


@pytest.mark.parametrize("kind", ["posix", "sysv"])
def test_what_a_living_process_uses_stays(place: Place, broker_name: str, kind: str) -> None:
    broker = Broker(broker_name, kind)
    record(place, broker.instance)
    before = broker.names()
    assert not [name for name in sweep(place) if broker_name in name]
    assert broker.names() == before
    broker.kill()
    sweep(place)


@pytest.mark.parametrize("kind", ["posix", "sysv"])
def test_what_a_process_still_looks_at_stays_until_it_is_gone(
    place: Place, broker_name: str, tmp_path: Path, kind: str
) -> None:
    broker = Broker(broker_name, kind, str(tmp_path / "store") if kind == "posix" else "/nowhere")
    if kind == "posix":  # a successor, which only we can see: other brokers of this host wait for its return
        (tmp_path / "store" / "commitlog").mkdir(parents=True)
        record(place, successor_of(broker.instance))
    else:
        record(place, broker.instance)
    with subprocess.Popen(
        [sys.executable, "-c", VIEWER, broker.instance.to_json()], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as viewer:
        assert viewer.stdout and viewer.stdout.readline() == b"mapped\n"
        before = broker.names()
        broker.kill()
        assert not [name for name in sweep(place) if broker_name in name or name.startswith("sysv:")]
        assert broker.names() == before and presence_count(broker.instance) == 0
        viewer.kill()
    sweep(place)
    assert broker.names() == []


def test_what_is_to_be_attached_again_stays(place: Place, broker_name: str) -> None:
    broker = Broker(broker_name, "posix")
    before = broker.names()
    broker.kill()
    assert not [name for name in sweep(place, keep=broker.instance) if broker_name in name]
    assert broker.names() == before
    sweep(place)
    assert broker.names() == []


def test_a_recorded_process_that_lives_protects_what_is_not_mapped(place: Place, broker_name: str) -> None:
    broker = Broker(broker_name, "posix")
    broker.kill()
    # As when the keeper has just died and its supervisor is about to start the next one.
    record(place, broker.instance.with_processes(supervisor=own_mark()))
    assert not [name for name in sweep(place) if broker_name in name]
    record(place, broker.instance)
    sweep(place)
    assert not any((SHM_DIRECTORY / name).exists() for name in broker.names())


def test_a_generation_without_a_presence_semaphore_is_not_judged(place: Place, broker_name: str) -> None:
    # Of another IPC namespace, or made by something that only uses our names.
    path = SHM_DIRECTORY / f"shmq.{broker_name}.{5:016x}.control"
    path.touch()
    try:
        assert not [name for name in sweep(place) if broker_name in name]
        assert path.exists()
    finally:
        path.unlink()


def test_names_that_are_not_ours_stay(place: Place, broker_name: str) -> None:
    strangers = [
        SHM_DIRECTORY / f"{broker_name}.control",
        SHM_DIRECTORY / f"shmq.{broker_name}.nothex.control",
        SHM_DIRECTORY / f"shmq.{broker_name}.{5:016x}.other",
    ]
    for path in strangers:
        path.touch()
    try:
        assert not [name for name in sweep(place) if broker_name in name]
        assert all(path.exists() for path in strangers)
    finally:
        for path in strangers:
            path.unlink()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a segment to another user")
def test_another_users_leftovers_stay_even_for_root(place: Place, broker_name: str) -> None:
    broker = Broker(broker_name, "posix")
    broker.kill()
    paths = [SHM_DIRECTORY / name for name in broker.names()]
    for path in paths:
        os.chown(path, 65534, -1)
    assert not [name for name in sweep(place) if broker_name in name]
    assert all(path.exists() for path in paths)
    for path in paths:
        os.chown(path, os.geteuid(), -1)
    sweep(place)  # or another broker that starts meanwhile
    assert not any(path.exists() for path in paths)


def test_a_broker_that_is_just_being_made_is_not_swept(
    place: Place, broker_name: str, sizes: SegmentSizes, tmp_path: Path
) -> None:
    instance, store = create_segments(broker_name, store_path=tmp_path, sizes=sizes)
    posix_ipc.Semaphore(f"{instance.semaphore_prefix}0", posix_ipc.O_CREX, mode=0o600).close()
    try:
        assert not [name for name in sweep(place) if broker_name in name]
    finally:
        store.close()
        unlink_segments(instance)


def test_an_unreadable_instance_beside_ours_does_no_harm(place: Place) -> None:
    (place.runtime_dir.parent / "broken").mkdir()
    (place.runtime_dir.parent / "broken" / "instance.json").write_text("{")
    sweep(place)
