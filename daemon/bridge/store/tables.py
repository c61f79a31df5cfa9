"""The broker's tables as they are in shared memory.

It implements the broker's `Tables` with calls of the store, and turns their errors into ours.

Several bridges may work on the same tables; the core lets one after the other change them. Topics are kept until the
tables change. An offset slot, once seen, stays that of its group and of its entry of the queue table; the number that
stands for it here says of which of the entry's queues.
"""

import errno
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from shmq.daemon.bridge.store.semaphore import prepare_semaphore
from shmq.daemon.broker.tables import DiskRoom, QueueBounds, StoreFacts, Topic
from shmq.errors import NotMaster, SegmentFull, ShmqError, StoreError, TopicNotFound
from shmq.figures.health import attached_findings
from shmq.figures.log_state import keeper_silence_seconds
from shmq.figures.verdict import Verdict
from shmq.plain_file import write_whole
from shmq.shm.access import Access
from shmq.shm.core import STAMP_AGE_MS, BrokerTables, Store, StoreFigures, process_died
from shmq.shm.instance import Instance
from shmq.shm.place import Place
from shmq.shm.unit import Unit, tag_codes_of, units_of
from shmq.store.atomic import cure_of

_CLIENT_FREE = 0  # enum shmq_client_state
_AGAIN = "try again in a second: the store keeper frees what deleted topics had; shmq health says if it does not"
_INDEX_SHIFT = 32  # of what `topic_marks` says of a topic
_GROUP_SHIFT, _QUEUE_MASK = 32, 0xFFFFFFFF  # of a slot, and of the second word of `offset_counts`
_PROBE = bytes(4096)  # a block
_PROBE_HOLDS_SECONDS = 0.05  # half the time until the keeper saves a table; trying costs more than a change does
_END = "\0"  # ends a name in the segment, so no name that exists holds it


class StoreTables:
    """`shmq.daemon.broker.tables.Tables` over one generation of segments.

    Args:
        place: where the broker is, if it may be asked how it is.
    """

    def __init__(self, store: Store, instance: Instance, access: Access, place: Place | None = None) -> None:
        self._store = store
        self._place = place
        self._figures = figures = StoreFigures(store)
        self._tables = tables = BrokerTables(store)
        self._instance = instance
        self._access = access
        self._slots: dict[int, list[int]] = {}  # by entry of the group table, as the table of slots numbers them
        self._group_mask = store.head["group_mask"]
        self._slots_known = 0
        self._savable_until = float("-inf")
        self._learn_slots()
        self._known: dict[str, Topic] = {}
        self._known_version = -1
        self._listed: list[Topic] = []
        self._by_mark: dict[int, Topic] = {}  # the same, by index and version of the entry
        self._listed_version = -1
        # What the core does as it is asked here.
        self.topic_delete = tables.topic_delete
        self.group_delete = tables.group_delete
        self.group_settings = store.group_settings
        self.group_set = tables.group_set
        self.committed = store.offset_get
        self.set_committed = store.offset_set
        self.set_taken = tables.offset_show
        self.offset_put = tables.offset_put
        self.offset_free = tables.offset_free
        self.offset_owner = store.offset_owner
        self.offset_lock = tables.offset_lock
        self.offset_unlock = tables.offset_unlock
        self.search_time = store.search_time
        self.queue_counts = figures.queue_counts
        self.queue_numbers = figures.queue_numbers
        self.offset_counts = figures.offset_counts
        self.client_drop = tables.client_drop
        self.client_generation = tables.client_generation
        self.advance_clock = tables.clock_advance

    @property
    def version(self) -> int:
        return self._store.table_version

    @property
    def clock_ms(self) -> int:
        return self._store.clock_ms

    @property
    def stamp_ms(self) -> int:
        return self._store.clock_ms - (0 if self._store.clock_ahead_ms is None else STAMP_AGE_MS)

    @property
    def clock_moved_ms(self) -> int:
        ahead_ms = self._store.clock_ahead_ms
        return self._store.clock_ms if ahead_ms is None else ahead_ms

    @property
    def standing_clock(self) -> Callable[[], float] | None:
        """The seconds of a broker's clock that stands, for tests; None where it runs."""
        return (lambda: self._store.clock_ms / 1000) if self._store.clock_ahead_ms is None else None

    def steady_ms(self, now_ms: int) -> int:
        ahead_ms = self._store.clock_ahead_ms
        return self._store.clock_ms if ahead_ms is None else now_ms + ahead_ms

    def topic(self, name: str) -> Topic | None:
        # Read before the topic: a change in between makes what is kept too new, never too old.
        version = self._store.table_version
        if version != self._known_version:
            self._known.clear()
            self._known_version = version
        topic = self._known.get(name)
        if topic is None:
            index = self._store.topic_find(name) if _END not in name else -1
            if index < 0:
                return None  # not kept: names that do not exist have no end
            topic = self._known[name] = _topic(self._store.topic(index))
        return topic

    def topics(self) -> list[Topic]:
        # Read before the list: a change in between makes the list too new, never too old.
        version = self.version
        if version != self._listed_version:
            marks = memoryview(self._store.topic_marks()).cast("Q")
            # Of many topics few change at once.
            self._by_mark = {mark: topic for mark in marks if (topic := self._marked(mark)) is not None}
            self._listed = list(self._by_mark.values())
            self._listed_version = version
        return self._listed

    def _marked(self, mark: int) -> Topic | None:
        if (topic := self._by_mark.get(mark)) is None:
            with suppress(TopicNotFound):  # it went meanwhile
                topic = _topic(self._store.topic(mark >> _INDEX_SHIFT))
        return topic

    def topic_names(self) -> list[str]:
        return [topic.name for topic in self.topics()]

    def topic_put(self, name: str, *, read_queues: int, write_queues: int, perm: int, flags: int, kind: int) -> None:
        try:
            self._tables.topic_put(
                name, read_queues=read_queues, write_queues=write_queues, perm=perm, flags=flags, kind=kind
            )
        except SegmentFull as error:
            raise self._full(name, max(read_queues, write_queues)) from error

    def _full(self, name: str, wanted: int) -> SegmentFull:
        """Say which table has no room, how much of it deleted topics hold, and what frees it."""
        head = self._store.head
        live = sum(len(topic.queues) for topic in self.topics())
        stats = self._figures.stats()
        taken = stats["queues_used"]
        has_room = wanted <= head["queue_max"] - taken
        # The keeper frees queues between the refusal and this look, so room alone does not say which table was full.
        if has_room and stats["topics_used"] >= head["topic_max"]:
            used, most = len(self._store.topics()), head["topic_max"]
            gone = stats["topics_used"] - used
            return SegmentFull(
                f"topic {name!r} has no place: {used} of {most} topics are there, {gone} were deleted just now",
                hint=_AGAIN if gone else "shmq topic delete NAME for one that is not needed",
                used=used,
                limit=most,
            )
        return SegmentFull(
            f"topic {name!r} needs {wanted} queues: {taken} of {head['queue_max']} are taken, "
            f"{taken - live} of them by topics that were deleted",
            hint=_AGAIN if has_room or taken > live else f"fewer queues: shmq topic create {name} --queues 1",
            used=taken,
            limit=head["queue_max"],
        )

    def topic_set_flush(self, name: str, mode: int, /) -> None:
        self._tables.topic_set_flush(self._store.topic_find(name), mode)

    def group(self, name: str) -> int | None:
        index = self._store.group_find(name) if _END not in name else -1
        return index if index >= 0 else None

    def group_put(self, name: str, /) -> int:
        try:
            return self._tables.group_put(name)
        except SegmentFull as error:
            most = self._store.head["group_max"]
            raise SegmentFull(
                f"group {name!r} has no place: {most} of {most} groups are there",
                hint="shmq group delete NAME for one that is not needed: its place is used again at once",
                used=most,
                limit=most,
            ) from error

    def groups(self) -> list[str]:
        return [name for _, name in self._store.groups()]

    def group_offsets(self, group: int) -> Mapping[int, int]:
        self._learn_slots()
        slots = (self._figures.offset_place(entry) for entry in self._slots.get(group & self._group_mask, ()))
        return {slot & _QUEUE_MASK: slot for slot in slots if slot >> _GROUP_SHIFT == group}

    def offset_slot(self, group: int, queue: int) -> int | None:
        slot = self._tables.offset_find(group, queue)
        return slot if slot >= 0 else None

    def _learn_slots(self) -> None:
        """Take note of places that others have made since the last look."""
        # From there on only: a question about a group that never read a queue comes here each time.
        counts = memoryview(self._figures.offset_counts(self._slots_known)).cast("Q")
        for word in counts[1::2]:
            self._slots.setdefault(word >> _GROUP_SHIFT & self._group_mask, []).append(self._slots_known)
            self._slots_known += 1

    def offset_owned(self, slot: int) -> bool:
        return self._store.offset_owner(slot) >= 0

    def received(self) -> Mapping[int, tuple[int, int]]:
        clients = [client for client in self._figures.clients() if client.state != _CLIENT_FREE]
        return {client.slot: (self.client_generation(client.slot), client.received) for client in clients}

    def queue_bounds(self, queue: int) -> QueueBounds:
        row = self._store.queue(queue)
        return QueueBounds(row.offset_min, row.offset_max)

    def born_position(self, name: str) -> int:
        index = self._store.topic_find(name) if _END not in name else -1
        return int(self._store.topic(index)["born_position"]) if index >= 0 else 0

    def units(self, queue: int, queue_offset: int, count: int) -> list[Unit]:
        offset_min, offset_max = self.queue_bounds(queue)
        if not offset_min <= queue_offset < offset_max:
            return []
        return list(units_of(self._store.units_stored(queue, queue_offset, count)))

    def tag_codes(self, queue: int, queue_offset: int, count: int) -> list[int]:
        offset_min, offset_max = self.queue_bounds(queue)
        if not offset_min <= queue_offset < offset_max:
            return []
        return tag_codes_of(self._store.units_stored(queue, queue_offset, count))

    def store_ms(self, queue: int, queue_offset: int) -> int:
        for unit in self.units(queue, queue_offset, 1):
            with suppress(ShmqError):
                return self._store.message_at(unit.log_position, unit.record_bytes).store_ms
        return -1

    def earliest_ms(self) -> int:
        with suppress(ShmqError):
            return self._store.message_at(self._store.log_begin).store_ms
        return -1

    def facts(self) -> StoreFacts:
        store = self._store
        stats = self._figures.stats()
        return StoreFacts(
            log_begin=store.log_begin,
            log_end=store.log_end,
            durable_end=store.durable_end,
            appended=stats["appended"],
            appended_bytes=stats["appended_bytes"],
            refused=stats["busy"],
            epoch=store.epoch,
        )

    def troubles(self) -> list[tuple[str, str, str]]:
        found = [] if self._place is None else attached_findings(self._place, self._store)
        return [(each.name, each.verdict, each.text) for each in found if each.verdict is not Verdict.OK]

    def disk(self) -> DiskRoom:
        try:
            disk = os.statvfs(self._instance.store_path)
        except OSError as error:
            raise StoreError(f"the store's disk cannot be asked for its room: {error.strerror}") from error
        used_blocks = disk.f_blocks - disk.f_bfree
        return DiskRoom(disk.f_blocks * disk.f_frsize, used_blocks * disk.f_frsize, disk.f_bavail * disk.f_frsize)

    def check_savable(self) -> None:
        if self._store.retired or self._store.standing:
            raise NotMaster(
                "nothing was changed: this broker is the master no more", hint="shmq cluster status says which one is"
            )
        # By trying: a file system that met an error of its disk calls itself writable (shmq.store.mounts).
        now = time.monotonic()
        if now < self._savable_until:
            return
        directory = os.path.join(self._instance.store_path, "config")
        try:
            descriptor = os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
            try:
                write_whole(descriptor, _PROBE, 0)
            finally:
                os.close(descriptor)
        except OSError as error:
            if error.errno != errno.EOPNOTSUPP:
                raise StoreError(
                    f"nothing was changed, as it cannot be saved in {directory}: {error.strerror}", hint=cure_of(error)
                ) from error
        self._savable_until = now + _PROBE_HOLDS_SECONDS

    def keeper_silence_seconds(self) -> float:
        return keeper_silence_seconds(self._store) or 0.0

    def client_put(self, pid: int, start: int, role: int) -> int:
        slot = self._tables.client_put(pid, start, role)
        with self._dropped_on_error(slot):
            prepare_semaphore(f"{self._instance.semaphore_prefix}{slot}", mode=self._access.mode, gid=self._access.gid)
        return slot

    @contextmanager
    def _dropped_on_error(self, slot: int) -> Iterator[None]:
        try:
            yield
        except ShmqError:
            self.client_drop(slot)
            raise

    def client_is(self, slot: int, pid: int, start: int) -> bool:
        return any((number, holder, since) == (slot, pid, start) for number, holder, since in self._clients())

    def dead_clients(self) -> list[int]:
        return [slot for slot, pid, start in self._clients() if process_died(pid, start)]

    def _clients(self) -> list[tuple[int, int, int]]:
        """(slot, pid, start) of every slot that is handed out."""
        clients = self._figures.clients()
        return [(client.slot, client.pid, client.start) for client in clients if client.state != _CLIENT_FREE]


def _topic(entry: dict[str, Any]) -> Topic:
    return Topic(
        name=entry["name"],
        read_queues=entry["read_queues"],
        write_queues=entry["write_queues"],
        perm=entry["perm"],
        flags=entry["flags"],
        kind=entry["kind"],
        queues=tuple(entry["queues"]),
        flush=entry["flush"],
    )
