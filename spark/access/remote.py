"""`Access` over TCP: a broker elsewhere, ours or RocketMQ's.

`shmq.spark.access.ranges` carries the requests. Records come as they are in the log and go through the decoder that
also reads the mapped files, so rows are the same to the byte. RocketMQ's brokers have no READ_RANGE and are asked with
PULL_MESSAGE, eight stretches of a queue side by side, because an answer holds 32 messages; they come as its clients get
them.

    ask for the next piece ──▶ while this one is decoded ──▶ batches

Rules: (1) one connection a process and place, made anew in a forked child and after a failure;
(2) what arrived is held to the range: a record outside it is an error, never handed on.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, Final

import pyarrow

from shmq.client.place import remote_place
from shmq.columns.record_batches import column_numbers, import_batch, inflated
from shmq.errors import (
    BrokerNotRunning,
    ConnectError,
    OffsetOutOfRange,
    PermissionDenied,
    ProtocolError,
    RequestTimeout,
    TopicNotFound,
)
from shmq.figures.model import QueueLag
from shmq.protocol.dialect import MessageQueue
from shmq.shm.core import columns_decode
from shmq.spark.access.broker import Kept, Key, Queue, Range, Reading, Where, not_on_this_host
from shmq.spark.access.loss import data_loss
from shmq.spark.access.ranges import Described, Piece, RangeClient
from shmq.spark.access.unit_batches import UNIT_COLUMNS, unit_batches
from shmq.spark.options import Options

_SAMPLE_UNITS: Final = 64
_FROM: Final = "option store or nameserver"
_clients: dict[tuple[int, str, str | None], RangeClient] = {}


class RemoteAccess:
    """One broker over TCP; `shmq.spark.access.way.Access` for a process that cannot see its segments."""

    def __init__(self, client: RangeClient, where: Where) -> None:
        self._client = client
        self._described: dict[str, Described] = {}
        self._where = where

    @property
    def where(self) -> Where:
        """The facts another process needs to find the same broker; its store is known when a topic was looked at."""
        for described in self._described.values():
            return replace(self._where, identity=described.identity, broker=described.broker)
        return self._where

    @property
    def broker(self) -> str:
        for described in self._described.values():
            return described.broker
        with _explained():
            return self._client.broker_name()

    def topics(self) -> list[str]:
        """Return the names of all topics of the cluster."""
        with _explained():
            return self._client.topics()

    def queues(self, topic: str) -> list[Queue]:
        """Return the queues of a topic, with what they hold now.

        Raises:
            TopicNotFound: there is no such topic.
            ConnectError: no broker answers, or not to this account.
        """
        try:
            with _explained():
                found = self._described[topic] = self._client.describe(topic)
        except TopicNotFound as error:
            raise TopicNotFound(f"{error}; {error.hint}", hint=error.hint) from error
        return [Queue(topic, queue_id, -1, found.born, bounds) for queue_id, bounds in enumerate(found.queues)]

    def bounds(self, queue: Queue) -> tuple[int, int]:
        """Return what a queue held when it was asked for."""
        return queue.seen or self.queues(queue.topic)[queue.queue_id].seen or (0, 0)

    def search_time(self, queue: Queue, time_ms: int) -> int:
        return self._client.search_time(self._queue(queue.topic, queue.queue_id), time_ms)

    def kept(self, queue: Queue) -> Kept:
        """Return nothing: RocketMQ does not tell it."""
        return Kept()

    def progress(self, group: str | None, queues: Callable[[], Sequence[Queue]]) -> dict[str, list[QueueLag]]:
        """Return how far one group is on queues; when it committed, and what its members popped, is not asked."""
        if group is None:
            raise not_on_this_host("groups")
        wanted = {self._queue(queue.topic, queue.queue_id): queue for queue in queues()}
        rows = [
            QueueLag(name.topic, name.queueId, offset, *self.bounds(wanted[name]), owner=-1, updated_ms=0)
            for name, offset in self._client.committed(group, list(wanted)).items()
        ]
        return {group: sorted(rows)} if rows else {}

    def has_group(self, group: str) -> bool:
        """Only an administrator may list groups; one that committed nothing is none here."""
        return False

    def publish(self, group: str, offsets: Mapping[Key, int]) -> None:
        self._client.commit(group, {self._queue(*key): offset for key, offset in offsets.items()})

    def units(self, queue: Queue, begin: int, end: int) -> list[tuple[int, int]]:
        found = self._client.units(self._queue(queue.topic, queue.queue_id), begin, end, queue.born_position)
        return [unit[:2] for unit in found]

    def sizes(self, queue: Queue, begin: int, end: int) -> Sequence[int]:
        return [size for _, size in self.units(queue, begin, end)]

    def sample(self, queue: Queue, begin: int, end: int, count: int) -> list[tuple[int, int]]:
        """Return log position and bytes of the first records: one answer tells of many, and each costs a journey."""
        return self.units(queue, begin, min(end, begin + _SAMPLE_UNITS))

    @property
    def may_lease(self) -> bool:
        """No: no other host may keep a broker from emptying its disk."""
        return False

    def lease(self, log_position: int, seconds: float) -> str | None:
        """There is none."""
        return None

    def read(self, reading: Reading, wanted: Range) -> Iterator[Any]:
        """Yield record batches of a range.

        Raises:
            ShmqError: what was planned is not there any more, and that may not be.
        """
        options, queue = reading.options, self._queue(wanted.topic, wanted.queue_id)
        by_units = self._units_do(reading, wanted.topic)
        at, coming = wanted.start, self._ask(options, queue, wanted, wanted.start, by_units)
        while at < wanted.end:
            try:
                piece = self._client.wait(coming)
            except (OffsetOutOfRange, TopicNotFound) as error:
                data_loss(options, f"topic {wanted.topic}: {error}", wanted.end - at)
                return
            following = piece.next_offset
            if piece.offset_min > at:
                following = min(piece.offset_min, wanted.end)
                what = f"topic {wanted.topic}, queue {wanted.queue_id}, offset {at}: retention has deleted it"
                data_loss(options, what, following - at)
            if following < wanted.end:
                coming = self._ask(options, queue, wanted, following, by_units)
            if by_units:
                limits = {"first": at, "rows_max": options.batch_rows}
                yield from unit_batches(reading.columns, piece.body, wanted, broker=self.broker, **limits)
            else:
                yield from self._batches(reading, wanted, at, piece.body)
            at = following

    def _units_do(self, reading: Reading, topic: str) -> bool:
        """Whether nothing is wanted of records that their units do not tell; RocketMQ hands out no units."""
        options = reading.options
        looks_at_records = options.tags or options.start_ms or options.end_ms is not None or options.verify_crc
        is_ours = self._described[topic].born >= 0
        return is_ours and not looks_at_records and UNIT_COLUMNS.issuperset(reading.columns)

    def _ask(self, options: Options, queue: MessageQueue, wanted: Range, begin: int, by_units: bool) -> Future[Piece]:
        if by_units:
            return self._client.read_units(queue, begin, wanted.end, born=wanted.born_position)
        return self._client.read(queue, begin, wanted.end, born=wanted.born_position, tags=options.tags)

    def _queue(self, topic: str, queue_id: int) -> MessageQueue:
        described = self._described.get(topic)
        if described is None:
            self.queues(topic)
            described = self._described[topic]
        return MessageQueue(described.broker, queue_id, topic)

    def _batches(self, reading: Reading, wanted: Range, first: int, body: bytes) -> Iterator[Any]:
        options, numbers = reading.options, column_numbers(reading.columns)
        selection = reading.selection()
        data, at = pyarrow.py_buffer(body), 0
        while at < data.size:
            used, first, rows, packed, array = columns_decode(
                data.slice(at),
                numbers,
                wanted.topic,
                self.broker,
                range=(wanted.queue_id, first, wanted.end),
                **selection,
            )
            if not used:
                raise ProtocolError(f"byte {at} of the {data.size} that arrived does not begin a record")
            at += used
            if rows:
                yield from inflated(import_batch(numbers, array), packed, bytes_max=options.batch_bytes)


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    """Name the options and the cure when the broker is not reached; Spark shows the text only."""
    try:
        yield
    except PermissionDenied as error:
        hint = (
            "name an account that may read the topic: rocketmq://HOST:9876?access_key=…&secret_key=… as option "
            "nameserver or store, or $SHMQ_ACCESS_KEY and $SHMQ_SECRET_KEY of Spark's driver and workers"
        )
        raise PermissionDenied(f"{_FROM}: {error}; {hint}", hint=hint) from error
    except (ConnectError, RequestTimeout) as error:
        hint = "; ".join(filter(None, (error.hint, "start the broker without --no-tcp, or name where it is")))
        raise BrokerNotRunning(f"{_FROM} on host {socket.gethostname()}: {error}; {hint}", hint=hint) from error


def connect_remote(where: Where) -> RemoteAccess:
    """Return a way to a broker over TCP; the connection is shared by the tasks of this process."""
    key = (os.getpid(), where.remote or "", where.broker)
    client = _clients.get(key)
    if client is None:
        client = _clients[key] = RangeClient(remote_place(where.remote or ""), broker=where.broker)
    return RemoteAccess(client, where)
