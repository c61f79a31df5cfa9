"""The figures of a broker of this host, read from its mapped segments: the one place that joins their tables.

    topics ─┬─ queues ─┬─ offsets ─── groups        control and readers segments
            │          ├─ lost                      readers segment
            │          └─ popped                    roster.json, up to a second old
            └─ clients (who owns a queue)           readers segment

Nothing here needs a daemon, a socket or a lock: a list of thousands of topics is a loop over mapped memory, and it
works while the broker is busy, stopped in a debugger or dead.

Rule: an offset of a deleted topic is none of a topic that has its name again; its queue is of another life.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from shmq.errors import TopicNotFound, UsageError
from shmq.figures.model import QueueInfo, QueueLag, TopicInfo, flush_name, kind_name
from shmq.shm.core import TOPIC_LIVE, QueueEntry, Store, StoreFigures

Popped = Mapping[tuple[str, str, int], int]
"""(group, topic, queue id) -> messages popped and not settled."""


class MappedFigures:
    """The figures of the broker whose segments a store maps.

    Args:
        popped: returns what members have popped and not settled (`shmq.protocol.roster.popped_messages`).
    """

    def __init__(self, store: Store, popped: Callable[[], Popped]) -> None:
        self._store = store
        self._popped = popped

    # -- topics
    def topics(self, names: Collection[str] | None = None) -> list[TopicInfo]:
        """Return topics by name, those of these names if they exist."""
        entries = self._store.topics()
        return sorted(self._topic(entry) for entry in entries if names is None or entry["name"] in names)

    def topic(self, name: str) -> TopicInfo | None:
        """Return one topic, None when there is none of this name."""
        index = self._store.topic_find(name)
        return None if index < 0 else self._topic(self._store.topic(index))

    def topic_names(self) -> list[str]:
        """Return the names of all topics, sorted."""
        return sorted(entry["name"] for entry in self._store.topics())

    def _topic(self, entry: Mapping[str, Any]) -> TopicInfo:
        queues = []
        for queue_id, index in enumerate(entry["queues"]):
            queue = self._store.queue(index)
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

    # -- groups
    def group_names(self) -> list[str]:
        """Return the names of all groups, sorted."""
        return sorted(name for _, name in self._store.groups())

    def has_group(self, name: str) -> bool:
        """Whether there is a group of this name."""
        try:
            return name.isascii() and self._store.group_find(name) >= 0
        except UsageError:
            return False  # no group can have this name

    def progress(self, group: str | None = None) -> dict[str, list[QueueLag]]:
        """Return how far groups are, by topic and queue, on every queue that they have an offset for.

        Args:
            group: only this one.
        """
        store = self._store
        groups = {index: name for index, name in store.groups() if group in (None, name)}
        offsets = [entry for entry in store.offsets() if entry.group in groups]
        if not offsets:
            return {}
        lost = {(of_group, queue): count for of_group, queue, count, _ in store.offsets_lost()}
        popped, topics, pids = self._popped(), _TopicsByIndex(store), {}
        if any(entry.owner >= 0 for entry in offsets):
            pids = {client.slot: client.pid for client in StoreFigures(store).clients() if client.state}
        found: dict[str, list[QueueLag]] = {}
        for entry in offsets:
            name, queue = groups[entry.group], store.queue(entry.queue)
            topic = topics.name_of(entry.queue, queue)
            if topic is None:
                continue  # of a former life, until the keeper has freed it
            found.setdefault(name, []).append(
                QueueLag(
                    topic=topic,
                    queue_id=queue.queue_id,
                    committed=entry.committed,
                    offset_min=queue.offset_min,
                    offset_max=queue.offset_max,
                    owner=entry.owner,
                    updated_ms=entry.updated_ms,
                    in_flight=popped.get((name, topic, queue.queue_id), 0),
                    cleaned=lost.get((entry.group, entry.queue), 0),
                    owner_pid=pids.get(entry.owner),
                )
            )
        return {name: sorted(rows, key=_place) for name, rows in sorted(found.items())}


class _TopicsByIndex:
    """Topics of queues, each looked up once: a group reads few of many topics."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._found: dict[int, tuple[str, Sequence[int]]] = {}

    def name_of(self, index: int, queue: QueueEntry) -> str | None:
        """Return the name of the living topic that has a queue, None when there is none."""
        if queue.topic not in self._found:
            try:
                entry = self._store.topic(queue.topic)
                self._found[queue.topic] = entry["name"], entry["queues"] if entry["state"] == TOPIC_LIVE else ()
            except TopicNotFound:
                self._found[queue.topic] = "", ()
        name, queues = self._found[queue.topic]
        return name if queues[queue.queue_id : queue.queue_id + 1] == [index] else None


def _place(row: QueueLag) -> tuple[str, int]:
    return row.topic, row.queue_id
