"""Sending from an event loop: at once when nothing is in the way, else in a thread.

An append takes microseconds, so it is tried on the loop without ever waiting; only
when the lock is taken, space runs out, or the disk has to be waited for, a thread does the waiting. A remote send runs
on its connection's I/O thread anyway; the loop only waits for it.

Invariant: a message is stored once. The try on the loop either stores it or leaves nothing behind, or its error says
`maybe_stored` and ends the send; a batch that would be stored in several parts is not tried.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack

from shmq.aio.message import Slot
from shmq.aio.offload import SyncT, awaited, offload
from shmq.aio.opening import Face
from shmq.client.keywords import BatchArguments, ReserveArguments, SendArguments
from shmq.client.kinds import check_wait
from shmq.client.local_session import LocalSession as Session
from shmq.client.producers.producer import Sender
from shmq.client.refusals import seconds_left
from shmq.errors import BrokerBusy, BrokerNotRunning, NotMaster, SegmentFull
from shmq.shm.core import BATCH_MAX

if TYPE_CHECKING:
    from shmq.client.keywords import Body
    from shmq.client.link import Link
    from shmq.shm.core import Producer as CoreProducer
    from shmq.shm.core import Receipt, Store

BATCH_BYTES_INLINE_MAX = 128 << 10
"""Bodies of a batch that is tried at once: half of what the core stores under one lock, so headers fit beside them."""


class Sending:
    """The four ways to send, for a connection or a producer."""

    def __init__(self, sender: Sender, link: Link, timeout: float) -> None:
        self._sender = sender
        self._link = link
        self._timeout = timeout
        # Traced, packed or sent to a chosen queue: another one than the core decides.
        shapes = (getattr(sender, name, None) for name in ("_selector", "_compression"))
        self._is_shaped = link._observer is not None or any(shape is not None for shape in shapes)
        self._session: Session | None = None
        self._store: Store | None = None  # of its generation of segments; the fast producer is of both
        self._fast: CoreProducer | None = None
        self._known: set[str] = set()

    async def store(self, name: str, topic: str, body: Any, given: Any) -> Any:
        """Send in one of the three ways, "send", "send_oneway" or "send_batch", with the arguments given."""
        arguments: dict[str, Any] = given
        if self._link.is_remote:
            return await self._started(f"start_{name}", topic, body, arguments)
        deadline = time.monotonic() + check_wait(arguments.get("timeout"), self._timeout)
        fast, store = self._fast_for(topic), self._store
        if fast is not None and (name != "send_batch" or _is_one_part(body)):
            arguments.pop("timeout", None)
            if isinstance(arguments.get("keys"), Iterator):
                arguments["keys"] = list(arguments["keys"])  # a second try needs them, too
            try:
                stored = getattr(fast, name)(topic, body, **arguments)
            except (BrokerBusy, SegmentFull, NotMaster, BrokerNotRunning) as error:
                if error.maybe_stored:
                    raise
            else:
                if name != "send_oneway" and store is not None and self._waits_durable:
                    await _durable(store, deadline)
                return stored
        stored = await offload(_until, deadline, getattr(self._sender, name), topic, body, arguments)
        self._known.add(topic)
        return stored

    def reserve(self, topic: str, size: int, **arguments: Unpack[ReserveArguments]) -> Slot:
        """Return room for a body, for an `async with` block."""
        return Slot(lambda: self._sender.reserve(topic, size, **arguments))

    async def _started(self, start: str, topic: str, body: Any, arguments: Mapping[str, Any]) -> Any:
        """Begin a send on the connection's own I/O thread, and wait for it here."""
        begin = getattr(self._sender.send, "__self__", None)
        if not hasattr(begin, start):  # closed, or forked: the sync call opens it again, or says why not
            name = start.removeprefix("start_")
            return await offload(getattr(self._sender, name), topic, body, **arguments)
        return await asyncio.wrap_future(getattr(begin, start)(topic, body, **arguments))

    def _fast_for(self, topic: str) -> CoreProducer | None:
        """A producer that never waits, once the topic is known: looking it up may ask the broker."""
        session = self._link._session
        if self._is_shaped:
            return None
        if session is None or topic not in self._known or not isinstance(session, Session):
            return None
        if not session.sends.is_here or session.wire.says_on_disk(topic):
            return None  # of such a topic the core waits for the disk, which the loop must not
        if session is not self._session or session.wire.store is not self._store:
            self._session, self._store = session, session.wire.store
            self._fast = session.sends.core_producer(0.0, store=self._store, wait_durable=False)
        return self._fast

    @property
    def _waits_durable(self) -> bool:
        return self._session is not None and self._session.wire.wait_durable


class SendingFace(Face[SyncT]):
    """The twin of something that sends; a derived class sets `_sending` when the sync object is made."""

    _sending: Sending | None = None

    async def _sender(self) -> Sending:
        await self._open()
        assert self._sending is not None
        return self._sending

    async def send(self, topic: str, body: Body, **arguments: Unpack[SendArguments]) -> Receipt:
        """Store one message and return where; see `shmq.Connection.send`."""
        sending = self._sending or await self._sender()
        return await sending.store("send", topic, body, arguments)  # type: ignore[no-any-return]

    async def send_oneway(self, topic: str, body: Body, **arguments: Unpack[SendArguments]) -> None:
        """Store one message without a receipt and without waiting for durability."""
        await (self._sending or await self._sender()).store("send_oneway", topic, body, arguments)

    async def send_batch(
        self, topic: str, bodies: Sequence[Body], **arguments: Unpack[BatchArguments]
    ) -> list[Receipt]:
        """Store all bodies into one queue, in order, and return their receipts."""
        sending = self._sending or await self._sender()
        return await sending.store("send_batch", topic, bodies, arguments)  # type: ignore[no-any-return]

    recall = awaited(Sender.recall)


def _until(deadline: float, send: Callable[..., Any], topic: str, body: Any, arguments: Mapping[str, Any]) -> Any:
    """Send within the time that is left, of which the wait for this thread was a part."""
    return send(topic, body, **{**arguments, "timeout": seconds_left(deadline)})


async def _durable(store: Store, deadline: float) -> None:
    """Wait for what a store has appended just now: another one's positions say nothing of it."""
    position = store.log_end  # at or behind its end
    if store.safe_end < position:
        await offload(_wait_durable, store, position, deadline)


def _wait_durable(store: Store, position: int, deadline: float) -> None:
    store.wait_durable(position, seconds_left(deadline))


def _is_one_part(bodies: Sequence[Any]) -> bool:
    try:
        if len(bodies) > min(BATCH_MAX, 256):
            return False
        return sum(len(body) for body in bodies) <= BATCH_BYTES_INLINE_MAX
    except TypeError:
        return False
