"""Owns what a simple consumer has in hand where brokers hide messages themselves, on this host and over TCP alike.

It does not know how brokers are asked (`pop_reader` of this host, `remote.pop_reader`). Queues are not shared out:
whoever asks gets what is there.

    receive ──held pop──▶ messages, hidden by the broker from now on
    ack     ──those of one turn together──▶ settled          extend ──▶ hidden anew, under another receipt
    nack    ──hidden for as long as is wanted──▶ comes again with an attempt more; after the last to the dead letters

Rules:
    (1) one pop is on its way at most; what it brings after its receive() had ended is the next one's;
    (2) a message that comes more often than this consumer's own `attempts_max` is buried instead of delivered;
    (3) at the end everything in hand is given back, to be delivered to others at once;
    (4) in a forked child what the parent has in hand is left alone.
"""

from __future__ import annotations

import os
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

from shmq.client import options
from shmq.errors import LeaseExpired, UsageError
from shmq.protocol.pop import POP_COUNT_MAX, RECEIPT_PROPERTY, Receipt

if TYPE_CHECKING:
    from collections.abc import Callable

    from shmq.client.spec import ConsumerSpec
    from shmq.shm.core import Message

HOLD_MAX: Final = 15.0
ANSWER_MARGIN: Final = 0.5
"""How much longer than asked a broker may take to say that there is nothing; what comes later waits for the next."""
FORGET_AFTER: Final = 60.0
"""How long after its time a receipt is kept: by the broker's clock it may still count."""
FORGET_COUNT: Final = 1000

_Key = tuple[str, int, int]


class PopOwner(Protocol):
    """The consumer behind a reader."""

    def _idle(self) -> bool: ...
    def _now(self) -> float: ...
    def _later(self, seconds: float, job: Callable[[], None]) -> None: ...


class Lease:
    """One message in hand: its pop and offset, and until when nobody else sees it by our clock."""

    __slots__ = ("offset", "pop", "until")

    def __init__(self, pop: Receipt, offset: int, until: float) -> None:
        self.pop = pop
        self.offset = offset
        self.until = until

    @property
    def receipt(self) -> Receipt:
        """What has to be shown to settle it."""
        return self.pop.of(self.offset)


LeaseT = TypeVar("LeaseT", bound=Lease)


class PoppedReader(ABC, Generic[LeaseT]):
    """Takes messages of one topic from brokers that hide them; any thread may use it."""

    hides = True

    def __init__(self, owner: PopOwner, spec: ConsumerSpec) -> None:
        self.owner = owner
        self.spec = spec
        self.changed = threading.Condition()
        self.stopped = False
        self._invisible = options.INVISIBLE if spec.invisible is None else spec.invisible
        self._waiting: deque[Message] = deque()
        self._leases: dict[_Key, LeaseT] = {}
        self._acked: list[LeaseT] = []
        self._rest = 0  # messages the brokers have left behind their last answers
        self._flying = False
        self._is_quick = False  # what is on its way does not wait for messages
        self._woken = False
        self._forget_at = FORGET_COUNT
        self._pid = os.getpid()

    # -- what the ways differ in; the caller of the first two holds `changed`
    @abstractmethod
    def _ask(self, count: int, hold: float) -> None:
        """Send one pop on its way; `_landed()` ends it."""

    @abstractmethod
    def _settle_soon(self) -> None:
        """See to it that what is in `_acked` is told to the brokers."""

    @abstractmethod
    def _hide(self, lease: LeaseT, seconds: float) -> None:
        """Let a message come again in `seconds`."""

    @abstractmethod
    def _prolong(self, message: Message, lease: LeaseT, seconds: float) -> None:
        """Hide a message in hand for `seconds` from now; raises LeaseExpired when it is known to be too late."""

    @abstractmethod
    def _bury(self, lease: LeaseT, message: Message, reason: str) -> None:
        """Let the broker put a message among the dead letters, and settle it."""

    def _bury_late(self, lease: LeaseT, message: Message, reason: str) -> None:
        """The same, on the thread that has brought the message."""
        self._bury(lease, message, reason)

    @abstractmethod
    def _give_back(self, leases: list[LeaseT]) -> None:
        """Let messages come again at once."""

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
                    self._begin(max - len(taken), 0.0 if taken else min(remaining, HOLD_MAX))
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

    def _begin(self, count: int, hold: float) -> None:
        self._flying, self._is_quick, self._rest = True, hold <= 0, 0
        if len(self._leases) > self._forget_at:
            self._forget()
        self._ask(min(count, POP_COUNT_MAX), max(0.0, hold))

    def _forget(self) -> None:
        """Let go of receipts that count no more: of messages that nobody has settled."""
        before = self.owner._now() - FORGET_AFTER
        self._leases = {key: lease for key, lease in self._leases.items() if lease.until > before}
        self._forget_at = 2 * len(self._leases) + FORGET_COUNT

    def _landed(self) -> None:
        with self.changed:
            self._flying = False
            self.changed.notify_all()

    def _arrived(self, found: list[tuple[Message, LeaseT]], rest: int) -> None:
        """Take what a pop brought, in any thread."""
        attempts_max = self.spec.attempts_max
        spent: list[tuple[Message, LeaseT]] = []
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
            self._bury_late(lease, message, f"not consumed in {attempts_max} attempts")
        if self.stopped:
            self._give_back_all()

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
        if self._pid == os.getpid():
            with self.changed:
                self._settle(message)

    def _settle(self, message: Message) -> None:
        lease = self._leases.pop(key_of(message), None)
        if lease is not None:
            self._acked.append(lease)
            if len(self._acked) == 1:
                self._settle_soon()

    def _take(self, message: Message) -> LeaseT | None:
        """Take a message out of our hands; None when it is not in them."""
        if self._pid != os.getpid():
            return None
        with self.changed:
            return self._leases.pop(key_of(message), None)

    def _nack(self, message: Message, after: float | None) -> None:
        if after is not None and not 0 <= after <= options.INVISIBLE_MAX:
            hint = f"0 to {options.INVISIBLE_MAX:g} s, or None"
            raise UsageError(f"a message cannot come again in {after} s", hint=hint)
        if self.spec.attempts_max is not None and message.attempt >= self.spec.attempts_max:
            self.bury(message, f"not consumed in {message.attempt} attempts")
        elif lease := self._take(message):
            self._hide(lease, options.retry_delay(message.attempt) if after is None else after)

    def _extend(self, message: Message, seconds: float) -> None:
        if not 0 <= seconds <= options.INVISIBLE_MAX:
            raise UsageError(f"a message cannot be hidden for {seconds} s", hint=f"0 to {options.INVISIBLE_MAX:g} s")
        if self._pid != os.getpid():
            return
        with self.changed:
            lease = self._leases.get(key_of(message))
        if lease is not None:
            self._prolong(message, lease, seconds)

    def bury(self, message: Message, reason: str) -> bool:
        """Let the broker put a message among the dead letters; False when it is not in hand."""
        lease = self._take(message)
        if lease is None:
            return False
        message.ack()  # it is not in hand any more: only the object counts as settled
        self._bury(lease, message, reason)
        return True

    def _warn(self, error: Exception, what: str = "nothing can be received, trying on") -> None:
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
        return self._rest + self._in_hand()

    def _in_hand(self) -> int:
        now = self.owner._now()
        with self.changed:
            return sum(lease.until > now for lease in self._leases.values())

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
        now = self.owner._now()
        with self.changed:
            leases = [lease for lease in self._leases.values() if lease.until > now - ANSWER_MARGIN]
            self._leases.clear()
            self._waiting.clear()
        if leases:
            self._give_back(leases)


def too_late(message: Message) -> LeaseExpired:
    """Return what an extension is refused with."""
    return LeaseExpired(
        f"the invisible time of message {message.message_id} is over, others may have it",
        hint="extend it earlier, or give receive() a longer invisible time",
    )


def key_of(message: Message) -> _Key:
    """Return what identifies a message in hand: its place, and the receipt of one that came again."""
    again = message.properties.get(RECEIPT_PROPERTY, "") if message.reconsume_times else ""
    return again, message.queue_id, message.offset
