"""Settles popped messages at their brokers: acknowledged, hidden for another time, or dead letters.

    ack          those of a millisecond together, and before each pop ──(BATCH_)ACK_MESSAGE──▶ confirmed
                                  ▲                                        │ refused, or the broker is away
                                  └── half a second, while its time runs ──┘
    nack, extend          CHANGE_MESSAGE_INVISIBLETIME; the answer makes the message's next receipt
    dead letter           CHANGE_… for 30 s, CONSUMER_SEND_MSG_BACK, ACK_MESSAGE

What takes more than one request, or changes a receipt, is an `Exchange`: a generator that yields requests and is sent
their answers. On this host the caller carries it out, and waits; over TCP each answer leads to the next request,
without a waiting thread.

Rules:
    (1) acknowledgements are sent until the broker has confirmed them, or their time is over: a broker that is away for
        a moment costs no second delivery;
    (2) exchanges about one message, and its acknowledgement, go out one after the other: each needs the receipt that
        the one before has brought;
    (3) a message is hidden before it is put among the dead letters, so no other member gets it meanwhile.
"""

from __future__ import annotations

import threading
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from shmq.client.redelivery.send_back import DEAD_LETTER, send_back, send_back_ext
from shmq.client.spec import ConsumerSpec
from shmq.client.wire import LOG, Question, ReaderOwner, Wire
from shmq.errors import RemoteError, ShmqError
from shmq.protocol.codes import Response
from shmq.protocol.command import Command
from shmq.protocol.failure import Answer, error_in, reply_of
from shmq.protocol.pop import Receipt, ack_request, change_request, new_receipt
from shmq.shm.core import Message

ACK_DELAY: Final = 0.001
ACK_PAUSE: Final = 0.5
ACKS_MAX: Final = 1000
CLOSE_WAIT: Final = 1.0
DEAD_LETTER_HOLD: Final = 30.0
"""How long a message is kept from others while it is put among the dead letters, in seconds."""

Exchange = Generator[Question, Command, bool]
"""Requests about one message, one after the other; ends with whether the message was in hand still."""
NOT_HIDDEN: Final = "a message is not hidden as long as was asked"
NOT_DEAD: Final = "a message could not be put among the dead letters, and comes again"


@dataclass(slots=True, eq=False)
class Lease:
    """One message in hand: its pop and offset, and until when it is hidden from others, by our clock."""

    pop: Receipt
    offset: int
    until: float
    is_busy: bool = False  # an exchange is on its way
    is_acked: bool = False  # acknowledged meanwhile
    next: tuple[tuple[Exchange, str], ...] = ()  # exchanges that wait for that one

    @property
    def receipt(self) -> Receipt:
        """The receipt that settles it."""
        return self.pop.of(self.offset)


class Settlement:
    """The requests about messages in hand; any thread may use it."""

    def __init__(self, wire: Wire, spec: ConsumerSpec, owner: ReaderOwner) -> None:
        self._wire = wire
        self._spec = spec
        self._owner = owner
        self._waits = wire.is_local
        self._changed = threading.Condition()  # guards all below, and the leases' exchanges
        self._acked: list[Lease] = []
        self._is_due = False
        self._unconfirmed = 0

    # -- acknowledging
    def ack(self, lease: Lease) -> None:
        """Settle a message soon, together with others."""
        with self._changed:
            if lease.is_busy:
                lease.is_acked = True
            else:
                self._acked.append(lease)
                self._send_soon(ACK_DELAY)

    def _send_soon(self, delay: float) -> None:
        if not self._is_due:
            self._is_due = True
            self._owner._later(delay, self._due)

    def _due(self) -> None:
        with self._changed:
            self._is_due = False
        self.send_acks()

    def send_acks(self) -> None:
        """Send what was acknowledged on its way."""
        for broker, leases in self._take_acked():
            with self._changed:
                self._unconfirmed += len(leases)
            self._wire.begin(self._acks(broker, leases), partial(self._confirmed, leases))

    def _acks(self, broker: str, leases: Sequence[Lease]) -> Question:
        receipts = [lease.receipt for lease in leases]
        return Question.of(broker, ack_request(self._spec.group or "", self._spec.topic, broker, receipts))

    def _take_acked(self) -> list[tuple[str, list[Lease]]]:
        """Take what was acknowledged, in portions that fit one request, each with its broker."""
        with self._changed:
            leases, self._acked = self._acked, []
        brokers: dict[str, list[Lease]] = {}
        for lease in leases:
            brokers.setdefault(lease.pop.broker, []).append(lease)
        return [
            (broker, together[start : start + ACKS_MAX])
            for broker, together in brokers.items()
            for start in range(0, len(together), ACKS_MAX)
        ]

    def _confirmed(self, leases: Sequence[Lease], answer: Answer) -> None:
        error = error_in(answer)
        now = self._owner._now()
        again = [lease for lease in leases if lease.until > now] if error is not None else []
        with self._changed:
            self._unconfirmed -= len(leases)
            self._acked += again
            if again:
                self._send_soon(ACK_PAUSE)
            self._changed.notify_all()
        if error is None:
            return
        if error is not answer:
            warn(self._spec, error, f"{len(leases)} messages could not be acknowledged, trying on")
        elif len(again) < len(leases):
            warn(self._spec, error, f"{len(leases) - len(again)} messages could not be acknowledged, and come again")

    def wait_confirmed(self) -> None:
        """Wait until the brokers have answered everything, a second at most."""
        with self._changed:
            self._changed.wait_for(lambda: not self._unconfirmed, CLOSE_WAIT)

    def close(self) -> None:
        """Settle what was acknowledged, trying a second time with what failed; waits a second for each try at most."""
        self.send_acks()
        self.wait_confirmed()
        for broker, leases in self._take_acked():
            try:
                self._wire.request(self._acks(broker, leases), timeout=CLOSE_WAIT)
            except ShmqError as error:
                warn(self._spec, error, "messages could not be acknowledged before the end, and come again")

    # -- exchanges
    def hide(self, lease: Lease, seconds: float) -> None:
        """Let a message come again in `seconds`."""
        self._carry_out(lease, self._hiding(lease, seconds), NOT_HIDDEN)

    def extend(self, lease: Lease, seconds: float) -> bool:
        """Hide a message in hand for `seconds` from now; False when it is known to be too late."""
        if not self._waits:
            now = self._owner._now()
            if lease.until < now:
                return False
            lease.until = now + seconds
        return self._carry_out(lease, self._hiding(lease, seconds), NOT_HIDDEN)

    def dead_letter(self, message: Message, lease: Lease, reason: str, *, may_wait: bool = True) -> None:
        """Let the broker put a message among the dead letters, and settle it; a thread of the wire may not wait."""
        exchange = self._putting_away(message, lease, reason)
        if may_wait:
            self._carry_out(lease, exchange, NOT_DEAD)
        else:
            self._begin(lease, exchange, NOT_DEAD)

    def release(self, lease: Lease) -> None:
        """Let a message come again at once; a broker that is away delivers it when its time is over."""
        self._begin(lease, self._hiding(lease, 0.0), "")

    def _hiding(self, lease: Lease, seconds: float) -> Exchange:
        try:
            change = change_request(self._spec.group or "", self._spec.topic, lease.receipt, seconds)
            reply = yield Question.of(lease.pop.broker, change)
        except RemoteError as error:
            if error.code != Response.NO_MESSAGE:
                raise
            return False
        lease.pop, lease.until = new_receipt(reply, lease.receipt).pop, self._owner._now() + seconds
        return True

    def _putting_away(self, message: Message, lease: Lease, reason: str) -> Exchange:
        if not (yield from self._hiding(lease, DEAD_LETTER_HOLD)):
            return False  # others have it, and it is theirs to judge
        yield send_back(lease.pop.broker, send_back_ext(self._spec, message, DEAD_LETTER, reason))
        yield self._acks(lease.pop.broker, [lease])
        return True

    def _carry_out(self, lease: Lease, exchange: Exchange, consequence: str) -> bool:
        """Carry an exchange out; False when it is known that the message is not in hand any more."""
        if not self._waits:
            self._begin(lease, exchange, consequence)
            return True
        with self._changed:
            self._changed.wait_for(lambda: not lease.is_busy)
            lease.is_busy = True
            self._unconfirmed += 1
        try:
            ask = next(exchange)
            while True:
                try:
                    reply = self._wire.request(ask)
                except ShmqError as error:
                    ask = exchange.throw(error)
                else:
                    ask = exchange.send(reply)
        except StopIteration as end:
            return bool(end.value)
        except ShmqError as error:
            warn(self._spec, error, consequence)
            return True
        finally:
            self._ended(lease)

    def _begin(self, lease: Lease, exchange: Exchange, consequence: str) -> None:
        """Begin an exchange without waiting, once those about the same message have ended."""
        with self._changed:
            self._unconfirmed += 1
            if lease.is_busy:
                lease.next += ((exchange, consequence),)
                return
            lease.is_busy = True
        self._step(lease, exchange, consequence, None)

    def _step(self, lease: Lease, exchange: Exchange, consequence: str, answer: Answer | None) -> None:
        """Send the next request of an exchange; `answer` is what came of the last one."""
        try:
            if answer is None:
                ask = next(exchange)
            elif (error := error_in(answer)) is not None:
                ask = exchange.throw(error)
            else:
                ask = exchange.send(reply_of(answer))
        except (StopIteration, ShmqError) as end:
            if isinstance(end, ShmqError) and consequence:
                warn(self._spec, end, consequence)
            self._ended(lease)
            return
        self._wire.begin(ask, partial(self._step, lease, exchange, consequence))

    def _ended(self, lease: Lease) -> None:
        """Go on with the next exchange about a message, or acknowledge it if that was asked for meanwhile."""
        with self._changed:
            self._unconfirmed -= 1
            following, lease.next = lease.next[:1], lease.next[1:]
            lease.is_busy = bool(following)
            if lease.is_acked and not following:
                lease.is_acked = False
                self._acked.append(lease)
                self._send_soon(ACK_DELAY)
            self._changed.notify_all()
        for exchange, consequence in following:
            self._step(lease, exchange, consequence, None)


def warn(spec: ConsumerSpec, error: Exception, consequence: str) -> None:
    """Say what went wrong with a consumer's messages, and what follows from it."""
    LOG.warning('topic "%s", group "%s": %s: %s', spec.topic, spec.group, consequence, error)
