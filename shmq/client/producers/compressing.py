"""Packs long bodies for a local producer that asks for it.

In memory a copy is cheaper than packing, but a store keeps three days of messages.

    body of more than 4096 bytes that becomes shorter     packed, and the sysFlag says how
    all others, batches, reserve(), delayed messages      as without compression
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from shmq.client.keywords import (
    COMPRESS_ABOVE_BYTES,
    OWN,
    body_of,
    compress,
    queue_in_order,
    take_properties,
)
from shmq.client.kinds import refuse_wrong
from shmq.errors import UsageError
from shmq.message import check_open_topic, encode_properties
from shmq.protocol.message_id import message_id_text
from shmq.shm.core import Producer, Receipt, receipt_make

if TYPE_CHECKING:
    from shmq.client.wire_shm.queues import ShmQueues
    from shmq.client.wire_shm.wire import ShmWire


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
        return self._send(topic, body, arguments, may_wait=True) or self._inner.send(topic, body, **arguments)

    def send_oneway(self, topic: str, body: Any, **arguments: Any) -> None:
        """Store one message without a receipt and without waiting for durability."""
        if self._send(topic, body, arguments, may_wait=False) is None:
            self._inner.send_oneway(topic, body, **arguments)

    def _send(self, topic: str, body: Any, arguments: dict[str, Any], *, may_wait: bool) -> Receipt | None:
        """Store a packed body; None when it goes as it is."""
        given = {name: value for name, value in arguments.items() if value is not None}
        data = body_of(body)
        if len(data) <= COMPRESS_ABOVE_BYTES or given.keys() - OWN:
            return None
        packed, sys_flag = compress(data, self._kind)
        if not sys_flag:
            return None
        refuse_wrong({"topic": topic, **given})
        check_open_topic(topic)
        timeout = given.get("timeout", self._timeout)
        group = given.get("message_group")
        properties = take_properties(given)
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
        if may_wait and self._wire.counts_on_disk(topic):
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
        number = next(self._turn) % len(queues) if group is None else queue_in_order(group, len(queues))
        return queues[number]
