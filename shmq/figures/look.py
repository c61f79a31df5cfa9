"""The parts of one snapshot. Each is read on its own: a part that fails becomes a fault and leaves the others as they
are.

What is kept between two snapshots is in `observer.py`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from shmq.errors import ForeignNamespace, PermissionDenied, ShmqError
from shmq.figures.clients import collect_clients
from shmq.figures.limits import DEFAULT_MARKS, collect_disk, collect_memory
from shmq.figures.log_state import collect_log, keeper_silence_seconds
from shmq.figures.processes import collect_processes
from shmq.figures.segments import collect_segments
from shmq.figures.snapshot import (
    Broker,
    Client,
    Counted,
    Disk,
    Fault,
    Group,
    Log,
    Memory,
    Presence,
    Process,
    Recovery,
    Refusal,
    Replication,
    Scrub,
    Security,
    Segment,
    Topic,
)
from shmq.shm.addresses import read_addresses
from shmq.shm.core import READ_ONLY_REASONS, Store, StoreFigures
from shmq.shm.discovery import none_runs
from shmq.shm.instance import Instance, read_instance
from shmq.shm.liveness import ProcessMark, boot_id, is_alive, visible_pid_namespace
from shmq.shm.place import Place
from shmq.shm.presence import presence_of_key
from shmq.store.quarantine import count_quarantined
from shmq.store.scrub_state import read_scrub_state

Part = TypeVar("Part")

_MARK_NAMES = ("disk_warn_percent", "disk_force_percent", "disk_refuse_percent")
_ONLY_READ = frozenset({"exporter"})
_PRESENCE_TRIES = 4
_PRESENCE_PAUSE_SECONDS = 0.02
_Members = tuple[tuple[Client, ...], tuple[Topic, ...], tuple[Group, ...], tuple[Refusal, ...], Security | None]
_NO_MEMBERS: _Members = ((), (), (), (), None)


class Look:
    """One look at one place; `faults` grows as parts fail."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.faults: list[Fault] = []
        self.instance = self.part("instance", self._read_instance)

    def part(self, what: str, read: Callable[[], Part]) -> Part | None:
        """Return what `read` returns, or None and a fault."""
        try:
            return read()
        except (ShmqError, OSError) as error:
            hint = error.hint if isinstance(error, ShmqError) else ""
            self.faults.append(Fault(what, type(error).__name__, str(error), hint))
            return None

    def _read_instance(self) -> Instance:
        path = self.place.instance_path
        try:
            instance = read_instance(path)
        except PermissionError as error:
            raise PermissionDenied(
                f"{path} may not be read by uid {os.geteuid()}", hint="run as the broker's user or join its group"
            ) from error
        except NotADirectoryError:
            instance = None
        if instance is None:
            raise none_runs(self.place)
        return instance

    def broker(self, store: Store | None) -> Broker:
        """The broker's identity; of a broker that left nothing only the name."""
        instance, place = self.instance, self.place
        addresses = read_addresses(place.addresses_path)
        reason = None if store is None else store.read_only
        return Broker(
            name=place.broker_name if instance is None else instance.broker_name,
            url=place.url,
            runtime_dir=str(place.runtime_dir),
            store_path=instance.store_path if instance else "",
            generation=f"{instance.generation:016x}" if instance else "",
            kind=instance.kind if instance else "",
            version=instance.version if instance else "",
            abi=instance.abi if instance else 0,
            uid=instance.uid if instance else -1,
            mode=instance.mode if instance else 0,
            served=instance is not None and self._knows_its_pids() and is_alive(instance.processes.get("supervisor")),
            flush_sync=None if store is None else bool(store.head["flush_sync"]),
            retired=None if store is None else store.retired,
            read_only=reason,
            read_only_text=READ_ONLY_REASONS.get(reason, f"reason {reason}") if reason else "",
            keeper_beat_age=None if store is None else keeper_silence_seconds(store),
            tcp=addresses.get("broker", ""),
            nameserver=addresses.get("nameserver", ""),
            quarantined=count_quarantined(Path(instance.store_path)) if instance else 0,
        )

    def members(self, store: Store | None, depth: str) -> _Members:
        """Clients, topics, groups, clients in no group, the protection of the ports; of a quick look clients without
        names."""
        if store is None:
            return _NO_MEMBERS
        if depth == "quick":
            return (self.part("clients", lambda: collect_clients(StoreFigures(store), None)) or (), (), (), (), None)
        from shmq.figures.progress import collect_groups, collect_topics
        from shmq.protocol.roster import read_roster

        assert self.instance is not None
        generation = f"{self.instance.generation:016x}"
        roster = self.part("roster", lambda: read_roster(self.place.roster_path, generation))
        clients = self.part("clients", lambda: collect_clients(StoreFigures(store), roster)) or ()
        topics, queues = self.part("topics", lambda: collect_topics(store)) or ((), {})
        groups = self.part("groups", lambda: collect_groups(store, queues, clients, roster, oldest=True)) or ()
        now_ms = time.monotonic_ns() // 1_000_000
        refused = tuple(
            Refusal(entry.group, entry.client_id, entry.address, entry.reason, max(0, now_ms - entry.at_ms) / 1000)
            for entry in (roster.refused if roster else ())
        )
        said = roster.security if roster else None
        security = Security(said.certificate, said.begins, said.ends, said.kept) if said else None
        return clients, topics, groups, refused, security

    def processes(self, clients: tuple[Client, ...], depth: str) -> tuple[Process, ...]:
        """The broker's processes and those of its clients."""
        marks = self.instance.processes if self.instance and self._knows_its_pids() else {}
        attached = [(ProcessMark(client.pid, client.start), client.client_id) for client in clients if client.pid]
        return self.part("processes", lambda: collect_processes(marks, attached, depth=depth)) or ()

    def _knows_its_pids(self) -> bool:
        """Whether the numbers of its processes mean the same here: this boot, this PID namespace."""
        if self.instance is None or self.instance.boot_id != boot_id():
            return False
        try:
            return self.instance.pid_namespace == visible_pid_namespace()
        except ForeignNamespace:
            return False

    def presence(self, store: Store | None) -> Presence:
        """The kernel's count beside ours: every process that maps the segments to write has raised the semaphore.

        The exporter is recorded, and only reads: it is in neither.

        A client that comes or goes is in one count before it is in the other, so counts that differ are taken again.
        """
        instance = self.instance
        if instance is None or not self._knows_its_pids():
            return Presence(None, 0)
        for _ in range(_PRESENCE_TRIES):
            own = (mark for role, mark in instance.processes.items() if role not in _ONLY_READ)
            marks = {mark for mark in own if is_alive(mark)}
            clients = StoreFigures(store).clients() if store is not None else ()
            attached = (ProcessMark(client.pid, client.start) for client in clients if client.state)
            marks.update(filter(is_alive, attached))
            presence = Presence(presence_of_key(instance.presence_key, uid=instance.uid), len(marks))
            if presence.counted in (None, presence.registered):
                break
            time.sleep(_PRESENCE_PAUSE_SECONDS)
        return presence

    def segments(self) -> tuple[Segment, ...]:
        """Segments of this and of other brokers."""
        return self.part("segments", lambda: collect_segments(self.place, self.instance)) or ()

    def memory(self) -> Memory | None:
        """Limits of the broker's control group, of ours while no broker lives."""
        keeper = self.instance.processes.get("keeper") if self.instance and self._knows_its_pids() else None
        return self.part("memory", lambda: collect_memory(keeper.pid if keeper and is_alive(keeper) else "self"))

    def log(self, store: Store | None, depth: str) -> Log | None:
        """The log; how much of it is in the page cache in a deep look only."""
        if store is None or self.instance is None:
            return None
        path = self.instance.store_path
        log = self.part("log", lambda: collect_log(store, path))
        if log is None or depth != "deep":
            return log
        from shmq.figures.residency import log_paths, residency

        cached = self.part("residency", lambda: residency(log_paths(path)))
        return log if cached is None else log._replace(resident_bytes=cached[0], examined_bytes=cached[1])

    def disk(self) -> Disk | None:
        """The store's disk."""
        instance = self.instance
        if instance is None:
            return None
        warn, force, refuse = (
            instance.settings.get(name, default) for name, default in zip(_MARK_NAMES, DEFAULT_MARKS, strict=True)
        )
        # The log may be moved to a disk of its own, and it is what grows.
        place = instance.log_directory if os.path.islink(instance.log_directory) else instance.store_path
        return self.part("disk", lambda: collect_disk(place, (warn, force, refuse)))

    def recovery(self) -> Recovery | None:
        """The recovery that filled the segments; None where the broker did not say."""
        told = self.instance.recovery if self.instance else {}
        if "at_ms" not in told:
            return None
        return Recovery(
            age=max(0.0, time.time() - told["at_ms"] / 1000),
            seconds=told.get("took_ms", 0) / 1000,
            clean=bool(told.get("clean", 0)),
            records=told.get("records", 0),
            queues=told.get("queues", 0),
            zeroed_bytes=told.get("zeroed_bytes", 0),
            damages=told.get("damages", 0),
            units_repaired=told.get("units_repaired", 0),
            tables_restored=told.get("tables_restored", 0),
            marks_restored=told.get("marks_restored", 0),
            entries_ignored=told.get("entries_ignored", 0),
            restored_files=_tables(told.get("restored_files", 0)),
            ignored_files=_tables(told.get("ignored_files", 0)),
            foreign_files=told.get("foreign_files", 0),
            lost_messages=told.get("lost_messages", 0),
            damaged_messages=told.get("damaged_messages", 0),
        )

    def replication(self) -> Replication | None:
        """Slaves or master on other hosts."""
        path = self.place.links_path
        if not path.exists():
            return None
        from shmq.figures.replication import collect_replication

        return self.part("replication", lambda: collect_replication(path))

    def scrub(self) -> Scrub | None:
        """The findings of the checks in the background; None before the first one."""
        state = read_scrub_state(Path(self.instance.store_path)) if self.instance else None
        if state is None:
            return None
        return Scrub(
            age=max(0.0, time.time() - state.finished_ms / 1000) if state.finished_ms else None,
            checked_bytes=state.checked_bytes,
            damages=state.damages,
            units_rebuilt=state.units_rebuilt,
            tables_rewritten=state.tables_rewritten,
            indexes_rebuilt=state.indexes_rebuilt,
        )

    def counted(self) -> Counted | None:
        """The counts that keeper and bridges keep of themselves."""
        if self.instance is None:
            return None
        from shmq.figures.counted import collect_counted

        return collect_counted(self.instance)


def _tables(files: int) -> tuple[str, ...]:
    if not files:
        return ()
    from shmq.store.config import table_names

    return tuple(table_names(files))
