"""The public transaction: one message that becomes visible when its work is done, or never.

    p.transaction(...) ──▶ open ──commit()──▶ committed        the message is there, once
                             └────rollback()──▶ rolled back      it never was
    `with`: leaving normally commits, an exception rolls back; what was said before leaving holds.

A process that dies in between leaves an open transaction. The broker asks a member of the producer group how it ended:
first after 6 s, every 30 s, at most 15 times; then it is rolled back. `@mq.transaction_checker(group)` answers.

Rules:
    (1) a transaction ends once: a second end gets TransactionError, the broker's and another thread's too;
    (2) an end that could not be stored (BrokerBusy, say) leaves it open: it can be said again;
    (3) a TransactionError says in `maybe_stored` whether an end that was said before, here, may be the one that counts.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

from shmq.client.background import started
from shmq.client.refusals import may_be_taken_elsewhere
from shmq.errors import ConnectError, SendTimeout, ShmqError, TransactionError, UsageError
from shmq.functions import check_function, finished
from shmq.protocol.system_topics import transaction as wire
from shmq.shm.core import Message, Receipt
from shmq.shm.pickling import stays_here


class TxState(IntEnum):
    """The end of a transaction; the numbers are RocketMQ's."""

    UNKNOWN = wire.UNKNOWN
    COMMIT = wire.COMMIT
    ROLLBACK = wire.ROLLBACK


COMMIT: Final = TxState.COMMIT
ROLLBACK: Final = TxState.ROLLBACK
UNKNOWN: Final = TxState.UNKNOWN

_ENDED: Final = {COMMIT: "committed", ROLLBACK: "rolled back"}
_STOP_TIMEOUT: Final = 1.0
_QUESTIONS_MAX: Final = 10_000  # the broker asks again
_LOG = logging.getLogger("shmq")
Checker = Callable[["Message"], TxState]


@dataclass(slots=True, eq=False)
class Half:
    """The first half of an open transaction, and where the broker has it among its halves."""

    group: str  # the producer group that is asked about it
    topic: str  # of the message
    broker: str
    message_id: str  # in every copy of the message
    offset: int
    log_position: int


End = Callable[[Any, "TxState", float], "Receipt | None"]
"""`Transactions.end`, of a half that `begin` has returned, by the session there is at that time."""


class TransactionCheck(NamedTuple):
    """A broker's question how a transaction ended."""

    group: str
    message: Message
    fields: Callable[[TxState], dict[str, str]]  # of the answer
    tell: Callable[[dict[str, str]], object]  # sends them to the broker that asks


class Transaction:
    """One message of a transaction; made by `Producer.transaction()`, to be ended once, by any thread.

    Example:
        >>> with p.transaction("orders", body, key="o-42") as tx:          # doctest: +SKIP
        ...     db.insert_order("o-42", tx_id=tx.id)
    """

    __slots__ = ("_end_half", "_half", "_is_doubtful", "_note_end", "_timeout", "id", "receipt", "state", "topic")
    __reduce_ex__ = stays_here("end it here; a checker of the producer group may end it elsewhere, by its id")

    def __init__(self, half: Half, timeout: float, end: End, note_end: Callable[[TxState], None] | None = None) -> None:
        self._end_half = end
        self._note_end = note_end
        self._half = [half]  # popped by the thread that ends it: only one gets it
        self._timeout = timeout
        self._is_doubtful = False  # an earlier end may have been carried out
        self.id = half.message_id
        self.topic = half.topic
        self.receipt: Receipt | None = None
        self.state = UNKNOWN

    def commit(self) -> Receipt:
        """Make the message visible and return where it is stored.

        Raises:
            TransactionError: it was ended before, here or by a check of the broker's.
        """
        self._end(COMMIT)
        assert self.receipt is not None
        return self.receipt

    def rollback(self) -> None:
        """Never let the message be seen.

        Raises:
            TransactionError: it was ended before, here or by a check of the broker's.
        """
        self._end(ROLLBACK)

    def _end(self, state: TxState) -> None:
        try:
            half = self._half.pop()
        except IndexError:
            how = _ENDED.get(self.state, "ended")
            raise TransactionError(f"transaction {self.id} is {how} already", hint="end it once") from None
        try:
            self.receipt = self._end_half(half, state, self._timeout)
        except (TransactionError, SendTimeout) as error:  # ended, or stored and only not on the disk in time
            error.maybe_stored |= self._is_doubtful
            raise
        except BaseException as error:
            self._is_doubtful |= getattr(error, "maybe_stored", False)
            self._half.append(half)
            raise
        self.state = state
        if self._note_end is not None:
            self._note_end(state)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if not self._half:
            return
        if kind is None:
            self.commit()
            return
        try:
            self.rollback()
        except ShmqError as refused:
            # The caller's own error says more; the broker rolls back what is not committed.
            _LOG.warning("transaction %s could not be rolled back: %s", self.id, refused)

    def __repr__(self) -> str:
        state = "open" if self._half else _ENDED.get(self.state, "ended")
        return f"<shmq.Transaction {self.id} topic={self.topic!r} {state}>"


class Checkers:
    """The functions of one connection that say how transactions ended, and the thread that calls them."""

    def __init__(
        self,
        note_answer: Callable[[str, Message, TxState], None] | None,
        tell_leader: Callable[[dict[str, str]], object],
    ) -> None:
        """
        Args:
            note_answer: called with each answer about a group's message; None without tracing.
            tell_leader: sends the fields of an answer to whichever host leads the broker now.
        """
        self._note_answer = note_answer
        self._tell_leader = tell_leader
        self._functions: dict[str, Checker] = {}
        self._start_over()

    def _start_over(self) -> None:
        self._lock = threading.Lock()
        self._waiting: queue.SimpleQueue[TransactionCheck | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._asked: set[str] = set()  # message ids of the questions that wait

    def add(self, group: str, function: Checker) -> None:
        """Let a function answer for a group.

        Raises:
            UsageError: there is one, or the function would not run when it is called.
        """
        check_function(function)
        if group in self._functions:
            raise UsageError(f'group "{group}" has a transaction checker already', hint="one function for each group")
        self._functions[group] = function

    @property
    def groups(self) -> list[str]:
        """The groups that have a checker."""
        return sorted(self._functions)

    def asked(self, check: TransactionCheck) -> None:
        """Take a question; it is answered on a thread of its own. One that waits already is not asked twice."""
        with self._lock:
            if check.message.message_id in self._asked or len(self._asked) >= _QUESTIONS_MAX:
                return
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="shmq-transaction-checker", daemon=True)
                try:
                    self._thread = started(thread)
                except ConnectError as error:
                    _LOG.warning("the question about transaction %s waits: %s", check.message.message_id, error)
                    return  # the broker asks again
            self._asked.add(check.message.message_id)
        self._waiting.put(check)

    def stop(self) -> None:
        """Answer nothing any more; a call that runs is given a second."""
        thread = self._thread
        if thread is not None:
            self._waiting.put(None)
            if thread is not threading.current_thread():
                thread.join(_STOP_TIMEOUT)

    def forget_threads(self) -> None:
        """In a forked child: the thread and its questions are the parent's."""
        self._start_over()

    def _tell(self, check: TransactionCheck, state: TxState) -> None:
        fields = check.fields(state)
        try:
            check.tell(fields)
        except ShmqError as error:
            # The next leader would ask in half a minute, and each time counts.
            if not may_be_taken_elsewhere(error) or "bname" not in fields:
                raise
            self._tell_leader(fields)

    def _run(self) -> None:
        waiting = self._waiting
        while (check := waiting.get()) is not None:
            self._asked.discard(check.message.message_id)
            function = self._functions.get(check.group)
            if function is None:
                continue
            try:
                state = TxState(finished(function(check.message)))
            except BaseException:  # whatever the application raised: it will be asked again
                _LOG.exception("the transaction checker of group %s failed", check.group)
                continue
            try:
                if state is not UNKNOWN:
                    self._tell(check, state)
                if self._note_answer is not None:
                    self._note_answer(check.group, check.message, state)
            except ShmqError as error:
                _LOG.warning("the answer about transaction %s was not taken: %s", check.message.message_id, error)
