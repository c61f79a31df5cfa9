"""The interface of the tables in shared memory for the broker's logic.

The bridge implements all of it over the store (`bridge/store/tables.py`), tests over dictionaries. A part takes the
narrowest of these protocols that has what it uses.

Invariants every implementation keeps:
 1. Indexes and slots stay valid for the life of the segments. Only when the group table has no unused entry left does
    a deleted group's entry go to another name, with nothing of what it held.
 2. Calls that find nothing return None; calls that cannot do what is asked raise a ShmqError.
 3. No call blocks on a client.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from shmq.shm.unit import Unit


class Topic(NamedTuple):
    """One live topic; `queues` are the queue indexes of queue ids 0, 1, ..."""

    name: str
    read_queues: int
    write_queues: int
    perm: int
    flags: int
    kind: int
    queues: tuple[int, ...]
    flush: int = 0


class QueueBounds(NamedTuple):
    """Queue offsets: the first that is still stored, and the next to be written."""

    offset_min: int
    offset_max: int


class StoreFacts(NamedTuple):
    """How the store is doing: log positions, and records and bytes since the segments were made."""

    log_begin: int
    log_end: int
    durable_end: int
    appended: int
    appended_bytes: int
    refused: int
    epoch: int = 0  # of the master whose records come now


class DiskRoom(NamedTuple):
    """The disk that holds the store, in bytes; what is neither used nor free is kept for the superuser."""

    size: int
    used: int
    free: int


class Clock(Protocol):
    """The broker's clock, by which messages come and go.

    Tests move it, and may let it stand. Connections, answers that are waited for and pauses after a failure go by the
    time that comes in with each call, which always runs.
    """

    @property
    def clock_ms(self) -> int:
        """The time on the clock that stamps records, in milliseconds since the epoch."""

    @property
    def stamp_ms(self) -> int:
        """The least an append that begins now is stamped with: what is due by then is not delivered early.

        It is a little behind `clock_ms`, because appends do not look at the clock each time; not where it stands.
        """

    @property
    def clock_moved_ms(self) -> int:
        """What moves with the clock alone: how far it is ahead of the host's, or where it stands."""

    def steady_ms(self, now_ms: int) -> int:
        """Return the moment `now_ms` on the steady clock: tests move it with the broker's, nothing else sets it."""

    def advance_clock(self, milliseconds: int) -> None:
        """Move the clock ahead, for every process of this broker."""


class Topics(Protocol):
    """The topics of one broker."""

    @property
    def version(self) -> int:
        """A number that grows with each change of topics or groups."""

    def topic(self, name: str) -> Topic | None:
        """Return a live topic."""

    def topics(self) -> list[Topic]:
        """Return every live topic."""

    def topic_names(self) -> list[str]:
        """Return the names of all live topics."""

    def topic_put(self, name: str, *, read_queues: int, write_queues: int, perm: int, flags: int, kind: int) -> None:
        """Create or change a topic."""

    def topic_set_flush(self, name: str, mode: int, /) -> None:
        """Say when messages of a live topic count (TopicFlush)."""

    def topic_delete(self, name: str, /) -> None:
        """Delete a live topic."""

    def born_position(self, name: str) -> int:
        """Return where the log ended when a live topic was made; 0 without such a topic."""


class Groups(Protocol):
    """The groups of one broker and what they are configured with."""

    def group(self, name: str) -> int | None:
        """Return the number of a group."""

    def groups(self) -> list[str]:
        """Return the names of all groups."""

    def group_put(self, name: str, /) -> int:
        """Create a group unless it exists; return its number, which no other name ever has."""

    def group_delete(self, name: str, /) -> None:
        """Delete a group and its offsets."""

    def group_settings(self, group: int, /) -> bytes:
        """Return what a group (by number) is configured with, as `shmq.store.group_settings` writes it."""

    def group_set(self, group: int, settings: bytes, /) -> None:
        """Configure a group (by number)."""


class Names(Topics, Groups, Protocol):
    """Topics and groups."""


class Queues(Topics, Protocol):
    """Topics, and what is stored in their queues."""

    def queue_bounds(self, queue: int) -> QueueBounds:
        """Return which queue offsets exist."""

    def search_time(self, queue: int, time_ms: int, /) -> int:
        """Return the first queue offset stored at or after a time."""

    def units(self, queue: int, queue_offset: int, count: int) -> list[Unit]:
        """Return where the records from a queue offset on lie; may be shorter."""

    def tag_codes(self, queue: int, queue_offset: int, count: int) -> Sequence[int]:
        """Return what `units` says last of each record, without the rest: timers read millions of them."""

    def store_ms(self, queue: int, queue_offset: int) -> int:
        """Return when the record at a queue offset was stored; -1 when there is none."""


class Offsets(Groups, Protocol):
    """Groups, and how far they have read."""

    def group_offsets(self, group: int) -> Mapping[int, int]:
        """Return the places of a group's progress: queue index to slot."""

    def offset_slot(self, group: int, queue: int) -> int | None:
        """Return where a group's progress on a queue is kept, if it has a place."""

    def offset_put(self, group: int, queue: int) -> int:
        """Return that place, made if need be."""

    def committed(self, slot: int, /) -> int:
        """Return the next queue offset to deliver; -1 when none was ever set."""

    def set_committed(self, slot: int, queue_offset: int, /) -> None:
        """Set the next queue offset to deliver."""

    def set_taken(self, slot: int, queue_offset: int, /) -> None:
        """Show how far a group's client was handed messages; of a queue that a local member owns, it says so itself."""


class GroupProgress(Queues, Offsets, Protocol):
    """Queues, how far groups have read them, and their local owners."""

    def offset_owned(self, slot: int) -> bool:
        """Say whether a living local member owns the queue whose progress is kept there."""

    def offset_free(self, slot: int, /) -> None:
        """Take the queue away from the local member that reads it: nothing it acknowledges counts until it is back."""

    def offset_lock(self, slot: int, holder: int, now_ms: int, life_ms: int, /) -> bool:
        """Keep that queue for a client over TCP for so long; False while a local member or another holder has it.

        What is locked stays so when the broker's processes are killed, and no local member takes it. A holder may ask
        again; `now_ms` is the time the logic is given. The time may be rounded up by 64 ms.
        """

    def offset_unlock(self, slot: int, holder: int, /) -> None:
        """End the lock of that holder."""


class Counts(GroupProgress, Protocol):
    """What has been sent and received since the segments were made."""

    def offset_owner(self, slot: int, /) -> int:
        """Return the client slot of the living local member that owns that queue; -1 when none does."""

    def received(self) -> Mapping[int, tuple[int, int]]:
        """Return the generation of each client slot, and how many messages its client has received."""

    def queue_counts(self) -> bytes:
        """Return the end and the bytes ever stored of the queue in every entry of the queue table: two native 64-bit
        words each."""

    def queue_numbers(self) -> bytes:
        """Return which queue that is, of every entry: one native 32-bit word each, all bits set where there is none."""

    def offset_counts(self) -> bytes:
        """Return of every slot two native 64-bit words: the committed offset plus 1 (0: never set), and the group's
        number << 32 | the queue's."""


class StoreState(Clock, Protocol):
    """How the store is doing."""

    def earliest_ms(self) -> int:
        """Return when the oldest record of the log was stored; -1 when there is none."""

    def facts(self) -> StoreFacts:
        """Return how the store is doing."""

    def disk(self) -> DiskRoom:
        """Return how much room the store's disk has."""

    def troubles(self) -> list[tuple[str, str, str]]:
        """Return the checks that fail: name, WARNING or CRITICAL, text."""

    def check_savable(self) -> None:
        """Raise a StoreError where the disk takes no change of the tables, NotMaster where they are another host's."""

    def keeper_silence_seconds(self) -> float:
        """Return how long ago the keeper, which saves the tables, has made a round."""


class ClientSlots(Protocol):
    """The slots of local clients."""

    def client_put(self, pid: int, start: int, role: int) -> int:
        """Hand out a client slot, its wake-up semaphore ready and at zero."""

    def client_generation(self, slot: int, /) -> int:
        """Return in which of its lives a slot is; each time it is handed out is another."""

    def client_is(self, slot: int, pid: int, start: int) -> bool:
        """Say whether a slot is handed out to exactly this process."""

    def client_drop(self, slot: int, /) -> None:
        """Take a slot back; it owns no queue from here on."""

    def dead_clients(self) -> list[int]:
        """Return the slots handed out to processes that no longer live."""


class Tables(Counts, StoreState, ClientSlots, Protocol):
    """All tables of one broker."""


def committed_of(offsets: Offsets, group: str, queue: int) -> int:
    """Return the next offset that a group wants of a queue (by index); -1 when it never committed one."""
    index = offsets.group(group)
    slot = offsets.offset_slot(index, queue) if index is not None else None
    return offsets.committed(slot) if slot is not None else -1
