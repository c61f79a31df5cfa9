"""Owns local sends whose long bodies are compressed, as clients of RocketMQ do it.

It does not know how a body is packed (remote.compression), nor what a consumer does: every reader inflates by itself.

    body of more than 4096 bytes that becomes shorter     packed, and the sysFlag says how
    all others, batches, reserve(), delayed messages      as without compression

Off unless a producer asks for it: in memory a copy is cheaper than packing, but a store keeps three days of messages.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from shmq.client.producers.compression import COMPRESS_ABOVE_BYTES, compress
from shmq.client.wire_tcp.outgoing import body_of, keys_of, message_properties
from shmq.errors import UsageError
from shmq.message import encode_properties
from shmq.protocol.message_id import message_id_text
from shmq.shm.core import receipt_make, tag_hash

if TYPE_CHECKING:
    from shmq.client.wire_shm.session import Session
    from shmq.shm.core import Producer, Receipt

_OURS: Final = frozenset(
    ("tag", "key", "keys", "properties", "message_group", "queue_id", "flag", "timeout")  # of a plain send
)


class CompressingSender:
    """A local sender that packs long bodies; the four ways of `MessageSender`."""

    def __init__(self, session: Session, inner: Producer, kind: str, timeout: float) -> None:
        self._session = session
        self._inner = inner
        self._kind = kind
        self._timeout = timeout
        self._turn = itertools.count()
        self.send_batch = inner.send_batch
        self.reserve = inner.reserve

    def send(self, topic: str, body: Any, **arguments: Any) -> Receipt:
        """Store one message and return where."""
        return self._send(topic, body, arguments, waits=self._session.wait_durable) or self._inner.send(
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
        if len(data) <= COMPRESS_ABOVE_BYTES or given.keys() - _OURS:
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
        store = self._session.store
        if waits:
            store.wait_durable(end, timeout)
        message_id = message_id_text(store.head["store_host"], log_position)
        return receipt_make(topic, queue_id, offset, log_position, store_ms, message_id)

    def _queue_id(self, topic: str, queue_id: int | None, group: str | None) -> int:
        queues: Sequence[int] = self._session.write_queues(topic)
        if not queues:
            raise UsageError(f"topic '{topic}' takes no messages now", hint="see its permission: shmq topic show")
        if queue_id is not None:
            if queue_id not in queues:
                raise UsageError(f"topic '{topic}' has {len(queues)} write queues, none of them is {queue_id!r}")
            return queue_id
        turn = tag_hash(group) & 0x7FFFFFFF if group is not None else next(self._turn)
        return queues[turn % len(queues)]
