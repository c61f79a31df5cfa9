"""Writing rows that become visible together, once: what a task and a driver ask of the broker.

What the broker makes of it: daemon/broker/rows/rows.py. All topics of one connection are on one broker:

    Stager.add(row) …  ──▶ chunks of one queue each ──▶ STAGE_ROWS      hidden
    Stager.finish()    ──▶ what was staged: a part
    commit(parts)      ──▶ COMMIT_ROWS, again and again until nothing is left to be copied

Invariants:
    1. Every request may be said twice: an answer that was lost costs nothing.
    2. A broker that is away is waited for, until the deadline of the request.
    3. Rows without a queue of their own go to one queue a chunk, in turn.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final

import msgspec

from shmq.client.keywords import body_of, queue_in_order, take_properties, take_special
from shmq.client.wire import Question
from shmq.errors import BrokerBusy, BrokerNotRunning, MessageTooLarge, RemoteError, RequestTimeout, UsageError
from shmq.message import check_topic
from shmq.properties import encode_properties
from shmq.protocol.batch_body import ENTRY_OVERHEAD, pack_entry
from shmq.protocol.codes import Request, Response
from shmq.protocol.command import Command
from shmq.protocol.route import DEFAULT_TOPIC
from shmq.protocol.staged_rows import CHECKSUM_MASK, COMMITTED, StagedPart
from shmq.shm.core import BODY_BYTES_MAX

if TYPE_CHECKING:
    from shmq.client.wire import Queues, Wire

_PAUSE_MIN: Final = 0.002
_PAUSE_MAX: Final = 0.1
_REQUEST_TIMEOUT: Final = 5.0
_CHUNK_MOST: Final = BODY_BYTES_MAX


@dataclass(frozen=True)
class Unit:
    """The rows that become visible together: a batch of a writer, or one partition of it."""

    writer: str
    batch: int
    unit: int

    @property
    def fields(self) -> dict[str, str]:
        """The header fields that name it."""
        return {"writer": self.writer, "batch": str(self.batch), "unit": str(self.unit)}


@dataclass(frozen=True)
class Committed:
    """The visible rows of a unit: their number, and their checksum."""

    rows: int
    checksum: int


class StagingBroker:
    """The broker that staged rows go to, for one connection.

    Args:
        wire: returns the wire of the connection.
        queues: returns its topics and queues.
        timeout: seconds one request may take, a broker that is restarted meanwhile included.
        topic: one that rows go to: over TCP its broker is the one.
    """

    def __init__(
        self, wire: Callable[[], Wire], queues: Callable[[], Queues], timeout: float, *, topic: str = DEFAULT_TOPIC
    ) -> None:
        self._wire = wire
        self._queues = queues
        self._timeout = timeout
        self._topic = check_topic(topic)
        self._broker: str | None = None
        self._queue_ids: dict[str, Sequence[int]] = {}

    def queues(self, topic: str) -> Sequence[int]:
        """Return the ids of the queues of a topic that may be written.

        Raises:
            TopicNotFound: it does not exist, and brokers create none by themselves.
            UsageError: it is not on the broker that has the others.
        """
        known = self._queue_ids.get(topic)
        if known is None:
            home, queues = self._home(), self._queues()
            named = [queues.message_queue(topic, number) for number in queues.write_queues(topic)]
            brokers = sorted({queue.brokerName for queue in named})
            if brokers not in ([home], []):
                raise UsageError(
                    f"what is written once goes to one broker, {home}: topic {topic} is on {', '.join(brokers)}",
                    hint="use guarantee at_least_once, or a topic on one broker",
                )
            known = self._queue_ids[topic] = sorted(queue.queueId for queue in named)
        return known

    def state(self, unit: Unit) -> Committed | None:
        """Say whether a unit is committed.

        Raises:
            UsageError: this broker cannot stage rows.
            TransactionError: the writer is farther already.
        """
        try:
            return _committed(self._ask(Request.STAGED_STATE, unit.fields))
        except RemoteError as error:
            if error.code != Response.REQUEST_CODE_NOT_SUPPORTED:
                raise
            raise UsageError(
                "this broker cannot stage rows: it is no shmq broker", hint="use guarantee at_least_once"
            ) from error

    def stage(self, unit: Unit, fields: Mapping[str, str], rows: bytes) -> Committed | None:
        """Store a chunk; returns what the unit is if it is committed already, by another attempt."""
        return _committed(self._ask(Request.STAGE_ROWS, {**unit.fields, **fields}, rows))

    def commit(self, unit: Unit, parts: Sequence[StagedPart], *, rows: int, checksum: int) -> Committed:
        """Let a unit count, and return when all its rows are where they belong.

        Raises:
            TransactionError: a part is not there any more.
        """
        fields = {**unit.fields, "rows": str(rows), "checksum": str(checksum)}
        body = msgspec.json.encode(list(parts))
        pause, left_before = _PAUSE_MIN, -1
        while True:
            reply = self._ask(Request.COMMIT_ROWS, fields, body)
            left = int(reply.ext.get("left", "0"))
            if left == 0:
                committed = _committed(reply)
                assert committed is not None
                return committed
            if left == left_before:  # another writer's rows go first, or the disk is awaited
                time.sleep(pause)
                pause = min(2 * pause, _PAUSE_MAX)
            else:
                pause = _PAUSE_MIN
            left_before = left

    def drop(self, unit: Unit, attempt: str = "") -> None:
        """Forget what a unit staged; with a name that attempt only."""
        self._ask(Request.DROP_ROWS, {**unit.fields, "attempt": attempt})

    def _ask(self, code: int, fields: Mapping[str, str], body: bytes = b"") -> Command:
        """Ask, and ask again while the broker is away or busy."""
        deadline = time.monotonic() + self._timeout
        pause = _PAUSE_MIN
        if self._topic != DEFAULT_TOPIC:
            fields = {"topic": self._topic, **fields}  # accounts have permissions on topics
        while True:
            left = deadline - time.monotonic()
            try:
                timeout = min(max(left, 0.1), _REQUEST_TIMEOUT)
                return self._wire().request(Question(self._home(), code, fields, body), timeout)
            except (BrokerBusy, BrokerNotRunning, RequestTimeout):
                if left <= 0:
                    raise
            time.sleep(pause)
            pause = min(2 * pause, _PAUSE_MAX)

    def _home(self) -> str:
        """The broker of the first topic; the default topic's while that does not exist."""
        if self._broker is None:
            wire, queues = self._wire(), self._queues()
            if wire.brokers(self._topic):
                named = (queues.message_queue(self._topic, number) for number in queues.write_queues(self._topic))
                self._broker = min((queue.brokerName for queue in named), default="")
            else:
                self._broker = (wire.brokers(DEFAULT_TOPIC) or wire.brokers())[0]
        return self._broker


class Stager:
    """Stages the rows of one attempt of one partition.

    Args:
        attempt: a name that no other attempt has.
        chunk_bytes: about how long a chunk gets.
    """

    def __init__(self, broker: StagingBroker, unit: Unit, partition: int, attempt: str, *, chunk_bytes: int) -> None:
        self._broker = broker
        self._unit = unit
        self._partition = partition
        self._attempt = attempt
        self._chunk_bytes = chunk_bytes
        self._open: dict[tuple[str, int, bool], list[bytes]] = {}  # topic, queue id or -1, delayed
        self._sizes: dict[tuple[str, int, bool], int] = {}
        self._turn = partition
        self._chunks = 0
        self._prefix = f"{unit.writer}-{unit.batch}-{partition}-"
        self.committed = broker.state(unit)
        self.rows = 0
        self.checksum = 0

    def add(self, topic: str, body: Any, arguments: dict[str, Any]) -> None:
        """Take one row: what `send` takes. Of a unit that is committed already rows are counted, and not stored.

        Raises:
            UsageError, MessageTooLarge: no message can be like this.
            The errors of a send.
        """
        text, queue_id, is_delayed = self._properties(topic, dict(arguments))
        bare = pack_entry(body_of(body), text.encode(), arguments.get("flag") or 0)
        digest = blake2b(bare, digest_size=8, key=topic.encode()[:64]).digest()
        self.checksum = (self.checksum + int.from_bytes(digest)) & CHECKSUM_MASK
        self.rows += 1
        if self.committed is not None:
            return
        unique = encode_properties({"UNIQ_KEY": f"{self._prefix}{self.rows - 1}"})
        entry = pack_entry(body_of(body), (text + unique).encode(), arguments.get("flag") or 0)
        if len(entry) > _CHUNK_MOST:
            raise MessageTooLarge(
                f"a row of {len(entry)} bytes is longer than {_CHUNK_MOST - ENTRY_OVERHEAD}",
                hint="smaller rows, or guarantee at_least_once",
            )
        key = topic, queue_id, is_delayed
        size = self._sizes.get(key, 0)
        if size and size + len(entry) > min(self._chunk_bytes, _CHUNK_MOST):
            self._flush(key)
            size = 0
        self._open.setdefault(key, []).append(entry)
        self._sizes[key] = size + len(entry)

    def finish(self) -> StagedPart:
        """Stage what is left and return what was staged."""
        for key in list(self._open):
            self._flush(key)
        return StagedPart(self._partition, self._attempt, self._chunks)

    def drop(self) -> None:
        """Forget what was staged."""
        self._broker.drop(self._unit, self._attempt)

    def _properties(self, topic: str, arguments: dict[str, Any]) -> tuple[str, int, bool]:
        """The property text of a row, its queue or -1, and whether it is delivered later."""
        check_topic(topic)
        special = take_special(arguments)
        group = arguments.get("message_group")
        found = take_properties(arguments)
        queue_id = arguments.get("queue_id")
        if queue_id is None:
            queues = self._broker.queues(topic) if group is not None else ()
            queue_id = queues[queue_in_order(group, len(queues))] if group is not None else -1
        elif queue_id not in self._broker.queues(topic):
            raise UsageError(
                f'topic "{topic}" has no queue {queue_id} to write to',
                hint=f"one of {list(self._broker.queues(topic))}",
            )
        return encode_properties({**found, **special}), queue_id, bool(special)

    def _flush(self, key: tuple[str, int, bool]) -> None:
        topic, queue_id, is_delayed = key
        rows = b"".join(self._open.pop(key))
        del self._sizes[key]
        if self.committed is not None:
            return  # another attempt was faster: its rows are the same
        queues = self._broker.queues(topic)
        if queue_id < 0:
            self._turn += 1
            queue_id = queues[self._turn % len(queues)]
        fields = {
            "partition": str(self._partition),
            "attempt": self._attempt,
            "chunk": str(self._chunks),
            "topic": topic,
            "queueId": str(queue_id),
            "delayed": str(is_delayed).lower(),
        }
        self.committed = self._broker.stage(self._unit, fields, rows)
        self._chunks += 1


def _committed(reply: Command) -> Committed | None:
    if reply.ext.get("state") != COMMITTED:
        return None
    return Committed(int(reply.ext.get("rows", "0")), int(reply.ext.get("checksum", "0")))
