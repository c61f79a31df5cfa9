"""Tables in dictionaries, so that the broker's logic can be driven through hours without a segment."""

import itertools
from array import array
from collections import Counter

import pytest

from shmq.daemon.broker.settings import BrokerSettings
from shmq.daemon.broker.tables import DiskRoom, QueueBounds, StoreFacts, Topic
from shmq.errors import SegmentFull, StoreError, TopicNotFound
from shmq.shm.unit import Unit
from tests.broker.memory_log import MemoryLog

PID_NAMESPACE = 4026531836


class MemoryTables:
    """`shmq.daemon.broker.tables.Tables` over dictionaries; what a test wants to set, it sets directly."""

    def __init__(self, *, client_max: int = 8, group_max: int = 1000) -> None:
        self.client_max = client_max
        self.group_max = group_max
        self.topic_max = 1 << 20
        self.all_topics: dict[str, Topic] = {}
        self.all_groups: dict[str, int] = {}
        self.slots: dict[tuple[int, int], int] = {}
        self.progress: dict[int, int] = {}
        self.owned: set[int] = set()
        self.owners: dict[int, int] = {}
        self.locks: dict[int, tuple[int, int]] = {}
        self.received_counts: dict[int, int] = {}
        self.bounds: dict[int, QueueBounds] = {}
        self.clients: dict[int, tuple[int, int, int]] = {}
        self.generations: Counter[int] = Counter()
        self.dead: set[tuple[int, int]] = set()
        self.times: dict[int, list[int]] = {}
        self.settings: dict[int, bytes] = {}
        self.queue_bytes: dict[int, int] = {}
        self.store_facts = StoreFacts(0, 0, 0, 0, 0, 0)
        self.keeper_silence = 0.0
        self.unsavable = ""  # why nothing can be saved
        self.failing: list[tuple[str, str, str]] = []  # checks
        self.queue_count = 0
        self.freed: list[int] = []
        self.taken: dict[int, int] = {}
        self.clock = 1_700_000_000_000
        self.stamp_age_ms = 0  # how old the clock of an append may be
        self.ahead_ms = 0
        self._groups = itertools.count()
        self._version = 0

    @property
    def version(self) -> int:
        return self._version

    def topic(self, name: str) -> Topic | None:
        return self.all_topics.get(name)

    def topics(self) -> list[Topic]:
        return list(self.all_topics.values())

    def topic_names(self) -> list[str]:
        return list(self.all_topics)

    def topic_put(self, name: str, *, read_queues: int, write_queues: int, perm: int, flags: int, kind: int) -> None:
        before = self.all_topics.get(name)
        if before is None and len(self.all_topics) >= self.topic_max:
            raise SegmentFull("the topic table is full")
        queues = before.queues if before else ()
        more = max(read_queues, write_queues) - len(queues)
        queues += tuple(range(self.queue_count, self.queue_count + max(0, more)))
        self.queue_count += max(0, more)
        flush = before.flush if before else 0
        self.all_topics[name] = Topic(name, read_queues, write_queues, perm, flags, kind, queues, flush)
        self._version += 1

    def topic_set_flush(self, name: str, mode: int) -> None:
        self.all_topics[name] = self.all_topics[name]._replace(flush=mode)
        self._version += 1

    def topic_delete(self, name: str) -> None:
        if name not in self.all_topics:
            raise TopicNotFound(name)
        del self.all_topics[name]
        self._version += 1

    def group(self, name: str) -> int | None:
        return self.all_groups.get(name)

    def groups(self) -> list[str]:
        return list(self.all_groups)

    def group_put(self, name: str) -> int:
        if name not in self.all_groups:
            if len(self.all_groups) >= self.group_max:
                raise SegmentFull("the group table is full")
            self.all_groups[name] = next(self._groups)
        return self.all_groups[name]

    def group_delete(self, name: str) -> None:
        group = self.all_groups.pop(name)
        for (owner, _), slot in self.slots.items():
            if owner == group:
                self.progress.pop(slot, None)
        self.settings.pop(group, None)

    def group_settings(self, group: int) -> bytes:
        return self.settings.get(group, b"")

    def group_set(self, group: int, settings: bytes) -> None:
        self.settings[group] = settings
        self._version += 1

    def group_offsets(self, group: int) -> dict[int, int]:
        return {queue: slot for (owner, queue), slot in self.slots.items() if owner == group}

    def offset_slot(self, group: int, queue: int) -> int | None:
        return self.slots.get((group, queue))

    def offset_put(self, group: int, queue: int) -> int:
        return self.slots.setdefault((group, queue), len(self.slots))

    def committed(self, slot: int) -> int:
        return self.progress.get(slot, -1)

    def set_committed(self, slot: int, queue_offset: int) -> None:
        self.progress[slot] = queue_offset

    def set_taken(self, slot: int, queue_offset: int) -> None:
        self.taken[slot] = queue_offset

    def offset_free(self, slot: int) -> None:
        self.freed.append(slot)

    def offset_owned(self, slot: int) -> bool:
        return slot in self.owned

    def offset_owner(self, slot: int) -> int:
        return self.owners.get(slot, -1)

    def offset_lock(self, slot: int, holder: int, now_ms: int, life_ms: int) -> bool:
        held_by, until_ms = self.locks.get(slot, (holder, 0))
        if slot in self.owned or (held_by != holder and until_ms >= now_ms):
            return False
        self.locks[slot] = holder, now_ms + life_ms
        return True

    def offset_unlock(self, slot: int, holder: int) -> None:
        if slot in self.locks and self.locks[slot][0] == holder:
            del self.locks[slot]

    def received(self) -> dict[int, tuple[int, int]]:
        return {slot: (self.generations[slot], count) for slot, count in self.received_counts.items()}

    def queue_bounds(self, queue: int) -> QueueBounds:
        return self.bounds.get(queue, QueueBounds(0, 0))

    def born_position(self, name: str) -> int:
        return 4096 if name in self.all_topics else 0

    def search_time(self, queue: int, time_ms: int) -> int:
        return sum(1 for stored_ms in self.times.get(queue, ()) if stored_ms < time_ms)

    @property
    def clock_ms(self) -> int:
        return self.clock

    @property
    def stamp_ms(self) -> int:
        return self.clock - self.stamp_age_ms

    @property
    def clock_moved_ms(self) -> int:
        return self.ahead_ms

    def advance_clock(self, milliseconds: int) -> None:
        self.clock += milliseconds
        self.ahead_ms += milliseconds

    def steady_ms(self, now_ms: int) -> int:
        return now_ms + self.ahead_ms

    def units(self, queue: int, queue_offset: int, count: int) -> list[Unit]:
        bounds = self.queue_bounds(queue)
        first, end = max(queue_offset, bounds.offset_min), min(queue_offset + count, bounds.offset_max)
        return [Unit(1000 * offset, 100, 65) for offset in range(first, end)]

    def tag_codes(self, queue: int, queue_offset: int, count: int) -> list[int]:
        return [unit.tag_code for unit in self.units(queue, queue_offset, count)]

    def store_ms(self, queue: int, queue_offset: int) -> int:
        times = self.times.get(queue, ())
        return times[queue_offset] if 0 <= queue_offset < len(times) else -1

    def earliest_ms(self) -> int:
        return min((times[0] for times in self.times.values() if times), default=-1)

    def queue_counts(self) -> bytes:
        counts = array("Q", bytes(16 * self.queue_count))
        for queue in self.bounds.keys() | self.queue_bytes.keys():
            counts[2 * queue : 2 * queue + 2] = array(
                "Q", (self.queue_bounds(queue).offset_max, self.queue_bytes.get(queue, 0))
            )
        return counts.tobytes()

    def queue_numbers(self) -> bytes:
        return array("I", range(self.queue_count)).tobytes()

    def offset_counts(self) -> bytes:
        counts = array("Q")
        for (group, queue), slot in sorted(self.slots.items(), key=lambda item: item[1]):
            counts.extend((self.committed(slot) + 1, group << 32 | queue))
        return counts.tobytes()

    def facts(self) -> StoreFacts:
        return self.store_facts

    def disk(self) -> DiskRoom:
        return DiskRoom(1 << 30, 1 << 28, 3 << 28)

    def troubles(self) -> list[tuple[str, str, str]]:
        return self.failing

    def check_savable(self) -> None:
        if self.unsavable:
            raise StoreError(self.unsavable)

    def keeper_silence_seconds(self) -> float:
        return self.keeper_silence

    def client_put(self, pid: int, start: int, role: int) -> int:
        free = [slot for slot in range(self.client_max) if slot not in self.clients]
        if not free:
            raise SegmentFull("all client slots are taken")
        self.clients[free[0]] = (pid, start, role)
        self.generations[free[0]] += 1
        return free[0]

    def client_generation(self, slot: int) -> int:
        return self.generations[slot]

    def client_is(self, slot: int, pid: int, start: int) -> bool:
        return slot in self.clients and self.clients[slot][:2] == (pid, start)

    def client_drop(self, slot: int) -> None:
        self.clients.pop(slot, None)

    def dead_clients(self) -> list[int]:
        return [slot for slot, (pid, start, _) in self.clients.items() if (pid, start) in self.dead]


@pytest.fixture(scope="session")
def new_tables() -> type[MemoryTables]:
    """The class itself, for tests that need fresh tables many times."""
    return MemoryTables


@pytest.fixture
def tables() -> MemoryTables:
    return MemoryTables()


@pytest.fixture
def log(tables: MemoryTables) -> MemoryLog:
    return MemoryLog(tables)


@pytest.fixture
def settings() -> BrokerSettings:
    return BrokerSettings(
        broker_name="default",
        version="0.1.0",
        abi=1,
        generation=0xC0FFEE,
        pid_namespace=PID_NAMESPACE,
        instance={"broker_name": "default"},
    )
