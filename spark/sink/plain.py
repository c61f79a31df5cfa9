"""Rows sent at least once: each is a send of its own, and all of them are acknowledged before a task ends.

Rows go out of one thread through the memory of this host; where every send waits, for the network or for the disk,
lanes of threads send at the same time:

    rows ──▶ lane 0 … n    rows of a message group or of a named queue always in the same lane, in their order

Rule: the first send that fails ends the task; what was sent before it comes again when Spark tries once more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any

from shmq.spark.sink.columns import Outgoing, rows_of
from shmq.spark.sink.options import SinkOptions

if TYPE_CHECKING:
    from shmq import Connection, Producer


@dataclass
class Sent:
    """The number of rows acknowledged, and the lowest and highest offset of each queue."""

    rows: int = 0
    offsets: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)

    def add(self, topic: str, queue_id: int, offset: int) -> None:
        """Count one row."""
        self.rows += 1
        low, high = self.offsets.get((topic, queue_id), (offset, offset))
        self.offsets[topic, queue_id] = min(low, offset), max(high, offset)

    def join(self, other: Sent) -> None:
        """Count what another lane did."""
        self.rows += other.rows
        for key, (low, high) in other.offsets.items():
            mine = self.offsets.get(key, (low, high))
            self.offsets[key] = min(low, mine[0]), max(high, mine[1])


def send_all(reached: Connection, options: SinkOptions, columns: tuple[str, ...], batches: Iterator[Any]) -> Sent:
    """Send the rows of record batches and return what was acknowledged: all of them.

    Raises:
        ShmqError: a send failed.
    """
    compression = None if options.compression == "none" else options.compression
    sent = Sent()
    with reached.producer(timeout=options.timeout_ms / 1000, compression=compression) as producer:
        if not _waits(reached):
            for batch in batches:
                sent.join(_send(producer, rows_of(batch, columns, options.topic)))
            return sent
        with ThreadPoolExecutor(options.send_threads, "shmq-sink") as threads:
            for batch in batches:
                lanes = _lanes(rows_of(batch, columns, options.topic), options.send_threads)
                for done in threads.map(lambda lane: _send(producer, lane), lanes):
                    sent.join(done)
    return sent


def _waits(reached: Connection) -> bool:
    """Whether a send waits for an answer or a disk: then several at a time are faster."""
    return reached.is_remote or reached._local().wire.wait_durable


def _send(producer: Producer, rows: Iterable[Outgoing]) -> Sent:
    sent = Sent()
    for topic, body, arguments in rows:
        receipt = producer.send(topic, body, **arguments)
        sent.add(topic, receipt.queue_id, receipt.offset)
    return sent


def _lanes(rows: Iterable[Outgoing], lane_count: int) -> list[list[Outgoing]]:
    lanes: list[list[Outgoing]] = [[] for _ in range(lane_count)]
    turn = count()
    for row in rows:
        order = row.arguments.get("message_group", row.arguments.get("queue_id"))
        lanes[(next(turn) if order is None else hash((row.topic, order))) % lane_count].append(row)
    return [lane for lane in lanes if lane]
