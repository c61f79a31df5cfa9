"""`Access` over the segments of this host: one read-only mapping for each broker, kept for the next task.

Python workers are reused, so a task usually finds the segments mapped already; a broker that was started anew has new
ones, and then the old attachment is let go.

Rules: (1) everything is mapped read-only, and nothing is said to the broker;
(2) nothing of this may travel to another process: partitions carry the URL, and each process attaches by itself.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from shmq import connect
from shmq.columns.queue_batches import QueueRange, queue_batches
from shmq.errors import BrokerNotRunning, ConnectError, PermissionDenied, ShmqError, TopicNotFound
from shmq.figures.mapped import MappedFigures
from shmq.figures.model import QueueLag
from shmq.message import missing_topic
from shmq.protocol.roster import popped_messages
from shmq.shm.core import Store
from shmq.shm.instance import Instance, read_instance, store_identity
from shmq.shm.lease import take_lease
from shmq.shm.place import place_of
from shmq.shm.segment import open_store
from shmq.shm.unit import units_of
from shmq.spark.access.broker import Access, Kept, Key, Queue, Range, Reading, Where, not_on_this_host
from shmq.spark.access.loss import data_loss, still_there
from shmq.spark.access.unit_batches import unit_sizes
from shmq.spark.options import SHM, full_url

_UNITS_MAX: Final = 65_536
_attached: dict[str, Attachment] = {}


@dataclass(frozen=True)
class Attachment:
    """One broker as this process sees it; `shmq.spark.access.way.Access` over its segments."""

    instance: Instance
    store: Store
    where: Where

    @property
    def broker(self) -> str:
        return self.instance.broker_name

    @property
    def identity(self) -> str:
        """The identity of the store, whatever its path is."""
        return store_identity(self.instance)

    def planned_for(self, where: Where) -> Attachment:
        """Return the same attachment for a plan that others carry out."""
        return replace(self, where=replace(where, identity=self.identity, broker=self.broker))

    def topics(self) -> list[str]:
        return sorted(str(entry["name"]) for entry in self.store.topics())

    def queues(self, topic: str) -> list[Queue]:
        """Return the queues of a topic that may be read or still hold messages.

        Raises:
            TopicNotFound: there is no such topic.
        """
        index = self.store.topic_find(topic)
        if index < 0:
            error = missing_topic(topic, f'on broker "{self.broker}"', self.topics(), "see shmq topic list")
            raise TopicNotFound(f"{error}; {error.hint}", hint=error.hint)
        entry = self.store.topic(index)
        born = int(entry["born_position"])
        return [Queue(topic, queue_id, queue, born) for queue_id, queue in enumerate(entry["queues"])]

    def bounds(self, queue: Queue) -> tuple[int, int]:
        return self.store.queue(queue.index).offset_min, self.store.queue_visible(queue.index)

    def search_time(self, queue: Queue, time_ms: int) -> int:
        return self.store.search_time(queue.index, time_ms)

    def kept(self, queue: Queue) -> Kept:
        """Return up to where its units are in files, and its bytes."""
        entry = self.store.queue(queue.index)
        return Kept(entry.persisted, entry.bytes)

    @property
    def _figures(self) -> MappedFigures:
        place, generation = place_of(full_url(self.where.store)), self.instance.generation
        return MappedFigures(lambda: self.store, lambda: popped_messages(place.roster_path, generation))

    def progress(self, group: str | None, queues: Callable[[], Sequence[Queue]]) -> dict[str, list[QueueLag]]:
        """Return how far groups are, on every queue that they have an offset for."""
        return self._figures.progress(group)

    def has_group(self, group: str) -> bool:
        """Say whether there is a group of that name."""
        return self._figures.has_group(group)

    def publish(self, group: str, offsets: Mapping[Key, int]) -> None:
        with connect(full_url(self.where.store)) as mq:
            for topic in {topic for topic, _ in offsets}:
                mine = {queue_id: offset for (name, queue_id), offset in offsets.items() if name == topic}
                with contextlib.closing(mq.pull_consumer(topic)) as consumer:
                    consumer.commit(group, offsets=mine)

    def units(self, queue: Queue, begin: int, end: int) -> list[tuple[int, int]]:
        return [(position, size) for position, size, _ in units_of(self._stored(queue, begin, end))]

    def sizes(self, queue: Queue, begin: int, end: int) -> Sequence[int]:
        found: Sequence[int] = unit_sizes(self._stored(queue, begin, end))
        return found

    def _stored(self, queue: Queue, begin: int, end: int) -> bytes:
        return self.store.units_stored(queue.index, begin, min(end - begin, _UNITS_MAX))

    def sample(self, queue: Queue, begin: int, end: int, count: int) -> list[tuple[int, int]]:
        """Return log position and bytes of about `count` records, evenly between two offsets."""
        step = max(1, (end - begin) // count)
        return [unit for offset in range(begin, end, step) for unit in self.units(queue, offset, offset + 1)]

    @property
    def may_lease(self) -> bool:
        """Yes: leases lie in the store."""
        return True

    def lease(self, log_position: int, seconds: float) -> str | None:
        """Keep retention from what is planned."""
        path = take_lease(self.instance.store_path, log_position, seconds)
        return None if path is None else str(path)

    def read(self, reading: Reading, wanted: Range) -> Iterator[Any]:
        """Yield record batches of a range.

        Raises:
            ShmqError: what was planned is not there any more, and that may not be.
        """
        (queue,) = still_there(self, [wanted])
        place = QueueRange(wanted.topic, self.broker, queue.index, queue.queue_id, wanted.start, wanted.end)

        def lost(error: ShmqError, count: int) -> None:
            data_loss(reading.options, f"topic {wanted.topic}, {error}", count)

        yield from queue_batches(self.store, place, reading.columns, reading.selection(), lost)


def attach(url: str | None) -> Attachment:
    """Return this process' attachment to a broker of this host.

    Args:
        url: as option `store`: shmq://NAME, a name, an absolute runtime directory; None takes $SHMQ_URL or "default".

    Raises:
        BrokerNotRunning: there is none on this host; the text names host and option.
        PermissionDenied, VersionMismatch, ForeignNamespace: it is there, but not for this process.
    """
    place = place_of(full_url(url))
    try:
        instance = read_instance(place.instance_path)
    except PermissionError as error:
        hint = "run Spark as the broker's user or as a member of its group (usermod -aG shmq USER)"
        raise PermissionDenied(
            f"option store: {place.instance_path} on host {socket.gethostname()} is not for uid {os.geteuid()}; {hint}",
            hint=hint,
        ) from error
    except (OSError, ShmqError) as error:
        raise ConnectError(
            f"option store: {place.instance_path} could not be read on {socket.gethostname()}: {error}"
        ) from error
    if instance is None:
        raise BrokerNotRunning(
            f"option store: no broker at {place.url} on host {socket.gethostname()}; start it with "
            f"shmq serve --name {place.broker_name}, or run Spark's workers on the broker's host"
        )
    known = _attached.get(place.url)
    if known is not None and known.instance.generation == instance.generation:
        return known
    try:
        where = Where(SHM, place.url, None, instance.broker_name, store_identity(instance))
        fresh = Attachment(instance, open_store(instance, writable=False), where)
    except ShmqError as error:
        if error.hint and error.hint not in str(error):
            raise type(error)(f"option store: {error}; {error.hint}", hint=error.hint) from error
        raise
    if known is not None:
        known.store.close()
    _attached[place.url] = fresh
    return fresh


def of_segments(access: Access, view: str) -> Attachment:
    """Return the attachment behind an access, for what only the segments and files have.

    Raises:
        UsageError: the broker is reached over TCP.
    """
    if not isinstance(access, Attachment):
        raise not_on_this_host(view)
    return access
