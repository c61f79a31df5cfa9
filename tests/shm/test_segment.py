"""The segments: reserved before they are mapped, ours alone, and refused when they are not what they should be."""

import os
import secrets
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import posix_ipc
import pytest

from shmq.errors import ForeignNamespace, PermissionDenied, SegmentError, VersionMismatch
from shmq.shm.core import FRAME_BYTES, BrokerTables, Store
from shmq.shm.instance import Instance
from shmq.shm.presence import presence_count
from shmq.shm.segment import SHM_DIRECTORY, SegmentSizes, create_segments, open_store, unlink_segments

Made = tuple[Instance, Store]


def path_of(instance: Instance, part: int) -> Path:
    return SHM_DIRECTORY / str(instance.segments[part])[1:]


@pytest.fixture(params=["posix", "sysv"])
def made(request: pytest.FixtureRequest, broker_name: str, sizes: SegmentSizes, tmp_path: Path) -> Iterator[Made]:
    instance, store = create_segments(broker_name, store_path=tmp_path, sizes=sizes, kind=request.param)
    yield instance, store
    store.close()
    unlink_segments(instance)
    assert presence_count(instance) == 0


@pytest.fixture
def posix(broker_name: str, sizes: SegmentSizes, tmp_path: Path) -> Iterator[Instance]:
    before = os.umask(0o777)
    instance, store = create_segments(broker_name, store_path=tmp_path, sizes=sizes)
    os.umask(before)
    store.close()
    yield instance
    unlink_segments(instance)


def test_a_second_handle_sees_what_the_first_one_writes(made: Made, tmp_path: Path) -> None:
    instance, store = made
    other = open_store(instance, writable=False)
    index = BrokerTables(store).topic_put("orders", read_queues=2, write_queues=2)
    assert other.topic_find("orders") == index
    assert other.head["store_path"] == str(tmp_path)
    assert other.head["generation"] == instance.generation
    assert presence_count(instance) == 1
    other.close()


def test_memory_is_reserved_when_the_segments_are_made(posix: Instance, sizes: SegmentSizes) -> None:
    control, units, readers = (path_of(posix, part).stat() for part in range(3))
    assert control.st_blocks * 512 >= control.st_size
    assert readers.st_blocks * 512 >= readers.st_size
    assert sizes.frames_ready * FRAME_BYTES <= units.st_blocks * 512 < units.st_size


def test_the_mode_does_not_depend_on_the_umask(posix: Instance) -> None:
    for part in range(3):
        status = path_of(posix, part).stat()
        assert stat.S_IMODE(status.st_mode) == posix.mode
        assert status.st_uid == os.geteuid()
        assert not posix.mode & 0o007


def test_an_idle_broker_reserves_less_than_64_mib(broker_name: str, tmp_path: Path) -> None:
    instance, store = create_segments(broker_name, store_path=tmp_path, sizes=SegmentSizes())
    try:
        assert sum(path_of(instance, part).stat().st_blocks * 512 for part in range(3)) <= 64 << 20
    finally:
        store.close()
        unlink_segments(instance)


def test_a_squatted_name_is_refused_and_left_alone(broker_name: str, sizes: SegmentSizes, tmp_path: Path) -> None:
    generation = secrets.randbits(62) | 1  # a fixed one would find the presence semaphore of a test that was killed
    squatted = SHM_DIRECTORY / f"shmq.{broker_name}.{generation:016x}.units"
    squatted.write_bytes(b"mine")
    try:
        with pytest.raises(SegmentError, match="exists already"):
            create_segments(broker_name, store_path=tmp_path, sizes=sizes, generation=generation)
        assert squatted.read_bytes() == b"mine"
        assert [name for name in os.listdir(SHM_DIRECTORY) if broker_name in name] == [squatted.name]
    finally:
        squatted.unlink()


@pytest.mark.parametrize("part", [0, 1, 2])
def test_a_segment_with_another_mode_is_refused(posix: Instance, part: int) -> None:
    path_of(posix, part).chmod(0o666)
    with pytest.raises(PermissionDenied, match="0666"):
        open_store(posix, writable=False)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a segment to another user")
def test_a_segment_of_another_user_is_refused(posix: Instance) -> None:
    os.chown(path_of(posix, 0), 65534, -1)
    with pytest.raises(PermissionDenied, match="65534"):
        open_store(posix, writable=True)


def test_the_owner_can_be_named_by_the_caller(posix: Instance) -> None:
    with pytest.raises(PermissionDenied):
        open_store(posix, writable=False, uid=os.geteuid() + 1)


def test_a_segment_with_a_second_link_is_refused(posix: Instance) -> None:
    other = path_of(posix, 0).with_name(f"{posix.broker_name}.link")
    other.hardlink_to(path_of(posix, 0))
    try:
        with pytest.raises(SegmentError, match="2 links"):
            open_store(posix, writable=False)
    finally:
        other.unlink()


@pytest.mark.parametrize("part", [0, 1, 2])
@pytest.mark.parametrize("change", [-4096, 4096])
def test_a_segment_of_another_size_is_refused(posix: Instance, part: int, change: int) -> None:
    os.truncate(path_of(posix, part), posix.segment_bytes[part] + change)
    with pytest.raises(SegmentError, match="bytes"):
        open_store(posix, writable=False)


def test_a_link_in_place_of_a_segment_is_refused(posix: Instance, tmp_path: Path) -> None:
    real = tmp_path / "real"
    real.write_bytes(bytes(posix.segment_bytes[2]))
    real.chmod(posix.mode)
    path_of(posix, 2).unlink()
    path_of(posix, 2).symlink_to(real)
    with pytest.raises(SegmentError):
        open_store(posix, writable=False)


def test_a_segment_that_is_gone_says_how_to_start_a_broker(made: Made) -> None:
    instance, _ = made
    unlink_segments(instance)
    with pytest.raises(SegmentError) as caught:
        open_store(instance, writable=False)
    assert "shmq serve" in caught.value.hint


def test_segments_of_another_boot_namespace_or_layout_are_refused(made: Made) -> None:
    instance, _ = made
    with pytest.raises(SegmentError, match="reboot"):
        open_store(instance._replace(boot_id="00000000-0000-0000-0000-000000000000"), writable=False)
    with pytest.raises(ForeignNamespace):
        open_store(instance._replace(pid_namespace=instance.pid_namespace + 1), writable=False)
    with pytest.raises(VersionMismatch):
        open_store(instance._replace(abi=instance.abi + 1), writable=False)


def test_a_generation_that_is_not_the_one_in_the_segments_is_refused(made: Made) -> None:
    instance, _ = made
    if instance.kind == "posix":
        pytest.skip("the name of a POSIX segment holds the generation")
    with pytest.raises(SegmentError, match="another generation"):
        open_store(instance._replace(generation=instance.generation + 1), writable=False)


def test_scribbled_bytes_in_place_of_a_control_segment_are_refused(posix: Instance) -> None:
    with path_of(posix, 0).open("r+b") as file:
        file.write(os.urandom(4096))
    with pytest.raises(Exception, match=r".") as caught:
        open_store(posix, writable=False)
    assert type(caught.value).__module__ == "shmq.errors"


def test_unlinking_takes_segments_semaphores_and_presence_and_can_be_repeated(made: Made) -> None:
    instance, store = made
    semaphore = posix_ipc.Semaphore(f"{instance.semaphore_prefix}3", posix_ipc.O_CREX, mode=0o600)
    semaphore.close()
    unlink_segments(instance)
    unlink_segments(instance)
    assert not [name for name in os.listdir(SHM_DIRECTORY) if instance.broker_name in name]
    # An attached process keeps its mappings.
    BrokerTables(store).topic_put("orders", read_queues=1, write_queues=1)


def test_a_process_in_another_ipc_or_pid_namespace_gets_an_error_that_says_so(posix: Instance) -> None:
    if os.geteuid() != 0:
        pytest.skip("unshare needs root")
    program = (
        "import sys; from shmq.shm.segment import Instance, open_store\n"
        "try: open_store(Instance.from_json(sys.argv[1]), writable=True)\n"
        "except Exception as error: print(type(error).__name__)"
    )
    result = subprocess.run(
        ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", program, posix.to_json()],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.stdout.strip() == "ForeignNamespace", result.stderr


SMALL_SHM = """
import os, sys
from pathlib import Path
from shmq.errors import SegmentError
from shmq.shm.core import CoreError, KeeperStore
from shmq.shm.segment import SegmentSizes, create_segments, unlink_segments
for mebibytes in (16, 40, 64):
    os.system(f"mount -t tmpfs -o size={mebibytes}m tmpfs /dev/shm")
    try:
        instance, store = create_segments("small", store_path="/tmp", sizes=SegmentSizes())
    except SegmentError as error:
        named = f"of {mebibytes}.0 MiB" in str(error)
        print(mebibytes, "refused", "docker" in error.hint, named, os.listdir("/dev/shm"))
        continue
    head = store.head
    status = os.statvfs("/dev/shm")
    print(mebibytes, "made", head["frame_max"] < 262144, sum(instance.segment_bytes) <= mebibytes << 20)
    # What is left goes to another file: growing is then an error, not a SIGBUS.
    with open("/dev/shm/hog", "wb") as file:
        os.posix_fallocate(file.fileno(), 0, status.f_bavail * status.f_frsize)
    try:
        KeeperStore(store).frames_grow(head["frame_max"])
    except CoreError as error:
        print(mebibytes, "growing refused")
    store.close()
    unlink_segments(instance)
print(os.listdir("/dev/shm"), Path("/proc/sysvipc/sem").read_text().count("\\n") - 1, "semaphores left")
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small /dev/shm needs root")
def test_a_small_dev_shm_gets_fewer_frames_and_a_tiny_one_is_refused_by_name() -> None:
    result = subprocess.run(
        ["unshare", "--mount", "--ipc", sys.executable, "-c", SMALL_SHM], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == [
        "16 refused True True []",
        "40 made True True",
        "40 growing refused",
        "64 made True True",
        "64 growing refused",
        "['hog'] 0 semaphores left",
    ]
