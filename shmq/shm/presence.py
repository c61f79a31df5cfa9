"""The presence semaphore: how many processes are attached to one generation of segments, counted by the kernel.

A SysV semaphore whose value every attached process raises by one with SEM_UNDO. The kernel lowers it again when the
process ends, however it ends, so a crash cannot make the figure wrong.

    key     the low 31 bits of the generation, so the semaphore is found from a segment's name alone
    value   attached processes; each one counts once, however often it attaches

Rules: (1) the creator raises it before the first segment of the generation exists and the kernel lowers it at the
creator's death, so a segment whose presence is zero or missing has no living creator;
(2) a forked child is not counted until it attaches itself, as SEM_UNDO is not inherited.
"""

from __future__ import annotations

import os
import threading
from typing import NamedTuple

import sysv_ipc

from shmq.errors import ForeignNamespace, PermissionDenied, SegmentError
from shmq.shm.instance import Instance

_KEY_MASK = 0x7FFFFFFF


class _Held(NamedTuple):
    pid: int
    attachments: int


_held: dict[int, _Held] = {}
_lock = threading.RLock()  # a handler of a signal may connect while its thread does
# Not while another thread holds it: there is no such thread in the child, which would wait for ever.
os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)


def presence_key_of(generation: int) -> int:
    """Return the key of the presence semaphore of a generation; never IPC_PRIVATE."""
    return (generation & _KEY_MASK) or 1


def create_presence(key: int, *, mode: int, gid: int) -> bool:
    """Create the semaphore and count ourselves; False when the key is taken.

    Raises:
        SegmentError: the kernel has no semaphore set left.
    """
    try:
        semaphore = sysv_ipc.Semaphore(key, sysv_ipc.IPC_CREX, mode, 0)
    except sysv_ipc.ExistentialError:
        return False
    except (sysv_ipc.Error, OSError) as error:
        raise SegmentError(
            f"no presence semaphore could be created: {error}",
            hint="see `ipcs -s` and the fourth number of /proc/sys/kernel/sem",
        ) from error
    if gid >= 0:
        semaphore.gid = gid
    _raise_once(key, semaphore)
    return True


def attach_presence(instance: Instance) -> None:
    """Count this process; a second attachment of the same process only adds to its own count.

    Raises:
        ForeignNamespace: no such semaphore here, so the broker lives in another IPC namespace (or has stopped).
        PermissionDenied: the semaphore belongs to another user, or its mode excludes us.
    """
    _raise_once(instance.presence_key, _open(instance.presence_key, instance.uid))


def detach_presence(instance: Instance) -> None:
    """Take one attachment back; the last one of this process lowers the semaphore."""
    key = instance.presence_key
    with _lock:
        held = _held.get(key)
        if held is None or held.pid != os.getpid():
            return
        if held.attachments > 1:
            _held[key] = _Held(held.pid, held.attachments - 1)
            return
        del _held[key]
        try:
            semaphore = sysv_ipc.Semaphore(key)
            semaphore.undo = True
            semaphore.block = False
            semaphore.acquire()
        except (sysv_ipc.Error, OSError):
            return  # removed with its segments


def presence_count(instance: Instance) -> int:
    """Return how many processes are attached; 0 when the semaphore does not exist."""
    return presence_of_key(instance.presence_key, uid=instance.uid) or 0


def presence_of_key(key: int, *, uid: int) -> int | None:
    """Return how many processes are attached, or None when the semaphore does not exist or is not this owner's."""
    try:
        return int(_open(key, uid).value)
    except (ForeignNamespace, PermissionDenied, sysv_ipc.Error, OSError):
        return None


def remove_presence(key: int, *, uid: int) -> None:
    """Remove the semaphore if it is this owner's; harmless when it is gone."""
    with _lock:
        _held.pop(key, None)
    try:
        _open(key, uid).remove()
    except (ForeignNamespace, PermissionDenied, sysv_ipc.Error, OSError):
        return


def _open(key: int, uid: int) -> sysv_ipc.Semaphore:
    try:
        semaphore = sysv_ipc.Semaphore(key)
        owner = int(semaphore.cuid)
    except sysv_ipc.ExistentialError as error:
        raise ForeignNamespace(
            f"the presence semaphore {key:#x} does not exist in this IPC namespace",
            hint="run in the broker's IPC namespace (docker: --ipc=container:<broker>), or connect over TCP",
        ) from error
    except (sysv_ipc.PermissionsError, PermissionError) as error:
        raise PermissionDenied(
            f"the presence semaphore {key:#x} excludes uid {os.geteuid()}",
            hint="run as the broker's user or as a member of the group shmq",
        ) from error
    if owner != uid:
        raise PermissionDenied(f"the presence semaphore {key:#x} was made by uid {owner}, not by uid {uid}")
    return semaphore


def _raise_once(key: int, semaphore: sysv_ipc.Semaphore) -> None:
    with _lock:
        held = _held.get(key)
        if held is not None and held.pid == os.getpid():
            _held[key] = _Held(held.pid, held.attachments + 1)
            return
        semaphore.undo = True
        semaphore.release()
        _held[key] = _Held(os.getpid(), 1)
