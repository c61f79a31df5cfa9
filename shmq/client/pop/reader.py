"""The reader of a simple consumer whose messages the brokers hide: it asks for messages, and knows which are in hand.

Queues are not shared out: a pop asks each broker of the topic for any messages it has.

    receive ──POP_MESSAGE to each broker──▶ messages, hidden by the brokers from now on: they are in hand
                 places of the log (on this host)   the message is read where it lies; no body is copied
                 records                            over TCP; on this host what came again, with its own topic in it
    ack, nack, extend, dead letter ──▶ `Settlement`, with the message's lease
    nack                            ──▶ hidden for as long as is wanted, then it comes again with an attempt more

Rules:
    (1) one pop is on its way to each broker at most; what it brings after its receive() had ended is the next one's;
    (2) a message that comes more often than this consumer's own `attempts_max` becomes a dead letter, and is not
        delivered;
    (3) at the end everything in hand comes again at once, for others;
    (4) in a forked child what the parent has in hand is left alone;
    (5) what cannot be read is not acknowledged: the broker knows whether it is gone;
    (6) on this host nothing is asked while the segments that are mapped are not those of the broker that answers.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

from shmq.client import options
from shmq.client.kinds import check_after, check_hiding
from shmq.client.pop.settlement import Lease, Settlement, warn
from shmq.client.spec import ConsumerSpec
from shmq.client.wire import Question, ReaderOwner, WaitingReader, Wire
from shmq.errors import LeaseExpired, ShmqError
from shmq.message import RETRY_PREFIX
from shmq.protocol.failure import Answer
from shmq.protocol.pop import (
    POP_COUNT_MAX,
    RECEIPT_PROPERTY,
    Batch,
    Receipt,
    batch_of,
    parse_receipt,
    pop_of,
    pop_request,
)
from shmq.shm.core import CoreError, Message, records_read

HOLD_MAX: Final = 15.0
ANSWER_MARGIN: Final = 0.5
"""How much longer than asked a broker may take to say that there is nothing; what comes later waits for the next."""
FORGET_AFTER: Final = 60.0
"""How long after its time a receipt is kept: by the broker's clock it may still count."""
FORGET_COUNT: Final = 1000
AWAY_PAUSE: Final = 0.05
"""Pause while the broker of this host is away; it is back in a moment."""
ERROR_PAUSE: Final = 1.0
MISSING_PAUSE: Final = 0.2

_Key = tuple[str, int, int]
MessageAt = Callable[..., Message]
"""`Store.message_at`: reads the message at a log position."""
MappedLog = Callable[[], MessageAt | None]
"""Returns what reads the log in this host's memory; None while the broker that answers has another one."""


class PopReader(WaitingReader):
    """Takes messages of one topic from brokers that hide them; any thread may use it."""

    def __init__(
        self,
        wire: Wire,
        owner: ReaderOwner,
        spec: ConsumerSpec,
        *,
        find_brokers: Callable[[], Mapping[str, int]],
        waiting: Callable[[], int] | None = None,
        log: MappedLog | None = None,
    ) -> None:
        """
        Args:
            find_brokers: returns {name of a broker: the id users know its queue 0 by}; may wait.
            waiting: counts the messages that wait; None believes the brokers' last answers.
            log: the log on this host; None over TCP, where records travel.
        """
        super().__init__(owner)
        self.spec = spec
        self._wire = wire
        self._owner = owner
        self._log = log
        self._find_brokers = find_brokers
        self._count_waiting = waiting
        self._brokers = find_brokers()
        self._settlement = Settlement(wire, spec, owner)
        self._invisible = options.INVISIBLE if spec.invisible is None else spec.invisible
        self._waiting: deque[Message] = deque()
        self._leases: dict[_Key, Lease] = {}
        self._rest = 0  # messages the brokers have left behind their last answers
        self._flying = 0  # brokers that have not answered, and one for a pause
        self._pause: float | None = None  # what follows the answers, because one was an error
        self._is_quick = False  # what is on its way does not wait for messages
        self._forget_at = FORGET_COUNT

    # -- receiving
    def poll(self, max: int = options.RECEIVE_MAX, timeout: float = 0.0) -> list[Message]:
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
                    self._begin(max - len(taken), 0.0 if taken else min(remaining, HOLD_MAX))
                elif remaining <= -ANSWER_MARGIN:
                    break
                self.changed.wait(
                    options.ITERATION_SLICE if remaining <= 0 else min(remaining, options.ITERATION_SLICE)
                )
            self._woken = False
        self._owner.keep_for(taken)
        return taken

    @property
    def _goes_on(self) -> bool:
        """Whether more is there, or may be on its way without waiting."""
        return self._is_quick if self._flying else self._rest > 0

    def _begin(self, count: int, hold: float) -> None:
        """Ask every broker, without waiting; the caller holds `changed`."""
        self._is_quick, self._rest, self._pause = hold <= 0, 0, None
        if len(self._leases) > self._forget_at:
            self._forget()
        self._settlement.send_acks()
        self._flying, brokers, hold = 1, self._brokers, max(0.0, hold)
        message_at = None if self._log is None else self._log()
        if self._log is not None and message_at is None:
            self._owner._later(AWAY_PAUSE, self._landed)
        elif not brokers:
            self._owner._later(min(hold, MISSING_PAUSE), self._look_again)
        else:
            self._flying, spec, wanted = len(brokers), self.spec, self.spec.wanted
            for broker, base in brokers.items():
                ask = pop_request(
                    spec.group or "",
                    spec.topic,
                    (wanted.kind, wanted.expression),
                    broker=broker,
                    count=min(count, POP_COUNT_MAX),
                    invisible=self._invisible,
                    hold=hold,
                    wants_places=message_at is not None,
                )
                answered = partial(self._answered, broker, base, message_at, hold)
                self._wire.begin(Question.of(broker, ask), answered, timeout=hold + self._wire.timeout)

    def _forget(self) -> None:
        """Drop expired receipts, whose messages were never settled."""
        before = self._owner._now() - FORGET_AFTER
        self._leases = {key: lease for key, lease in self._leases.items() if lease.until > before}
        self._forget_at = 2 * len(self._leases) + FORGET_COUNT

    def _answered(self, broker: str, base: int, message_at: MessageAt | None, hold: float, answer: Answer) -> None:
        """Take what a broker says, on a thread of the wire."""
        pause = None
        try:
            if isinstance(answer, ShmqError):
                raise answer
            batch = batch_of(answer)
            self._arrived(self._messages_of(batch, broker, base, message_at), batch.rest)
        except ShmqError as error:
            is_away = error is answer and self._log is not None
            pause = AWAY_PAUSE if is_away else min(hold, ERROR_PAUSE)
            if not is_away:
                warn(self.spec, error, "nothing can be received, trying on")
        with self.changed:
            if pause is not None:
                self._pause = max(pause, self._pause or 0.0)
            if self._flying > 1 or self._pause is None:
                self._flying -= 1
                self.changed.notify_all()
                return
            pause = self._pause
        self._owner._later(pause, self._look_again)

    def _look_again(self) -> None:
        """See which brokers have the topic now; on the connection's background thread, which may wait."""
        try:
            self.look_for_brokers()
        except ShmqError as error:
            warn(self.spec, error, "nothing can be received, trying on")
        self._landed()

    def look_for_brokers(self) -> None:
        """See which brokers have the topic now; may wait."""
        self._brokers = self._find_brokers()

    def _landed(self) -> None:
        with self.changed:
            self._flying = 0
            self.changed.notify_all()

    def _messages_of(
        self, batch: Batch, broker: str, base: int, message_at: MessageAt | None
    ) -> list[tuple[Message, Lease]]:
        pops, until = batch.pops(broker), self._owner._now() + batch.invisible_ms / 1000
        found = []
        if message_at is not None:
            for place in batch.places:
                try:
                    message = message_at(place, 0, self, self.spec.codec, self.spec.verify)
                except CoreError as error:
                    warn(self.spec, error, "a message cannot be read")
                    continue
                found.append((message, Lease(pop_of(pops, message.queue_id), message.offset, until)))
        if batch.body:
            again = not self.spec.topic.startswith(RETRY_PREFIX)  # what lies in a retry topic is this group's then
            for message in records_read(
                batch.body, owner=self, codec=self.spec.codec, queue_base=base, are_retries=again
            ):
                pop = _pop_named_in(message) or pop_of(pops, message.queue_id - base)
                found.append((message, Lease(pop, message.offset, until)))
        return found

    def _arrived(self, found: list[tuple[Message, Lease]], rest: int) -> None:
        """Take what a pop brought, in any thread."""
        attempts_max = self.spec.attempts_max
        spent: list[tuple[Message, Lease]] = []
        with self.changed:
            for message, lease in found:
                self._leases[key_of(message)] = lease
                if self.spec.tags and message.tag not in self.spec.tags:
                    self._settle(message)  # another tag with the same hash
                elif attempts_max is not None and message.attempt > attempts_max:
                    spent.append((message, self._leases.pop(key_of(message))))
                else:
                    self._waiting.append(message)
            self._rest += rest
            self.changed.notify_all()
        for message, lease in spent:
            message.ack()  # it is not in hand any more: only the object counts as settled
            self._settlement.dead_letter(message, lease, f"not consumed in {attempts_max} attempts", may_wait=False)
        if self.stopped:
            self._release_all()

    # -- settling, as the messages ask for it
    def _ack(self, message: Message) -> None:
        if self._pid == os.getpid():
            with self.changed:
                self._settle(message)

    def _settle(self, message: Message) -> None:
        lease = self._leases.pop(key_of(message), None)
        if lease is not None:
            self._settlement.ack(lease)

    def _take(self, message: Message) -> Lease | None:
        """Take a message out of our hands; None when it is not in them."""
        if self._pid != os.getpid():
            return None
        with self.changed:
            return self._leases.pop(key_of(message), None)

    def _nack(self, message: Message, after: float | None) -> None:
        after = check_after(after, options.INVISIBLE_MAX)
        if self.spec.attempts_max is not None and message.attempt >= self.spec.attempts_max:
            self.dead_letter(message, f"not consumed in {message.attempt} attempts")
        elif lease := self._take(message):
            self._settlement.hide(lease, options.retry_delay(message.attempt) if after is None else after)

    def hide(self, messages: Sequence[Message], seconds: float) -> None:
        """Deliver again what is not settled by then; as they come, they are hidden for the consumer's own time."""
        if seconds != self._invisible:
            for message in messages:
                message.extend(seconds)

    def _extend(self, message: Message, seconds: float) -> None:
        seconds = check_hiding(seconds, options.INVISIBLE_MAX)
        if self._pid != os.getpid():
            return
        with self.changed:
            lease = self._leases.get(key_of(message))
        if lease is not None and not self._settlement.extend(lease, seconds):
            raise LeaseExpired(
                f"the invisible time of message {message.message_id} is over, others may have it",
                hint="extend it earlier, or give receive() a longer invisible time",
            )

    def dead_letter(self, message: Message, reason: str) -> None:
        """Let the broker put a message among the dead letters; one that is not in hand is left to its present owner."""
        lease = self._take(message)
        if lease is not None:
            message.ack()  # it is not in hand any more: only the object counts as settled
            self._settlement.dead_letter(message, lease, reason)

    def settle(self) -> None:
        """Let the brokers confirm what was acknowledged; waits for them a second at most."""
        self._settlement.send_acks()
        self._settlement.wait_confirmed()

    # -- what every source has
    def lag(self) -> int:
        """Return how many messages wait at the brokers, over TCP as far as their last answers tell, or are in hand."""
        waiting = self._rest if self._count_waiting is None else self._count_waiting()
        now = self._owner._now()
        with self.changed:
            return waiting + sum(lease.until > now for lease in self._leases.values())

    def close(self) -> None:
        """Stop, settle what was acknowledged, and let what is in hand come again for others.

        Waits for the brokers a second for each of both at most.
        """
        self.stop()
        if self._pid == os.getpid():
            self._settlement.close()
            self._release_all()
            self._settlement.wait_confirmed()

    def _release_all(self) -> None:
        if self._pid != os.getpid():
            return
        now = self._owner._now()
        with self.changed:
            leases = [lease for lease in self._leases.values() if lease.until > now - ANSWER_MARGIN]
            self._leases.clear()
            self._waiting.clear()
        for lease in leases:
            self._settlement.release(lease)


def _pop_named_in(message: Message) -> Receipt | None:
    """Return the pop of a message that came with its receipt."""
    text = message.properties.get(RECEIPT_PROPERTY)
    return parse_receipt(text).pop if text else None


def key_of(message: Message) -> _Key:
    """Return what identifies a message in hand: its place, and the receipt of one that came again."""
    again = message.properties.get(RECEIPT_PROPERTY, "") if message.reconsume_times else ""
    return again, message.queue_id, message.offset
