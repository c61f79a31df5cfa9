"""Takes the runtime directory and the store for one supervisor alone, before it starts anything.

Two supervisors over one store would both recover it and append to it.

    runtime directory   flock on the directory itself
    store               shmq.store.lock; the children inherit its descriptors

Rules: (1) a living broker is never disturbed: its pid is named and the start refused;
(2) children that a dead supervisor left and that do not leave by themselves (stopped, stuck) are killed, if
instance.json names them with pid and start time; nothing else is ever killed.
"""

from __future__ import annotations

import fcntl
import os
import signal

from shmq.daemon.event_log import EventLog
from shmq.errors import SegmentError, StoreLocked
from shmq.options.broker import Options
from shmq.shm.access import access_rights
from shmq.shm.instance import Instance, read_instance
from shmq.shm.liveness import is_alive, signal_proven
from shmq.shm.place import Place, prepare_runtime
from shmq.shm.replacing import remove_unfinished
from shmq.store.layout import StoreLayout
from shmq.store.lock import StoreLock

_WAIT_SECONDS = 3.0


class Guard:
    """The held locks of one supervisor."""

    def __init__(self, directory: int, lock: StoreLock) -> None:
        self._directory = directory
        self._lock = lock

    @classmethod
    def take(cls, options: Options, log: EventLog) -> Guard:
        """Take both locks.

        Raises:
            StoreLocked: another broker owns the directory or the store.
            PermissionDenied, StoreError: the directories cannot be used.
        """
        access = access_rights()
        place = options.place
        prepare_runtime(place, mode=access.directory_mode, gid=access.gid)
        directory = os.open(place.runtime_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            _lock_directory(directory, place)
            remove_unfinished(place.runtime_dir)
            layout = StoreLayout(options.store_path, access)
            layout.prepare()
            lock = _lock_store(layout, place, log)
            if lock.unlocked:
                log("store.directory_not_locked", store=str(layout.root), reason=lock.unlocked)
            return cls(directory, lock)
        except BaseException:
            os.close(directory)
            raise

    @property
    def descriptors(self) -> tuple[int, ...]:
        """Descriptors for the children, so that the store stays locked while one of them lives."""
        return self._lock.descriptors

    def release(self) -> None:
        """Give both up."""
        self._lock.release()
        os.close(self._directory)


def _lock_directory(directory: int, place: Place) -> None:
    try:
        fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        instance = recorded_instance(place)
        owner = instance.processes.get("supervisor") if instance else None
        raise StoreLocked(
            f"the runtime directory {place.runtime_dir} belongs to a running broker, "
            f"pid {owner.pid if owner else 'unknown'}",
            hint="stop that broker, or give this one another name: shmq serve --name NAME",
        ) from error


def _lock_store(layout: StoreLayout, place: Place, log: EventLog) -> StoreLock:
    try:
        return StoreLock.acquire(layout, wait_seconds=_WAIT_SECONDS)
    except StoreLocked:
        if not _kill_leftovers(place, layout, log):
            raise
    return StoreLock.acquire(layout, wait_seconds=_WAIT_SECONDS)


def _kill_leftovers(place: Place, layout: StoreLayout, log: EventLog) -> bool:
    instance = recorded_instance(place)
    if instance is None or instance.store_path != str(layout.root) or is_alive(instance.processes.get("supervisor")):
        return False
    killed = False
    for role, mark in instance.processes.items():
        if role != "supervisor" and signal_proven(mark, signal.SIGKILL):
            log("child.leftover_killed", role=role, pid=mark.pid)
            killed = True
    return killed


def recorded_instance(place: Place) -> Instance | None:
    """Return what instance.json describes, None when it is missing or unreadable."""
    try:
        return read_instance(place.instance_path)
    except SegmentError:
        return None
