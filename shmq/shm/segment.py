"""The three shared memory segments of a broker: creating, opening, checking and removing them.

bindings/shmq.h describes their contents; the daemon decides when a generation is given up.

    kind "posix"   /dev/shm/shmq.<broker>.<generation>.control|units|readers, made with posix_ipc
                   control, readers   wholly reserved
                   units              sparse up to frame_max frames; the first are reserved, the keeper reserves more
    kind "sysv"    three private SysV segments, every page touched at creation, for hosts whose /dev/shm is too small

Rules: (1) a segment is created exclusively, its mode does not depend on the umask, and its memory is reserved before
a process maps it, so a full /dev/shm is an error here and never a SIGBUS later;
(2) a segment is used only if it is what the instance says: owner, exact mode, one link, exact size, this boot, this PID
namespace, and (the core checks that) magic, ABI and generation;
(3) the presence semaphore is raised before the first segment exists and removed after the last one is gone.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from pathlib import Path
from typing import NamedTuple

import posix_ipc
import sysv_ipc

from shmq.errors import ForeignNamespace, PermissionDenied, SegmentError, ShmqError, VersionMismatch
from shmq.shm.access import Access, access_rights
from shmq.shm.core import ABI, ACK_CONFIRMED, ACK_DURABLE, ACK_END, FRAME_BYTES, CoreError, Store, layout_bytes
from shmq.shm.descriptors import above_standard
from shmq.shm.instance import SEGMENT_PARTS, Instance, read_instance, segment_names, write_instance
from shmq.shm.liveness import boot_id, visible_pid_namespace
from shmq.shm.presence import create_presence, detach_presence, presence_key_of, remove_presence
from shmq.shm.sysv_table import sysv_segments

__all__ = [
    "SHM_DIRECTORY",
    "Instance",
    "SegmentSizes",
    "create_segments",
    "open_store",
    "read_instance",
    "unlink_segments",
    "write_instance",
]

SHM_DIRECTORY = Path("/dev/shm")
FRAMES_READY_AT_START = 2048  # 8 MiB: enough for the keeper's free margin of 1024 frames twice
FRAME_MAX_LEAST = 2048
SYSV_UNITS_BYTES_MAX = 64 << 20  # every page of a SysV segment is touched, so it is really taken
_SHM_DEST = 0o1000  # Linux keeps a removed segment attachable while a process is attached
_GENERATION_TRIES = 8
_DEFAULT_STORE_HOST = bytes((127, 0, 0, 1)) + (10911).to_bytes(4, "big")


class SegmentSizes(NamedTuple):
    """The sizes of the tables; names and meaning of struct shmq_sizes."""

    file_bytes: int = 1 << 30
    topic_max: int = 16384
    queue_max: int = 131072
    frame_max: int = 262144
    client_max: int = 1024
    group_max: int = 4096
    offset_max: int = 262144

    def segment_bytes(self) -> tuple[int, int, int]:
        """Return the sizes of control, units and readers."""
        return layout_bytes(**self._asdict())

    @property
    def frames_ready(self) -> int:
        """Frames whose memory is reserved at creation of POSIX segments."""
        return min(FRAMES_READY_AT_START, self.frame_max)


def create_segments(
    broker_name: str,
    *,
    store_path: Path | str,
    sizes: SegmentSizes,
    kind: str = "posix",
    flush_sync: bool = False,
    confirms: bool = False,
    trusts_reads: bool = False,
    clock_stands_ms: int = 0,
    store_host: bytes = _DEFAULT_STORE_HOST,
    generation: int | None = None,
) -> tuple[Instance, Store]:
    """Create, reserve and format the segments of a new generation, and attach to them writable.

    Fewer frames than asked for are made when the memory file system is smaller than the units segment may become.

    Args:
        flush_sync: nothing is acknowledged or visible before it is on disk.
        confirms: nor before replicas have confirmed it.
        clock_stands_ms: where the broker's clock stands, for tests; 0: it is the host's.
        generation: the random number that names it; None draws one.

    Raises:
        SegmentError: no memory, no SysV ids, or the names are taken.
    """
    access = access_rights()
    fitted = _fit(sizes, kind)
    drawn, key = _draw_generation(broker_name, generation, access)
    instance = Instance(
        broker_name=broker_name,
        generation=drawn,
        kind=kind,
        segments=segment_names(broker_name, drawn) if kind == "posix" else (),
        segment_bytes=fitted.segment_bytes(),
        presence_key=key,
        store_path=str(store_path),
        uid=os.geteuid(),
        mode=access.mode,
        boot_id=boot_id(),
        pid_namespace=visible_pid_namespace(),
    )
    frames_ready = fitted.frames_ready if kind == "posix" else fitted.frame_max
    layout = {
        **fitted._asdict(),
        "generation": drawn,
        "ack_rule": ACK_CONFIRMED if confirms else ACK_DURABLE if flush_sync else ACK_END,
        "trusts_reads": trusts_reads,
        "clock_stands_ms": clock_stands_ms,
        "store_host": store_host,
        "broker_name": broker_name,
        "store_path": str(store_path),
        "frame_ready": frames_ready,
    }
    make = _create_posix if kind == "posix" else _create_sysv
    try:
        return make(instance, access, layout, frames_ready)
    except ShmqError:
        detach_presence(instance)
        remove_presence(key, uid=instance.uid)
        raise


def _draw_generation(broker_name: str, wanted: int | None, access: Access) -> tuple[int, int]:
    for _ in range(_GENERATION_TRIES):
        generation = wanted if wanted is not None else int.from_bytes(os.urandom(8)) >> 1 | 1
        key = presence_key_of(generation)
        if create_presence(key, mode=access.mode, gid=access.gid):
            return generation, key
        if wanted is not None:
            break
    raise SegmentError(
        f"no free presence semaphore for a generation of broker {broker_name!r}", hint="see `ipcs -s` for leftovers"
    )


def _fit(sizes: SegmentSizes, kind: str) -> SegmentSizes:
    """Fewer frames where there is less memory; the tables keep their size."""
    if kind == "sysv":
        return sizes._replace(frame_max=min(sizes.frame_max, SYSV_UNITS_BYTES_MAX // FRAME_BYTES))
    status = os.statvfs(SHM_DIRECTORY)
    available = status.f_bavail * status.f_frsize if status.f_blocks else sum(sizes.segment_bytes())
    fitted = sizes
    while sum(fitted.segment_bytes()) > available and fitted.frame_max // 2 >= FRAME_MAX_LEAST:
        fitted = fitted._replace(frame_max=fitted.frame_max // 2)
    control, _, readers = fitted.segment_bytes()
    needed = control + readers + fitted.frames_ready * FRAME_BYTES
    if needed > available:
        raise _too_small(needed)
    return fitted


def _too_small(needed: int) -> SegmentError:
    status = os.statvfs(SHM_DIRECTORY)
    total, free = status.f_blocks * status.f_frsize, status.f_bavail * status.f_frsize
    return SegmentError(
        f"{SHM_DIRECTORY} has {_mebibytes(free)} free of {_mebibytes(total)}, the segments need {_mebibytes(needed)}",
        hint="docker run --shm-size=256m (compose: shm_size: 256mb), or shmq serve --segments sysv",
    )


def _mebibytes(size: int) -> str:
    return f"{size / (1 << 20):.1f} MiB"


def _create_posix(
    instance: Instance, access: Access, layout: dict[str, object], frames_ready: int
) -> tuple[Instance, Store]:
    reserved = (instance.segment_bytes[0], frames_ready * FRAME_BYTES, instance.segment_bytes[2])
    descriptors: list[int] = []
    try:
        for name, size, reserve in zip(instance.segments, instance.segment_bytes, reserved, strict=True):
            descriptors.append(_create_one(str(name), access))
            os.ftruncate(descriptors[-1], size)
            os.posix_fallocate(descriptors[-1], 0, reserve)
        control, units, readers = descriptors
        return instance, Store(control, units, readers, writable=True, format=layout)
    except CoreError:
        _unlink(instance.segments)
        raise
    except (OSError, SegmentError) as error:
        _unlink(instance.segments[: len(descriptors)])  # never a name that another process had taken
        if isinstance(error, SegmentError):
            raise
        if error.errno in (errno.ENOSPC, errno.ENOMEM):
            raise _too_small(sum(reserved)) from error
        raise SegmentError(f"the segments of broker {instance.broker_name!r} could not be made: {error}") from error
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


@above_standard
def _create_one(name: str, access: Access) -> int:
    try:
        descriptor: int = posix_ipc.SharedMemory(name, posix_ipc.O_CREX, mode=0o600).fd
    except posix_ipc.ExistentialError as error:
        raise SegmentError(
            f"{SHM_DIRECTORY}{name} exists already, made by another process",
            hint=f"ls -l {SHM_DIRECTORY}{name}; remove it if no broker of yours uses it",
        ) from error
    except posix_ipc.Error as error:
        raise SegmentError(f"{SHM_DIRECTORY}{name} could not be made: {error}") from error
    # After creation, because the umask would have its say in the mode given there.
    os.fchown(descriptor, -1, access.gid)
    os.fchmod(descriptor, access.mode)
    return descriptor


def _create_sysv(
    instance: Instance, access: Access, layout: dict[str, object], _frames_ready: int
) -> tuple[Instance, Store]:
    made: list[sysv_ipc.SharedMemory] = []
    try:
        for size in instance.segment_bytes:
            # init_character writes every page: what is reserved now cannot be missing later.
            segment = sysv_ipc.SharedMemory(sysv_ipc.IPC_PRIVATE, sysv_ipc.IPC_CREX, access.mode, size, b"\0")
            made.append(segment)
            if access.gid >= 0:
                segment.gid = access.gid
        control, units, readers = (int(segment.id) for segment in made)
        store = Store(control, units, readers, writable=True, sysv=True, format=layout)
        return instance._replace(segments=(control, units, readers)), store
    except CoreError:
        _remove_made(made)
        raise
    except (sysv_ipc.Error, OSError, MemoryError, ValueError) as error:
        _remove_made(made)
        raise SegmentError(
            f"the kernel refused a SysV segment of {_mebibytes(max(instance.segment_bytes))}: {error}",
            hint="see /proc/sys/kernel/shmmax, shmall and `ipcs -m`, or use --segments posix",
        ) from error
    finally:
        for segment in made:
            with contextlib.suppress(sysv_ipc.Error):
                segment.detach()


def _remove_made(made: list[sysv_ipc.SharedMemory]) -> None:
    for segment in made:
        with contextlib.suppress(sysv_ipc.Error):
            segment.remove()


def open_store(instance: Instance, *, writable: bool, uid: int | None = None, observing: bool = False) -> Store:
    """Attach to living segments after checking that they are what the instance says.

    A process that may append calls `attach_presence` too: segments with a count of zero are swept, and replaced.

    Args:
        writable: whether the caller may append; readers map everything but the readers segment read-only.
        uid: whose segments they must be; None takes the instance's word.
        observing: whether the caller neither waits nor owns a queue: the readers segment is mapped read-only too.

    Raises:
        SegmentError: they are gone, of another boot, or not what the instance says.
        PermissionDenied: wrong owner or mode, or they exclude us.
        ForeignNamespace: we live in another PID namespace.
        VersionMismatch: another segment layout.
    """
    owner = instance.uid if uid is None else uid
    if instance.abi != ABI:
        raise VersionMismatch(
            f"the broker's segments have layout {instance.abi}, this library (beside {instance.version}) knows {ABI}",
            hint="install the same version of shmq for the broker and its clients",
        )
    if instance.boot_id != boot_id():
        raise SegmentError("the segments are from before the last reboot", hint="start the broker: shmq serve")
    if instance.pid_namespace != visible_pid_namespace():
        raise ForeignNamespace(
            f"the broker lives in PID namespace {instance.pid_namespace}, this process in {visible_pid_namespace()}",
            hint="share it (docker: --pid=container:<broker>), or connect over TCP",
        )
    attach = _open_posix if instance.kind == "posix" else _open_sysv
    store = attach(instance, owner, writable=writable, observing=observing and not writable)
    if store.head["generation"] != instance.generation:
        store.close()
        raise SegmentError(f"the segments hold another generation than {instance.generation:016x}")
    return store


def are_here(instance: Instance) -> bool:
    """Say whether this process sees segments of these names, of any user."""
    if instance.kind == "posix":
        return all(os.path.lexists(f"{SHM_DIRECTORY}{name}") for name in instance.segments)
    return all(int(identifier) in sysv_segments() for identifier in instance.segments)


def _open_posix(instance: Instance, owner: int, *, writable: bool, observing: bool) -> Store:
    descriptors: list[int] = []
    try:
        for part, name, size in zip(SEGMENT_PARTS, instance.segments, instance.segment_bytes, strict=True):
            read_only = not writable and (observing or part != "readers")
            descriptors.append(_open_one(str(name), read_only=read_only))
            _check_file(str(name), os.fstat(descriptors[-1]), owner, instance.mode, size)
        control, units, readers = descriptors
        return Store(control, units, readers, writable=writable, observing=observing)
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


@above_standard
def _open_one(name: str, *, read_only: bool) -> int:
    try:
        return int(posix_ipc.SharedMemory(name, read_only=read_only).fd)
    except posix_ipc.ExistentialError as error:
        hint = "start the broker: shmq serve; one that runs has another /dev/shm (docker: --ipc=container:<broker>)"
        raise SegmentError(f"{SHM_DIRECTORY}{name} does not exist", hint=hint) from error
    except (posix_ipc.PermissionsError, PermissionError) as error:
        raise PermissionDenied(
            f"{SHM_DIRECTORY}{name} excludes uid {os.geteuid()}",
            hint="run as the broker's user, or join the group shmq: usermod -aG shmq USER",
        ) from error
    except (posix_ipc.Error, OSError) as error:  # a link, a directory, a device
        raise SegmentError(f"{SHM_DIRECTORY}{name} could not be opened: {error}") from error


def _check_file(name: str, status: os.stat_result, owner: int, mode: int, size: int) -> None:
    path = f"{SHM_DIRECTORY}{name}"
    if status.st_uid != owner:
        raise PermissionDenied(f"{path} belongs to uid {status.st_uid}, not to the broker's uid {owner}")
    if stat.S_IMODE(status.st_mode) != mode or mode & stat.S_IRWXO:
        raise PermissionDenied(f"{path} has mode {stat.S_IMODE(status.st_mode):04o}, the broker made it {mode:04o}")
    if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
        raise SegmentError(f"{path} has {status.st_nlink} links, a living segment has one")
    if status.st_size != size:
        raise SegmentError(f"{path} has {status.st_size} bytes, the broker made it with {size}")


def _open_sysv(instance: Instance, owner: int, *, writable: bool, observing: bool) -> Store:
    held: list[sysv_ipc.SharedMemory] = []
    try:
        for identifier, size in zip(instance.segments, instance.segment_bytes, strict=True):
            # Attached while it is checked and opened again by the core: an id in use is not given to another segment.
            held.append(sysv_ipc.attach(identifier, None, sysv_ipc.SHM_RDONLY))
            segment = held[-1]
            if int(segment.mode) & _SHM_DEST:
                raise SegmentError(f"SysV segment {identifier} was removed", hint="start the broker: shmq serve")
            if int(segment.cuid) != owner:
                raise PermissionDenied(f"SysV segment {identifier} was made by uid {segment.cuid}, not by {owner}")
            if int(segment.mode) & 0o777 != instance.mode:
                raise PermissionDenied(f"SysV segment {identifier} has mode {int(segment.mode) & 0o777:04o}")
            if int(segment.size) != size:
                raise SegmentError(f"SysV segment {identifier} has {segment.size} bytes, it was made with {size}")
        control, units, readers = (int(identifier) for identifier in instance.segments)
        return Store(control, units, readers, writable=writable, sysv=True, observing=observing)
    except sysv_ipc.PermissionsError as error:
        raise PermissionDenied(f"the SysV segments exclude uid {os.geteuid()}: {error}") from error
    except (sysv_ipc.Error, ValueError) as error:
        raise SegmentError(f"the SysV segments are gone: {error}", hint="start the broker: shmq serve") from error
    finally:
        for segment in held:
            with contextlib.suppress(sysv_ipc.Error):
                segment.detach()


def unlink_segments(instance: Instance) -> None:
    """Remove the segments, semaphores and presence of a generation; what is gone already is no error.

    Processes that are attached keep their mappings; retire the store first, or they go on writing into nowhere.
    """
    from shmq.shm.counters import remove_counters  # not needed for looking

    remove_counters(instance)
    prefix = "sem." + instance.semaphore_prefix[1:]
    for name in os.listdir(SHM_DIRECTORY):
        if name.startswith(prefix):
            with contextlib.suppress(posix_ipc.Error):
                posix_ipc.unlink_semaphore("/" + name.removeprefix("sem."))
    # Last, because what is left of a removal that was cut short is judged by them.
    if instance.kind == "posix":
        _unlink(instance.segments)
    else:
        for identifier in instance.segments:
            with contextlib.suppress(sysv_ipc.Error, OSError):
                sysv_ipc.remove_shared_memory(int(identifier))
    detach_presence(instance)
    remove_presence(instance.presence_key, uid=instance.uid)


def _unlink(names: tuple[str, ...] | tuple[int, ...]) -> None:
    for name in names:
        with contextlib.suppress(posix_ipc.Error):
            posix_ipc.unlink_shared_memory(str(name))
