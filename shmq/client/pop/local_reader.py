"""Owns taking and settling messages of this host through the broker's POP engine: asked for over the control socket,
read where they lie.

It does not know what is in hand (`popped`), nor how the broker remembers it.

    receive ──POP_MESSAGE──▶ broker: a checkpoint in the log, then the answer
                             places of the log       ──▶ messages in the mapped file; no body is copied
                             records                 ──▶ what came again: the broker has written its own topic into it
    ack     ──at the next receive, after 1 ms, or at close──▶ BATCH_ACK_MESSAGE, any number of pops together
    nack, extend, reject ──▶ asked and answered before they return

Rules:
    (1) acknowledgements are sent until the broker has confirmed them, or their time is over: a broker that is away for
        a moment costs no second delivery;
    (2) what cannot be read is not acknowledged: the broker knows whether it is gone;
    (3) nothing is asked while the segments that are mapped are not those of the broker that would answer.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from shmq.client.pop.leases import Lease, PoppedReader, key_of, too_late
from shmq.client.pop.words import Batch, ack_body, batch_of, hiding_fields, new_receipt, pop_fields, pop_of
from shmq.client.redelivery.send_back import DEAD_LETTER, send_back_ext
from shmq.errors import RemoteError, ShmqError
from shmq.protocol.codes import Request, Response
from shmq.protocol.failure import error_of
from shmq.protocol.pop import RECEIPT_PROPERTY, Receipt, parse_receipt
from shmq.shm.core import CoreError, Message, records_read

if TYPE_CHECKING:
    from shmq.client.pop.leases import PopOwner
    from shmq.client.spec import ConsumerSpec
    from shmq.client.wire_shm.session import Session
    from shmq.protocol.command import Command

ACK_DELAY: Final = 0.001
ACK_PAUSE: Final = 0.5
ACKS_MAX: Final = 1000
CLOSE_WAIT: Final = 1.0
AWAY_PAUSE: Final = 0.05
ERROR_PAUSE: Final = 1.0
BURY_HOLD: Final = 30.0
"""How long a message is kept from others while it is put among the dead letters, in seconds."""


class LocalPopReader(PoppedReader[Lease]):
    """Takes messages of one topic of this host; any thread may use it. It outlives the segments it reads."""

    def __init__(self, session: Session, owner: PopOwner, spec: ConsumerSpec) -> None:
        super().__init__(owner, spec)
        self._session = session
        self._is_ack_due = False
        self._unconfirmed = 0

    # -- receiving
    def _ask(self, count: int, hold: float) -> None:
        session = self._session
        fields = pop_fields(
            self.spec,
            session.instance.broker_name,
            count=count,
            invisible=self._invisible,
            hold=hold,
            now_ms=round(time.time() * 1000),
        )
        fields["places"] = "true"
        self._send_acks()
        try:
            if not session.is_current:
                self.owner._later(AWAY_PAUSE, self._landed)
                return
            session.control.begin(Request.POP_MESSAGE, fields, then=self._answered)
        except ShmqError:  # the broker is away: whoever waits asks again
            self.owner._later(AWAY_PAUSE, self._landed)

    def _answered(self, reply: Command | None) -> None:
        try:
            if reply is not None:
                batch = batch_of(reply)
                self._arrived([*self._placed(batch), *self._carried(batch)], batch.rest)
        except ShmqError as error:
            self._warn(error)
            self.owner._later(ERROR_PAUSE, self._landed)
            return
        self._landed()

    def _placed(self, batch: Batch) -> list[tuple[Message, Lease]]:
        message_at, codec = self._session.store.message_at, self.spec.codec
        pops, until = batch.pops(self._session.instance.broker_name), self._until(batch)
        found = []
        for place in batch.places:
            try:
                message = message_at(place, 0, self, codec)
            except CoreError as error:
                self._warn(error, "a message cannot be read")
                continue
            found.append((message, Lease(pop_of(pops, message.queue_id), message.offset, until)))
        return found

    def _carried(self, batch: Batch) -> list[tuple[Message, Lease]]:
        messages = records_read(batch.body, owner=self, codec=self.spec.codec) if batch.body else []
        until = self._until(batch)
        receipts = [parse_receipt(message.properties.get(RECEIPT_PROPERTY, "")) for message in messages]
        return [
            (message, Lease(receipt.pop, message.offset, until))
            for message, receipt in zip(messages, receipts, strict=True)
        ]

    def _until(self, batch: Batch) -> float:
        return self.owner._now() + batch.invisible_ms / 1000

    def lag(self) -> int:
        """Return how many messages wait for the group, or are in hand here."""
        return self._in_hand() + self._session.poppers.waiting_for(self.spec)

    # -- settling
    def _settle_soon(self, delay: float = ACK_DELAY) -> None:
        if not self._is_ack_due:
            self._is_ack_due = True
            self.owner._later(delay, self._ack_due)

    def _ack_due(self) -> None:
        with self.changed:
            self._is_ack_due = False
        self._send_acks()

    def _send_acks(self) -> None:
        with self.changed:
            leases, self._acked = self._acked, []
            self._unconfirmed += len(leases)
        for start in range(0, len(leases), ACKS_MAX):
            some = leases[start : start + ACKS_MAX]
            try:
                self._session.control.begin(*self._acks_of(some), then=partial(self._confirmed, some))
            except ShmqError:
                self._confirmed(some, None)

    def _acks_of(self, leases: Sequence[Lease]) -> tuple[int, dict[str, str], bytes]:
        pops: dict[Receipt, list[int]] = {}
        for lease in leases:
            pops.setdefault(lease.pop, []).append(lease.offset)
        ext = {"bname": self._session.instance.broker_name}
        return Request.BATCH_ACK_MESSAGE, ext, ack_body(self.spec, pops)

    def _confirmed(self, leases: Sequence[Lease], reply: Command | None) -> None:
        error = error_of(reply) if reply is not None else None
        failed = reply is None or error is not None
        now = self.owner._now()
        again = [lease for lease in leases if lease.until > now] if failed else []
        with self.changed:
            self._unconfirmed -= len(leases)
            self._acked += again
            if again:
                self._settle_soon(ACK_PAUSE)
            self.changed.notify_all()
        if error is not None:
            self._warn(error, f"{len(leases)} messages could not be acknowledged, trying on")

    def _hide(self, lease: Lease, seconds: float) -> None:
        self._tried(lambda: self._change(lease, seconds), "is not hidden as long as was asked")

    def _prolong(self, message: Message, lease: Lease, seconds: float) -> None:
        if not self._tried(lambda: self._change(lease, seconds), "is not hidden as long as was asked"):
            raise too_late(message)
        with self.changed:
            if self._leases.get(key_of(message)) is not lease:  # acknowledged meanwhile, under the receipt before
                self._acked.append(lease)
                self._settle_soon()

    def _change(self, lease: Lease, seconds: float) -> bool:
        """Hide a message anew; False when the broker says that it is not in hand any more."""
        fields = hiding_fields(self.spec, lease.receipt, seconds)
        try:
            reply = self._session.control.request(Request.CHANGE_MESSAGE_INVISIBLETIME, fields)
        except RemoteError as error:
            if error.code != Response.NO_MESSAGE:
                raise
            return False
        receipt = new_receipt(reply, lease.receipt)
        if receipt is not None:
            lease.pop, lease.until = receipt.pop, self.owner._now() + seconds
        return True

    def _bury(self, lease: Lease, message: Message, reason: str) -> None:
        def bury() -> bool:
            if self._change(lease, BURY_HOLD):  # else others have it, and it is theirs to judge
                ext = send_back_ext(self.spec, message, DEAD_LETTER, reason)
                self._session.control.request(Request.CONSUMER_SEND_MSG_BACK, ext)
                self._session.control.request(*self._acks_of([lease]))
            return True

        self._tried(bury, "could not be put among the dead letters, and comes again")

    def _bury_late(self, lease: Lease, message: Message, reason: str) -> None:
        self.owner._later(0.0, lambda: self._bury(lease, message, reason))

    def _tried(self, work: Callable[[], bool], consequence: str) -> bool:
        try:
            return work()
        except ShmqError as error:
            self._warn(error, f"a message {consequence}")
            return True

    # -- the end
    def close(self) -> None:
        """Stop, settle what was acknowledged, and give back what is in hand; waits for the broker a second at most."""
        self.stop()
        if self._pid != os.getpid():
            return
        self._wait_confirmed()
        with self.changed:
            leases, self._acked = self._acked, []
        consequence = "could not be acknowledged before the end, and comes again"
        for start in range(0, len(leases), ACKS_MAX):
            acks = self._acks_of(leases[start : start + ACKS_MAX])
            self._tried(lambda acks=acks: bool(self._session.control.request(*acks)), consequence)  # type: ignore[misc]
        self._give_back_all()
        self._wait_confirmed()

    def settle(self) -> None:
        """Let the broker confirm what was acknowledged; waits for it a second at most."""
        self._send_acks()
        self._wait_confirmed()

    def _wait_confirmed(self) -> None:
        with self.changed:
            self.changed.wait_for(lambda: not self._unconfirmed, CLOSE_WAIT)

    def _give_back(self, leases: list[Lease]) -> None:
        for lease in leases:
            with self.changed:
                self._unconfirmed += 1
            fields = hiding_fields(self.spec, lease.receipt, 0.0)
            try:
                self._session.control.begin(Request.CHANGE_MESSAGE_INVISIBLETIME, fields, then=self._given_back)
            except ShmqError:  # the broker is away: they come again when their time is over
                self._given_back(None)
                return

    def _given_back(self, _reply: Command | None) -> None:
        with self.changed:
            self._unconfirmed -= 1
            self.changed.notify_all()
