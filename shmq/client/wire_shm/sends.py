"""Sending through shared memory: plain sends are the core's own methods, without a Python frame around them.

What the core cannot do by itself is added around it: special keywords (delayed_send.py), and compression for a producer
that asks for it. In memory a copy is cheaper than packing, but a store keeps three days of messages.

    body of more than 4096 bytes that becomes shorter     packed, and the sysFlag says how
    all others, batches, reserve(), delayed messages      as without compression
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from shmq.client.producers.compression import COMPRESS_ABOVE_BYTES, compress
from shmq.client.producers.keywords import OWN, body_of, keys_of, message_properties
from shmq.client.wire_shm.delayed_send import SpecialSend
from shmq.errors import UsageError
from shmq.message import TRACE_TOPIC, encode_properties
from shmq.protocol.message_id import message_id_text, message_place
from shmq.shm.core import Producer, Receipt, receipt_make, tag_hash

if TYPE_CHECKING:
    from shmq.client.wire_shm.queues import ShmQueues
    from shmq.client.wire_shm.wire import ShmWire


class ShmSends:
    """What sends to this host's broker; see `shmq.client.wire.Sends`."""

    def __init__(self, wire: ShmWire, queues: ShmQueues) -> None:
        self._wire = wire
        self._queues = queues
        self._internal: Producer | None = None

    def core_producer(self, timeout: float, *, wait_durable: bool | None = None) -> Producer:
        """Return a new core producer; `timeout` in seconds."""
        wire, queues = self._wire, self._queues
        waits = wire.wait_durable if wait_durable is None else wait_durable
        special = SpecialSend(wire, queues)
        return special.bind(
            Producer(wire.store, resolve=queues.resolve, timeout=timeout, wait_durable=waits, special=special)
        )

    @property
    def internal_producer(self) -> Producer:
        """The producer for what the client itself stores, such as answers and traces."""
        if self._internal is None:
            self._internal = self.core_producer(self._wire.timeout)
        return self._internal

    def renew(self) -> None:
        """Forget the segments of a generation that is over."""
        self._internal = None

    def sender(
        self, timeout: float, *, group: str | None = None, compression: str | None = None
    ) -> Producer | CompressingSender:
        """Return a new core producer, or what packs bodies before; its group is known by the registration."""
        producer = self.core_producer(timeout)
        if compression in (None, "none"):
            return producer
        return CompressingSender(self._wire, self._queues, producer, compression, timeout)

    def fastest_queue(self, topic: str) -> int | None:
        """Return None: shared memory is equally near everywhere."""
        return None

    def store_trace(self, body: bytes, keys: Sequence[str]) -> None:
        """Store a message in the trace topic, which is made if need be."""
        self._queues.create(TRACE_TOPIC, queues=1)
        self.internal_producer.send_oneway(TRACE_TOPIC, body, keys=keys)

    def host_of(self, receipt: Receipt) -> str:
        """Say where a broker stored a message, as "host:port": its id holds that."""
        place = message_place(receipt.message_id)
        return f"{place.host}:{place.port}" if place is not None else ""


class CompressingSender:
    """A local sender that packs long bodies; the four ways of `MessageSender`."""

    def __init__(self, wire: ShmWire, queues: ShmQueues, inner: Producer, kind: str, timeout: float) -> None:
        self._wire = wire
        self._queues = queues
        self._inner = inner
        self._kind = kind
        self._timeout = timeout
        self._turn = itertools.count()
        self.send_batch = inner.send_batch
        self.reserve = inner.reserve

    def send(self, topic: str, body: Any, **arguments: Any) -> Receipt:
        """Store one message and return where."""
        return self._send(topic, body, arguments, waits=self._wire.wait_durable) or self._inner.send(
            topic, body, **arguments
        )

    def send_oneway(self, topic: str, body: Any, **arguments: Any) -> None:
        """Store one message without a receipt and without waiting for durability."""
        if self._send(topic, body, arguments, waits=False) is None:
            self._inner.send_oneway(topic, body, **arguments)

    def _send(self, topic: str, body: Any, arguments: dict[str, Any], *, waits: bool) -> Receipt | None:
        """Store a packed body; None when it goes as it is."""
        given = {name: value for name, value in arguments.items() if value is not None}
        data = body_of(body)
        if len(data) <= COMPRESS_ABOVE_BYTES or given.keys() - OWN:
            return None
        packed, sys_flag = compress(data, self._kind)
        if not sys_flag:
            return None
        timeout = given.get("timeout", self._timeout)
        group = given.get("message_group")
        properties = message_properties(
            given.get("tag"), keys_of(given.get("key"), given.get("keys")), group, given.get("properties")
        )
        queue_id = self._queue_id(topic, given.get("queue_id"), group)
        stored = self._inner.append(
            topic,
            packed,
            encode_properties(properties).encode(),
            queue_id=queue_id,
            flag=given.get("flag", 0),
            sys_flag=sys_flag,
            timeout=timeout,
        )
        offset, log_position, store_ms, end = stored
        store = self._wire.store
        if waits:
            store.wait_durable(end, timeout)
        message_id = message_id_text(store.head["store_host"], log_position)
        return receipt_make(topic, queue_id, offset, log_position, store_ms, message_id)

    def _queue_id(self, topic: str, queue_id: int | None, group: str | None) -> int:
        queues: Sequence[int] = self._queues.write_queues(topic)
        if not queues:
            raise UsageError(f"topic '{topic}' takes no messages now", hint="see its permission: shmq topic show")
        if queue_id is not None:
            if queue_id not in queues:
                raise UsageError(f"topic '{topic}' has {len(queues)} write queues, none of them is {queue_id!r}")
            return queue_id
        turn = tag_hash(group) & 0x7FFFFFFF if group is not None else next(self._turn)
        return queues[turn % len(queues)]
