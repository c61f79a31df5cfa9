"""The figures of a broker of this host, read from its mapped segments: the one place that joins their tables.

    topics ─┬─ queues ─┬─ offsets ─── groups        control and readers segments
            │          ├─ lost                      readers segment
            │          └─ popped                    roster.json, up to a second old
            └─ clients (owners of queues)           readers segment

Nothing here needs a daemon, a socket or a lock: a list of thousands of topics is a loop over mapped memory, and it
works while the broker is busy, stopped in a debugger or dead.

Rule: an offset of a deleted topic is none of a topic that has its name again; its queue is of another life.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from shmq.errors import TopicNotFound, UsageError
from shmq.figures.model import QueueInfo, QueueLag, TopicInfo, flush_name, kind_name
from shmq.shm.core import TOPIC_LIVE, Store, StoreFigures

_made = tuple.__new__

Popped = Mapping[tuple[str, str, int], int]
"""(group, topic, queue id) -> messages popped and not settled."""


class QueueOf(NamedTuple):
    """A queue, its topic, and its bounds: read once, so that all that is made of it tells of the same moment."""

    topic: str
    queue_id: int
    queue_index: int
    offset_min: int
    offset_max: int


class GroupOffset(NamedTuple):
    """The table's entry of one group on one queue; `cleaned_at` is when messages were last counted as lost, or 0.

    `number` is the entry's in the table and in the arrays of `StoreFigures`; it is another's once `slot` differs.
    """

    number: int
    slot: int
    group: str
    queue: QueueOf
    committed: int
    owner: int
    updated_ms: int
    in_flight: int
    cleaned: int
    cleaned_at: float


def group_offsets(
    store: Store, groups: Mapping[int, str], queue_of: Callable[[int], QueueOf | None], popped: Callable[[], Popped]
) -> Iterator[GroupOffset]:
    """Yield the offsets of groups, joined with queues, losses and what was popped, in the order of the table.

    Args:
        groups: group number -> name, of those wanted.
        queue_of: returns the queue of an index; None for one whose topic is deleted.
        popped: called once, if there is an offset of these groups.
    """
    lost = {(group, queue): (count, at) for group, queue, count, at in store.offsets_lost()}
    in_flight: Popped | None = None
    hidden, cleaned, at = 0, 0, 0
    for number, entry in enumerate(store.offsets()):
        group, index = entry.group, entry.queue
        name = groups.get(group)
        queue = None if name is None else queue_of(index)
        if name is None or queue is None:
            continue  # not wanted, or of a former life, until the keeper has freed it
        if in_flight is None:
            in_flight = popped()
        if in_flight:
            hidden = in_flight.get((name, queue.topic, queue.queue_id), 0)
        if lost:
            cleaned, at = lost.get((group, index), (0, 0))
        # By place and without a call into Python: there may be ten thousand of them.
        slot, committed, owner, updated_ms = entry.slot, entry.committed, entry.owner, entry.updated_ms
        yield _made(GroupOffset, (number, slot, name, queue, committed, owner, updated_ms, hidden, cleaned, at))


class MappedFigures:
    """The figures of the broker whose segments a store maps; a `BrokerFigures`.

    Args:
        store: returns the mapped segments, which are others once the broker has given its own up.
        popped: returns what members have popped and not settled (`shmq.protocol.roster.popped_messages`).
    """

    def __init__(self, store: Callable[[], Store], popped: Callable[[], Popped]) -> None:
        self._mapped = store
        self._popped = popped

    def topics(self, names: Collection[str] | None = None) -> list[TopicInfo]:
        store = self._mapped()
        if names is None:
            return sorted(_topic_info(store, entry) for entry in store.topics())
        found = []
        for name in set(names):
            if (index := store.topic_find(name)) >= 0:
                with contextlib.suppress(TopicNotFound):  # it went meanwhile
                    found.append(_topic_info(store, store.topic(index)))
        return sorted(found)

    def topic_names(self) -> list[str]:
        return sorted(entry["name"] for entry in self._mapped().topics())

    def has_topic(self, name: str) -> bool:
        return self._mapped().topic_find(name) >= 0

    def group_names(self) -> list[str]:
        return sorted(name for _, name in self._mapped().groups())

    def has_group(self, name: str) -> bool:
        try:
            return name.isascii() and self._mapped().group_find(name) >= 0
        except UsageError:
            return False  # no group can have this name

    def progress(self, group: str | None = None) -> dict[str, list[QueueLag]]:
        store = self._mapped()
        groups = {index: name for index, name in store.groups() if group in (None, name)}
        offsets = list(group_offsets(store, groups, _QueuesByIndex(store).find, self._popped))
        pids = {}
        if any(entry.owner >= 0 for entry in offsets):
            pids = {client.slot: client.pid for client in StoreFigures(store).clients() if client.state}
        found: dict[str, list[QueueLag]] = {}
        for entry in offsets:
            queue = entry.queue
            found.setdefault(entry.group, []).append(
                QueueLag(
                    topic=queue.topic,
                    queue_id=queue.queue_id,
                    committed=entry.committed,
                    offset_min=queue.offset_min,
                    offset_max=queue.offset_max,
                    owner=entry.owner,
                    updated_ms=entry.updated_ms,
                    in_flight=entry.in_flight,
                    cleaned=entry.cleaned,
                    owner_pid=pids.get(entry.owner),
                )
            )
        return {name: sorted(rows, key=_place) for name, rows in sorted(found.items())}


def _topic_info(store: Store, entry: Mapping[str, Any]) -> TopicInfo:
    queues = []
    for queue_id, index in enumerate(entry["queues"]):
        queue = store.queue(index)
        queues.append(QueueInfo(queue_id, queue.offset_min, queue.offset_max, queue.bytes))
    return TopicInfo(
        name=entry["name"],
        kind=kind_name(entry["kind"]),
        queues=tuple(queues),
        read_queues=entry["read_queues"],
        write_queues=entry["write_queues"],
        perm=entry["perm"],
        flush=flush_name(entry["flush"]),
    )


class _QueuesByIndex:
    """Queues of living topics, each topic looked up once: a group reads few of many topics."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._found: dict[int, tuple[str, Sequence[int]]] = {}

    def find(self, index: int) -> QueueOf | None:
        """Return a queue of a living topic, None when there is none."""
        queue = self._store.queue(index)
        if queue.topic not in self._found:
            try:
                entry = self._store.topic(queue.topic)
                self._found[queue.topic] = entry["name"], entry["queues"] if entry["state"] == TOPIC_LIVE else ()
            except TopicNotFound:
                self._found[queue.topic] = "", ()
        name, queues = self._found[queue.topic]
        if queues[queue.queue_id : queue.queue_id + 1] != [index]:
            return None
        return QueueOf(name, queue.queue_id, index, queue.offset_min, queue.offset_max)


def _place(row: QueueLag) -> tuple[str, int]:
    return row.topic, row.queue_id
