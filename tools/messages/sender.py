"""Bodies become stored messages: batching, patience with a busy broker, counting.

Bodies are collected into batches that the store takes whole or not at all, so that a batch may be sent again after a
failure without storing a message twice.

Invariants:
1. A message counts as stored only after its receipt came back, and Ctrl-C comes between two batches: what is reported
   is what is in the log.
2. Messages of one queue are stored in the order in which they were given.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from shmq.errors import MessageTooLarge, ShmqError
from shmq.figures.quantity import plural, size_text
from shmq.tools.command import Call
from shmq.tools.terminal.interrupt import interrupt_deferred

if TYPE_CHECKING:
    import shmq

# Half of what the store appends under one lock, so that a batch is never split.
BATCH_BYTES_MAX = 128 << 10
# Fixed fields, names and check sum of a record, generously.
RECORD_OVERHEAD_BYTES = 256
PATIENCE = 30.0  # seconds a batch waits for a busy, full or restarting broker before the command gives up
PAUSE = 0.05


@dataclass
class Attributes:
    """The attributes of every message; `{n}` in it becomes the line number."""

    tag: str | None = None
    key: str | None = None
    properties: dict[str, str] = field(default_factory=dict)
    message_group: str | None = None
    queue_id: int | None = None

    def differ_by_line(self) -> bool:
        """Whether more than the key holds `{n}`, so that each line needs a send of its own."""
        values = (self.tag, self.message_group, *self.properties.values())
        return any(value is not None and "{n}" in value for value in values)

    def overhead_bytes(self) -> int:
        """Bytes that a record needs beside its body, at most."""
        text = (
            "".join(value for pair in self.properties.items() for value in pair) + (self.tag or "") + (self.key or "")
        )
        return RECORD_OVERHEAD_BYTES + len(text.encode()) + 20

    def of_line(self, number: int) -> dict[str, Any]:
        """Return the arguments of `send` for this line."""
        return {
            "tag": _numbered(self.tag, number),
            "key": _numbered(self.key, number),
            "properties": {name: value.replace("{n}", str(number)) for name, value in self.properties.items()} or None,
            "message_group": _numbered(self.message_group, number),
            "queue_id": self.queue_id,
        }


def _numbered(text: str | None, number: int) -> str | None:
    return None if text is None else text.replace("{n}", str(number))


@dataclass
class Stored:
    """The messages in the log so far."""

    count: int = 0
    size_bytes: int = 0
    queues: dict[int, list[int]] = field(default_factory=dict)  # queue: [messages, first offset, last offset]

    def add(self, receipts: Sequence[shmq.Receipt], bodies: Sequence[bytes]) -> None:
        """Count messages whose receipts came back; they are all of one queue when there is more than one."""
        first, last = receipts[0], receipts[-1]
        self.count += len(receipts)
        self.size_bytes += sum(map(len, bodies))
        entry = self.queues.setdefault(first.queue_id, [0, first.offset, last.offset])
        entry[0] += len(receipts)
        entry[2] = last.offset

    def document(self, topic: str) -> dict[str, Any]:
        """Return the summary as JSON carries it."""
        return {
            "topic": topic,
            "stored": self.count,
            "size_bytes": self.size_bytes,
            "queues": [
                {"queue": queue, "stored": count, "first_offset": first, "last_offset": last}
                for queue, (count, first, last) in sorted(self.queues.items())
            ],
        }

    def sentence(self) -> str:
        """Return the summary for people."""
        text = f"stored {plural(self.count, 'message')} ({size_text(self.size_bytes)})"
        if self.count == 1:
            [(queue, (_, offset, _))] = self.queues.items()
            return f"{text} in queue {queue} at offset {offset}"
        return f"{text} in {plural(len(self.queues), 'queue')}"


class Sender:
    """Sends bodies in batches, patiently, and counts."""

    def __init__(self, producer: shmq.Producer, topic: str, attributes: Attributes, call: Call) -> None:
        self.stored = Stored()
        self._producer = producer
        self._topic = topic
        self._attributes = attributes
        self._call = call
        self._patience = PATIENCE if call.timeout is None else call.timeout
        self._one_by_one = attributes.differ_by_line()
        self._overhead_bytes = attributes.overhead_bytes()

    def send(self, bodies: Sequence[bytes]) -> None:
        """Store all bodies, in order; returns when the last receipt is there."""
        for batch in self._batches(bodies):
            self._send_patiently(batch)

    def _batches(self, bodies: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
        from shmq.shm.core import BATCH_MAX, BODY_BYTES_MAX

        batch: list[bytes] = []
        size_bytes = 0
        count_max = 1 if self._one_by_one else BATCH_MAX
        for body in bodies:
            record_bytes = len(body) + self._overhead_bytes
            if batch and (len(batch) >= count_max or size_bytes + record_bytes > BATCH_BYTES_MAX):
                yield batch
                batch, size_bytes = [], 0
            if len(body) > BODY_BYTES_MAX:
                if batch:
                    yield batch
                raise MessageTooLarge(
                    f"message {self.stored.count + 1} has {len(body)} bytes, {BODY_BYTES_MAX} are allowed",
                    hint="split it, or give the right --delimiter",
                )
            batch.append(body)
            size_bytes += record_bytes
        if batch:
            yield batch

    def _send_patiently(self, batch: Sequence[bytes]) -> None:
        deadline = time.monotonic() + self._patience
        told = False
        while True:
            try:
                with interrupt_deferred():
                    self._report(self._send_once(batch), batch)
                return
            except ShmqError as error:
                if error.receipts:
                    self._report(error.receipts, batch[: len(error.receipts)])
                if error.maybe_stored:
                    raise  # it is in the log, or may be: sent again it would be there twice
                if not error.retryable or time.monotonic() >= deadline:
                    raise
                if not told:
                    self._call.terminal.say(f"waiting: {error}")
                    told = True
            time.sleep(PAUSE)

    def _report(self, receipts: Sequence[shmq.Receipt], batch: Sequence[bytes]) -> None:
        self.stored.add(receipts, batch)
        if self._call.style.form in ("jsonl", "csv"):
            self._call.terminal.document(None, rows=map(receipt_document, receipts))

    def _send_once(self, batch: Sequence[bytes]) -> Sequence[shmq.Receipt]:
        first = self.stored.count + 1
        if len(batch) == 1:
            return [self._producer.send(self._topic, batch[0], **self._attributes.of_line(first))]
        key = self._attributes.key
        keys = None if key is None else [key.replace("{n}", str(first + index)) for index in range(len(batch))]
        arguments = self._attributes.of_line(first)
        del arguments["key"]
        return self._producer.send_batch(self._topic, batch, keys=keys, **arguments)


def receipt_document(receipt: shmq.Receipt) -> dict[str, Any]:
    """Return where one message is, as a line of --jsonl."""
    return {
        "topic": receipt.topic,
        "queue": receipt.queue_id,
        "offset": receipt.offset,
        "message_id": receipt.message_id,
    }
