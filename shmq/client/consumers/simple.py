"""The simple consumer: take, work, settle, with an invisible time for each message.

hidden by the broker     messages of all queues are shared one by one; nothing in hand is lost or given out early
hidden by the process    queues are shared out, and the messages of a queue with it
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from shmq.client import options
from shmq.client.consumers.consumer import Consumer, ConsumerContext, ReaderOwner
from shmq.client.kinds import real_in
from shmq.client.queue_share import QueueShare
from shmq.client.session import Session
from shmq.client.spec import ConsumerSpec, check_poll
from shmq.client.wire import QueueSlot
from shmq.errors import UsageError
from shmq.shm.core import Message

HiddenBy: TypeAlias = Literal["broker", "process"]


def check_hidden_by(hidden_by: HiddenBy) -> HiddenBy:
    """Return it unchanged; raises UsageError unless it is "broker" or "process"."""
    if hidden_by not in ("broker", "process"):
        raise UsageError(f"hidden_by={hidden_by!r} does not exist", hint='hidden_by="broker" or "process"')
    return hidden_by


def check_invisible(seconds: float) -> float:
    """Return the invisible time as a float.

    Raises:
        UsageError: it is not above 0 and at most 12 hours.
    """
    number = real_in(seconds)
    if number is None or not 0 < number <= options.INVISIBLE_MAX:
        raise UsageError(
            f"an invisible time of {seconds!r:.80} s is not possible",
            hint=f"above 0, at most {options.INVISIBLE_MAX:g} s",
        )
    return number


class SimpleConsumer(Consumer):
    """Takes messages in batches and hides each for `invisible` seconds. Made by `Connection.simple_consumer()`.

    A message neither acknowledged nor extended in that time is delivered again, with a higher `attempt`; after its last
    attempt it goes to the dead-letter topic. The broker hides messages (POP of RocketMQ 5 and shmq), on this host and
    over TCP with the same result: all members of the group take from all queues, and what a member has in hand when it
    dies, or while the broker restarts, comes again when its time is over. `ack()` returns before the broker has
    confirmed it, `nack()`, `extend()` and `reject()` on this host after that. While the broker's bridge is away nothing
    is received; what is in hand can be worked on, and is settled when the bridge is back.

    With `hidden_by="process"`, and at brokers of RocketMQ 4 in any case, the process itself hides them and reads its
    share of the queues: on this host faster and without the bridge. Its limits: when the process dies or a queue goes
    to another member, messages in hand are delivered to others at once; a message not settled holds the group's
    progress in its queue up; members beyond the number of queues get nothing.
    """

    def __init__(self, context: ConsumerContext, spec: ConsumerSpec, *, invisible: float) -> None:
        super().__init__(context, spec)
        self.invisible = check_invisible(invisible)

    def receive(
        self, max: int = options.RECEIVE_MAX, wait: float = 0.0, *, invisible: float | None = None
    ) -> list[Message]:
        """Return at most `max` messages; [] when none came within `wait` seconds.

        Args:
            invisible: seconds, instead of the consumer's own.
        """
        hidden = self.invisible if invisible is None else check_invisible(invisible)
        messages = self._poll(max, wait)
        self._hider.hide(messages, hidden)
        return messages

    @property
    def _pops(self) -> bool:
        """Whether the broker hides messages: they come from all queues, and none is read here."""
        return self._source is not None and self._reader is None

    def _open_source(self, session: Session, owner: ReaderOwner) -> None:
        popping = session.poppers.open(owner, self._spec)
        if popping is None:
            return super()._open_source(session, owner)
        self._source = self._hider = popping
        self._share = QueueShare()

    def _assignment(self) -> tuple[list[QueueSlot], list[QueueSlot]]:
        if self._pops:
            slots = self._context.live().poppers.slots(self._spec)
            return slots, slots
        return super()._assignment()

    def _renew(self) -> None:
        if self._pops:
            return self._rebalance()  # the broker forgets no receipt: what is in hand stays there
        super()._renew()

    def _poll(self, count_max: int, wait: float) -> list[Message]:
        count_max, wait = check_poll(count_max, wait)
        self._live_source()
        if self._pops:
            return self._poll_once(count_max, wait)  # a broker holds the request for that long
        return super()._poll(count_max, wait)
