"""Owns what a simple consumer over TCP has in hand where brokers offer POP, and so hide messages themselves.

It does not know requests (`pop_requests`). Queues are not shared out: whoever asks gets what is there.

    receive ──held pop at every broker of the topic──▶ messages, hidden by the broker from now on
    ack     ──those of one turn together──▶ settled          extend ──▶ hidden anew, under another receipt
    nack    ──hidden for as long as is wanted──▶ comes again with an attempt more; after the last to the dead letters

Rules:
    (1) one pop of each broker is on its way at most; what it brings after its receive() had ended is the next one's;
    (2) requests about one message go out one after the other: each needs the receipt the one before has brought;
    (3) at the end everything in hand is given back, to be delivered to others at once.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections import deque
from collections.abc import Coroutine, Iterator
from typing import TYPE_CHECKING, Any, Final

from shmq.client import options
from shmq.client.handing import DEAD_LETTER, send_back_ext
from shmq.client.remote.pop_requests import Batch, PopRequests
from shmq.errors import LeaseExpired, ProtocolError, ShmqError, UsageError
from shmq.message import POP_NORMAL
from shmq.protocol.codes import Request
from shmq.protocol.command import Command
from shmq.protocol.dialect import MessageQueue
from shmq.protocol.failure import error_of
from shmq.protocol.pop import POP_COUNT_MAX, RECEIPT_PROPERTY, Receipt, parse_receipt
from shmq.shm.core import Message, records_read

if TYPE_CHECKING:
    from shmq.client.consumer import ConsumerSpec
    from shmq.client.remote.reader import Owner
    from shmq.client.remote.session import RemoteSession

HOLD_MAX: Final = 15.0
ANSWER_MARGIN: Final = 0.5
"""How much longer than asked a broker may take to say that there is nothing; what comes later waits for the next."""
ACK_TRIES: Final = 3
ACK_PAUSE: Final = 0.5
ERROR_PAUSE: Final = 1.0
MISSING_PAUSE: Final = 0.2

_Key = tuple[str, int, int]


class _Lease:
    """One message in hand."""

    __slots__ = ("changing", "receipt", "until")

    def __init__(self, receipt: Receipt) -> None:
        self.receipt = receipt
        self.until = time.monotonic() + receipt.invisible_ms / 1000
        self.changing: asyncio.Task[None] | None = None  # I/O thread only


class PopReader:
    """Takes messages from the brokers of one topic; any thread may use it."""

    hides = True

    def __init__(self, session: RemoteSession, owner: Owner, spec: ConsumerSpec) -> None:
        self.session = session
        self.owner = owner
        self.spec = spec
        self.changed = threading.Condition()
        self.stopped = False
        self._requests = PopRequests(session)
        self._invisible = options.INVISIBLE if spec.invisible is None else spec.invisible
        self._waiting: deque[Message] = deque()
        self._leases: dict[_Key, _Lease] = {}
        self._rest = 0  # messages the brokers have left behind their last answers
        self._flying = False
        self._is_quick = False  # what is on its way does not wait for messages
        self._acked: list[_Lease] = []
        self._woken = False
        self._pid = os.getpid()

    # -- receiving
    def poll(self, max: int = options.RECEIVE_MAX, timeout: float = 0.0) -> list[Message]:
        """Return at most `max` messages; [] when none came in time, after wake() and after stop()."""
        deadline = time.monotonic() + timeout
        taken: list[Message] = []
        asked = False
        with self.changed:
            while not self.stopped:
                while self._waiting and len(taken) < max:
                    taken.append(self._waiting.popleft())
                remaining = deadline - time.monotonic()
                if len(taken) >= max or self._woken or (taken and not self._goes_on):
                    break
                if remaining <= (-ANSWER_MARGIN if self._flying else 0.0) and asked:
                    break
                if not self._flying:
                    asked = True
                    self._ask(max - len(taken), 0.0 if taken else min(remaining, HOLD_MAX))
                elif remaining <= -ANSWER_MARGIN:
                    break
                self.changed.wait(
                    options.ITERATION_SLICE if remaining <= 0 else min(remaining, options.ITERATION_SLICE)
                )
            self._woken = False
        return taken

    @property
    def _goes_on(self) -> bool:
        """Whether more is there, or may be on its way without waiting."""
        return self._is_quick if self._flying else self._rest > 0

    def _ask(self, count: int, hold: float) -> None:
        self._flying, self._is_quick, self._rest = True, hold <= 0, 0
        self.session.network.submit(self._ask_all(min(count, POP_COUNT_MAX), max(0.0, hold)))

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
        with self.changed:
            self._flying = False
            self.changed.notify_all()

    async def _ask_one(self, broker_name: str, count: int, hold: float) -> bool:
        try:
            batch = await self._requests.pop(self.spec, broker_name, count=count, invisible=self._invisible, hold=hold)
            self._arrived(broker_name, batch)
        except ShmqError as error:
            self._warn(error)
            return False
        return True

    def _arrived(self, broker_name: str, batch: Batch) -> None:
        if not batch.body:
            return
        base = self.session.numbers.number(MessageQueue(broker_name, 0, self.spec.topic))
        messages = records_read(batch.body, owner=self, codec=self.spec.codec, queue_base=base)
        with self.changed:
            for message in messages:
                lease = _Lease(self._receipt_of(message, broker_name, batch, message.queue_id - base))
                self._leases[_key(message)] = lease
                if self.spec.tags and message.tag not in self.spec.tags:
                    self._settle(message)  # another tag with the same hash
                else:
                    self._waiting.append(message)
            self._rest += batch.rest
            self.changed.notify_all()
        if self.stopped:
            self._give_back_all()

    def _receipt_of(self, message: Message, broker_name: str, batch: Batch, queue_id: int) -> Receipt:
        if text := message.properties.get(RECEIPT_PROPERTY):
            return parse_receipt(text)
        first = batch.first_offsets.get((POP_NORMAL, queue_id))
        if first is None:
            raise ProtocolError(f"the answer to a pop does not say where queue {queue_id} begins")
        return Receipt(
            first,
            batch.pop_ms,
            batch.invisible_ms,
            batch.revive_queue,
            POP_NORMAL,
            broker_name,
            queue_id,
            message.offset,
        )

    def __iter__(self) -> Iterator[Message]:
        return self

    def __next__(self) -> Message:
        while not self.stopped:
            if messages := self.poll(1, options.ITERATION_SLICE):
                return messages[0]
            if self.owner._idle():
                break
        raise StopIteration

    # -- settling, as the messages ask for it
    def _ack(self, message: Message) -> None:
        with self.changed:
            self._settle(message)

    def _settle(self, message: Message) -> None:
        lease = self._leases.pop(_key(message), None)
        if lease is None:
            return
        self._acked.append(lease)
        if len(self._acked) == 1:
            self.session.network.soon(self._send_acks)

    def _nack(self, message: Message, after: float | None) -> None:
        if after is not None and not 0 <= after <= options.INVISIBLE_MAX:
            hint = f"0 to {options.INVISIBLE_MAX:g} s over TCP, or None"
            raise UsageError(f"a message cannot come again in {after} s", hint=hint)
        if self.spec.attempts_max is not None and message.attempt >= self.spec.attempts_max:
            self.bury(message, "")
            return
        with self.changed:
            lease = self._leases.pop(_key(message), None)
        if lease is not None:
            seconds = options.retry_delay(message.attempt) if after is None else after
            self._submit(self._change(lease, seconds))

    def _extend(self, message: Message, seconds: float) -> None:
        if not 0 <= seconds <= options.INVISIBLE_MAX:
            raise UsageError(f"a message cannot be hidden for {seconds} s", hint=f"0 to {options.INVISIBLE_MAX:g} s")
        with self.changed:
            lease = self._leases.get(_key(message))
            if lease is None:
                return
            if lease.until < time.monotonic():
                raise LeaseExpired(
                    f"the invisible time of message {message.message_id} is over, others may have it",
                    hint="extend it earlier, or give receive() a longer invisible time",
                )
            lease.until = time.monotonic() + seconds
        self._submit(self._change(lease, seconds))

    def bury(self, message: Message, reason: str) -> bool:
        """Let the broker put a message among the dead letters; False when it is not in hand."""
        with self.changed:
            lease = self._leases.pop(_key(message), None)
        if lease is None:
            return False
        message.ack()  # it is not in hand any more: only the object counts as settled
        self._submit(self._bury(lease, message, reason))
        return True

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
            lease.receipt = receipt or lease.receipt

        await self._tried(self._in_turn(lease, change()), "is not hidden as long as was asked")

    async def _bury(self, lease: _Lease, message: Message, reason: str) -> None:
        ext = {**send_back_ext(self.spec, message, DEAD_LETTER, reason), "bname": lease.receipt.broker}

        async def bury() -> None:
            queue = MessageQueue(lease.receipt.broker, 0, self.spec.topic)
            address = await self.session.queues.master(queue, self.session.timeout)
            command = Command(code=Request.CONSUMER_SEND_MSG_BACK, ext=ext)
            if error := error_of(await self.session.network.request(address, command, self.session.timeout)):
                raise error
            await self._requests.ack(self.spec, [lease.receipt])

        await self._tried(self._in_turn(lease, bury()), "could not be put among the dead letters, and comes again")

    def _send_acks(self) -> None:
        with self.changed:
            leases, self._acked = self._acked, []
        pops: dict[Receipt, list[_Lease]] = {}
        for lease in leases:
            pops.setdefault(lease.receipt._replace(offset=0), []).append(lease)
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

    def _warn(self, error: ShmqError, what: str = "nothing can be received, trying on") -> None:
        import logging

        logging.getLogger("shmq").warning(
            'topic "%s", group "%s": %s: %s', self.spec.topic, self.spec.group, what, error
        )

    # -- what every reader has
    def assign(self, topic: str, queue: int, queue_id: int, offset: int, slot: int = -1, /) -> None:
        """Nothing: messages come from all queues."""

    def assigned(self) -> list[tuple[str, int, int, int, int]]:
        """Return nothing: no queue is ours."""
        return []

    def seek(self, queue: int, offset: int, /) -> None:
        """Nothing: the broker knows where the group is."""

    def revoke(self, queue: int, /) -> None:
        """Nothing: no queue is ours."""

    def requeue(self, message: Message) -> None:
        """Nothing: the broker delivers again."""

    def lag(self) -> int:
        """Return how many messages wait at the brokers, as far as their last answers tell, or are in hand."""
        with self.changed:
            return self._rest + len(self._leases)

    def wake(self) -> None:
        """End a wait, from any thread."""
        with self.changed:
            self._woken = True
            self.changed.notify_all()

    def stop(self) -> None:
        """End the iteration and every later poll, from any thread."""
        with self.changed:
            self.stopped = True
            self.changed.notify_all()

    def close(self) -> None:
        """Stop, and give back what is in hand."""
        self.stop()
        self._give_back_all()

    def _give_back_all(self) -> None:
        if self._pid != os.getpid():
            return
        with self.changed:
            leases = list(self._leases.values())
            self._leases.clear()
            self._waiting.clear()
        for lease in leases:
            self._submit(self._change(lease, 0.0))


async def _after(before: asyncio.Task[None] | None, work: Coroutine[Any, Any, None]) -> None:
    if before is not None:
        await asyncio.wait({before})
    await work


def _key(message: Message) -> _Key:
    return message.properties.get(RECEIPT_PROPERTY, ""), message.queue_id, message.offset
