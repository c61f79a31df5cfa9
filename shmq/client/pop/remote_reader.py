"""Owns taking and settling messages over TCP where brokers offer POP: what goes to which broker, and when.

It does not know what is in hand (`popped`), nor requests (`pop_requests`).

Rules:
    (1) one pop of each broker is on its way at most;
    (2) requests about one message go out one after the other: each needs the receipt the one before has brought.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from typing import TYPE_CHECKING, Any, Final

from shmq.client.pop.leases import Lease, PoppedReader, too_late
from shmq.client.pop.remote_requests import PopRequests
from shmq.client.pop.words import Batch, pop_of
from shmq.client.redelivery.send_back import DEAD_LETTER, send_back_ext
from shmq.errors import ShmqError
from shmq.protocol.codes import Request
from shmq.protocol.command import Command
from shmq.protocol.dialect import MessageQueue
from shmq.protocol.failure import error_of
from shmq.protocol.pop import POP_COUNT_MAX, RECEIPT_PROPERTY, Receipt, parse_receipt
from shmq.shm.core import Message, records_read

if TYPE_CHECKING:
    from shmq.client.pop.leases import PopOwner
    from shmq.client.spec import ConsumerSpec
    from shmq.client.wire_tcp.session import RemoteSession

ACK_TRIES: Final = 3
ACK_PAUSE: Final = 0.5
ERROR_PAUSE: Final = 1.0
MISSING_PAUSE: Final = 0.2
BURY_HOLD: Final = 30.0
"""How long a message is kept from others while it is put among the dead letters, in seconds."""


class _Lease(Lease):
    """One message in hand."""

    __slots__ = ("changing",)

    def __init__(self, pop: Receipt, offset: int, until: float) -> None:
        super().__init__(pop, offset, until)
        self.changing: asyncio.Task[None] | None = None  # I/O thread only


class PopReader(PoppedReader[_Lease]):
    """Takes messages from the brokers of one topic; any thread may use it."""

    def __init__(self, session: RemoteSession, owner: PopOwner, spec: ConsumerSpec) -> None:
        super().__init__(owner, spec)
        self.session = session
        self._requests = PopRequests(session)

    # -- receiving
    def _ask(self, count: int, hold: float) -> None:
        self.session.network.submit(self._ask_all(count, hold))

    async def _ask_all(self, count: int, hold: float) -> None:
        session, failed = self.session, False
        try:
            route = await session.names.route(self.spec.topic, timeout=session.timeout)
            names = sorted({queue.brokerName for queue in route.readable}) if route is not None else []
            if names:
                results = await asyncio.gather(*(self._ask_one(name, count, hold) for name in names))
                failed = not all(results)
            else:
                await asyncio.sleep(min(hold, MISSING_PAUSE))
        except ShmqError as error:
            self._warn(error)
            failed = True
        if failed:
            session.names.routes.forget(self.spec.topic)
            await asyncio.sleep(min(hold, ERROR_PAUSE))
        self._landed()

    async def _ask_one(self, broker_name: str, count: int, hold: float) -> bool:
        try:
            batch = await self._requests.pop(self.spec, broker_name, count=count, invisible=self._invisible, hold=hold)
            if batch.body:
                self._received(broker_name, batch)
        except ShmqError as error:
            self._warn(error)
            return False
        return True

    def _received(self, broker_name: str, batch: Batch) -> None:
        base = self.session.numbers.number(MessageQueue(broker_name, 0, self.spec.topic))
        messages = records_read(batch.body, owner=self, codec=self.spec.codec, queue_base=base)
        pops, until = batch.pops(broker_name), self.owner._now() + batch.invisible_ms / 1000
        found = [(message, _lease_of(message, pops, message.queue_id - base, until)) for message in messages]
        self._arrived(found, batch.rest)

    # -- settling
    def _settle_soon(self) -> None:
        self.session.network.soon(self._send_acks)

    def _hide(self, lease: _Lease, seconds: float) -> None:
        self._submit(self._change(lease, seconds))

    def _prolong(self, message: Message, lease: _Lease, seconds: float) -> None:
        now = self.owner._now()
        if lease.until < now:
            raise too_late(message)
        lease.until = now + seconds
        self._submit(self._change(lease, seconds))

    def _bury(self, lease: _Lease, message: Message, reason: str) -> None:
        self._submit(self._put_away(lease, message, reason))

    def _give_back(self, leases: list[_Lease]) -> None:
        for lease in leases:
            self._submit(self._change(lease, 0.0))

    # -- on the I/O thread
    def _submit(self, work: Coroutine[Any, Any, None]) -> None:
        self.session.expect(self.session.network.submit(work))

    async def _in_turn(self, lease: _Lease, work: Coroutine[Any, Any, None]) -> None:
        """Do something about a message after what was begun before."""
        before = lease.changing
        lease.changing = task = asyncio.ensure_future(_after(before, work))
        await task

    async def _change(self, lease: _Lease, seconds: float) -> None:
        async def change() -> None:
            receipt = await self._requests.change(self.spec, lease.receipt, seconds)
            if receipt is not None:
                lease.pop = receipt.pop

        await self._tried(self._in_turn(lease, change()), "is not hidden as long as was asked")

    async def _put_away(self, lease: _Lease, message: Message, reason: str) -> None:
        ext = {**send_back_ext(self.spec, message, DEAD_LETTER, reason), "bname": lease.pop.broker}

        async def bury() -> None:
            receipt = await self._requests.change(self.spec, lease.receipt, BURY_HOLD)
            if receipt is None:
                return  # others have it, and it is theirs to judge
            queue = MessageQueue(lease.pop.broker, 0, self.spec.topic)
            address = await self.session.queues.master(queue, self.session.timeout)
            command = Command(code=Request.CONSUMER_SEND_MSG_BACK, ext=ext)
            if error := error_of(await self.session.network.request(address, command, self.session.timeout)):
                raise error
            await self._requests.ack(self.spec, [receipt])

        await self._tried(self._in_turn(lease, bury()), "could not be put among the dead letters, and comes again")

    def _send_acks(self) -> None:
        with self.changed:
            leases, self._acked = self._acked, []
        pops: dict[Receipt, list[_Lease]] = {}
        for lease in leases:
            pops.setdefault(lease.pop, []).append(lease)
        for together in pops.values():
            self._submit(self._acknowledge(together))

    async def _acknowledge(self, leases: list[_Lease]) -> None:
        for lease in leases:
            if lease.changing is not None:
                await asyncio.wait({lease.changing})
        changed = [lease for lease in leases if lease.changing is not None]
        together = [lease.receipt for lease in leases if lease.changing is None]
        for receipts in [together, *([lease.receipt] for lease in changed)]:
            for start in range(0, len(receipts), POP_COUNT_MAX):
                await self._acknowledge_some(receipts[start : start + POP_COUNT_MAX])

    async def _acknowledge_some(self, receipts: list[Receipt]) -> None:
        for attempt in range(ACK_TRIES):
            try:
                await self._requests.ack(self.spec, receipts)
            except ShmqError as error:
                if attempt + 1 == ACK_TRIES:
                    self._warn(error, f"{len(receipts)} messages could not be acknowledged, and come again")
                await asyncio.sleep(ACK_PAUSE)
            else:
                return

    async def _tried(self, work: Coroutine[Any, Any, None], consequence: str) -> None:
        try:
            await work
        except ShmqError as error:
            self._warn(error, f"a message {consequence}")


def _lease_of(message: Message, pops: Mapping[int, Receipt], queue_id: int, until: float) -> _Lease:
    text = message.properties.get(RECEIPT_PROPERTY)
    return _Lease(parse_receipt(text).pop if text else pop_of(pops, queue_id), message.offset, until)


async def _after(before: asyncio.Task[None] | None, work: Coroutine[Any, Any, None]) -> None:
    if before is not None:
        await asyncio.wait({before})
    await work
