"""Sending through shared memory: plain sends are the core's own methods, without a Python frame around them.

What the core cannot do by itself is added around it: packing, delays (`delayed.py`), and a master on another host
(`shmq/client/leader.py`). In memory a copy is cheaper than packing, but a store keeps three days of messages:

    body of more than 4096 bytes that becomes shorter     packed where the producer asks for it; the sysFlag says how
    all others, batches, reserve(), delayed messages      as they are
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

from shmq.client.keywords import OWN, body_of, queue_in_order, take_properties
from shmq.client.kinds import explained, refuse_wrong
from shmq.client.leader import FollowingSender, Leader
from shmq.client.producers.delayed import SpecialSend
from shmq.client.producers.refused_sends import RefusedSends, WaitingSender
from shmq.client.refusals import may_be_taken_elsewhere, until_taken
from shmq.client.wire import MessageSender, ResultT
from shmq.client.wire_shm.wire import ShmQueues, ShmWire
from shmq.errors import ShmqError, UsageError
from shmq.message import TRACE_TOPIC, check_open_topic
from shmq.properties import encode_properties
from shmq.protocol.compression import COMPRESS_ABOVE_BYTES, compress
from shmq.protocol.message_id import message_id_text, message_place
from shmq.shm.core import Producer, Receipt, Store, receipt_make
from shmq.shm.links import read_links


class LocalSends:
    """Sends to this host's broker; see `shmq.client.wire.Sends`."""

    def __init__(self, wire: ShmWire, queues: ShmQueues, leader: Leader) -> None:
        self._wire = wire
        self._queues = queues
        self._leader = leader
        self._internal: tuple[Store, Producer] | None = None
        self._was_elected = False  # the broker's leader; in a switch nothing says so for a moment

    def core_producer(
        self,
        timeout: float,
        *,
        store: Store | None = None,
        wait_durable: bool | None = None,
        keeps: object = None,
        refused: RefusedSends | None = None,
    ) -> Producer:
        """Return a new core producer; `timeout` in seconds, `keeps` lives as long as it.

        Args:
            store: into which it appends; None takes that of now.
        """
        waits = self._wire.wait_durable if wait_durable is None else wait_durable
        store = self._wire.store if store is None else store
        making = functools.partial(Producer, store, timeout=timeout, wait_durable=waits)
        plain = functools.partial(making, resolve=self._queues.resolve_open, explain=explained)
        keeping = functools.partial(making, resolve=self._queues.resolve, explain=_explained)
        return plain(special=SpecialSend(self._wire, store, self._queues, plain, keeping, keeps), refused=refused)

    def request_producer(self, timeout: float) -> Producer:
        """Return a core producer for what a user asks of others; it takes properties as text, and nothing waits."""
        store, resolve = self._wire.store, self._queues.resolve_open
        return Producer(store, resolve=resolve, timeout=timeout, wait_durable=False, explain=_explained)

    @property
    def internal_producer(self) -> Producer:
        """The producer for what the client itself stores, such as answers and traces."""
        wire, made = self._wire, self._internal
        store = wire.store
        if made is None or made[0] is not store:
            resolve, waits = self._queues.resolve, wire.wait_durable
            made = store, Producer(store, resolve=resolve, timeout=wire.timeout, wait_durable=waits)
            self._internal = made
        return made[1]

    def renew(self) -> None:
        """Forget the segments of a generation that is over."""
        self._internal = None

    @property
    def is_here(self) -> bool:
        """Whether the log of this host takes messages."""
        return self._wire.store.standing == 0

    def sender(
        self, timeout: float, *, group: str | None = None, compression: str | None = None, keeps: object = None
    ) -> MessageSender:
        """Return a new core producer, or what packs bodies before, or what sends to another host that leads.

        A send that this host refuses, as it leads no more or not yet, waits for the leader.
        """
        self._is_elected()  # is noted
        now = functools.partial(self._sender_now, timeout, group, compression)
        refused = RefusedSends(timeout, now, self._is_elected)
        if self.is_here and compression in (None, "none"):
            return self.core_producer(timeout, keeps=keeps, refused=refused)
        return WaitingSender(now(keeps), refused)

    def _sender_now(
        self, timeout: float, group: str | None, compression: str | None, keeps: object = None
    ) -> Producer | CompressingSender | FollowingSender:
        here = self._local_sender(timeout, compression, keeps)
        if self.is_here:
            return here  # when it leads no more, its segments are given up, and this is asked for anew
        return FollowingSender(
            self._leader, here, lambda to: to.sends.sender(timeout, group=group, compression=compression), timeout
        )

    def _is_elected(self) -> bool:
        if not self._was_elected:
            links = read_links(self._wire.place.links_path)
            self._was_elected = links is not None and links.election is not None
        return self._was_elected

    def _local_sender(self, timeout: float, compression: str | None, keeps: object) -> Producer | CompressingSender:
        if compression in (None, "none"):
            return self.core_producer(timeout, keeps=keeps)
        store = self._wire.store
        producer = self.core_producer(timeout, store=store, keeps=keeps)
        return CompressingSender(self._wire, store, self._queues, producer, compression, timeout)

    def until_taken(self, call: Callable[[float], ResultT], seconds: float, topic: str) -> ResultT:
        return until_taken(call, seconds, lambda error: may_be_taken_elsewhere(error) and self._is_elected())

    def fastest_queue(self, topic: str) -> int | None:
        """Return None: shared memory is equally near everywhere."""
        return None

    def store_trace(self, body: bytes, keys: Sequence[str]) -> None:
        if self._leader.is_elsewhere:
            self._leader.session.sends.store_trace(body, keys)
            return
        self._queues.create(TRACE_TOPIC, queues=1)
        self.internal_producer.send_oneway(TRACE_TOPIC, body, keys=keys)

    def host_of(self, receipt: Receipt) -> str:
        place = message_place(receipt.message_id)
        return f"{place.host}:{place.port}" if place is not None else ""


def _explained(named: dict[str, Any], error: BaseException | None) -> ShmqError | None:
    named.pop("properties", None)  # our own text, made of what the user gave
    return explained(named, error)


class CompressingSender:
    """A local sender that packs long bodies; the four ways of `MessageSender`.

    Args:
        store: into which `inner` appends; its positions mean nothing in the one that comes after it.
    """

    def __init__(
        self, wire: ShmWire, store: Store, queues: ShmQueues, inner: Producer, kind: str, timeout: float
    ) -> None:
        self._wire = wire
        self._store = store
        self._queues = queues
        self._inner = inner
        self._kind = kind
        self._timeout = timeout
        self._turn = itertools.count()
        self.send_batch = inner.send_batch
        self.reserve = inner.reserve

    def send(self, topic: str, body: Any, **arguments: Any) -> Receipt:
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
        store = self._store
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
