"""The interface of the two carriers of messages: shared memory (`wire_shm`) and TCP (`wire_tcp`).

    Wire           requests to brokers and their answers          MessageSource   what one consumer receives
    Queues         where messages are, and offsets of groups      QueueReader     the same, of queues it is given
    MessageSender  the four ways to send                          Hider           hides what was handed out

Queues are named twice: by `queue_id`, which users see, and by `queue_index`, which only the wire understands.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from shmq.client import options
from shmq.client.position import Position
from shmq.errors import DamagedMessage, RequestTimeout, ShmqError
from shmq.protocol.codes import NOT_SAVED_YET, ONLY_HERE
from shmq.protocol.command import Command
from shmq.protocol.dialect import MessageQueue
from shmq.protocol.failure import Answer
from shmq.shm.core import Assignment, Message, Receipt

LOG: Final = logging.getLogger("shmq")
ResultT = TypeVar("ResultT")

_DOUBT_SECONDS = 0.02  # between two looks at what the broker may be mending
_DOUBT_SECONDS_MAX = 15.0  # longer than a reader waits for that; only what is not on disk yet takes longer


class QueueSlot(NamedTuple):
    """One queue, and where the group's offset of it is kept in shared memory (-1: nowhere there)."""

    queue_id: int
    queue_index: int
    offset_slot: int = -1


class Watcher(NamedTuple):
    """Callbacks for changes of a connection's groups."""

    members_changed: Callable[[str], None]
    reconnected: Callable[[], None]
    refused: Callable[[ShmqError], None]
    """The registration was refused after a reconnection."""


def ignore(*_: object) -> None:
    """A callback that does nothing."""


UNWATCHED: Final = Watcher(ignore, ignore, ignore)


class Handed(NamedTuple):
    """A message that a broker is taking over."""

    broker: str
    settle: Callable[[], None]  # the broker has it
    keep: Callable[[], None]  # the broker did not take it: it is still to be delivered here


class Question(NamedTuple):
    """A request to one broker."""

    broker: str
    code: int
    ext: Mapping[str, str] | None = None
    body: bytes = b""

    @classmethod
    def of(cls, broker: str, command: Command) -> Question:
        """Return a request for one broker."""
        return cls(broker, command.code, command.ext, command.body)

    @property
    def command(self) -> Command:
        """The same as it travels."""
        return Command(code=self.code, ext=dict(self.ext or {}), body=self.body)


class Wire(Protocol):
    """Carries requests to brokers and their answers; it knows no feature."""

    client_id: str
    timeout: float  # seconds, of a request that names none
    is_local: bool  # the broker answers from memory on this host, so a caller may wait for it

    @property
    def alive(self) -> bool:
        """Whether a broker answers requests right now."""

    def now_ms(self) -> int:
        """Return the broker's time, as well as it is known here, in ms since the epoch."""

    def brokers(self, topic: str | None = None) -> list[str]:
        """Return the names of the brokers that have a topic, sorted; [] when it does not exist.

        Args:
            topic: None takes every broker that has a master.

        Raises:
            BrokerNotRunning: no broker at all is registered, where all are asked for.
        """

    def address(self, broker: str) -> str:
        """Return where the master of a broker name listens, as "host:port"; "" when it is not known. Never waits."""

    def request(self, question: Question, timeout: float | None = None) -> Command:
        """Ask the master of a broker name, and return its answer.

        Raises:
            BrokerNotRunning: it cannot be reached.
            RequestTimeout: it did not answer in time.
            ShmqError: it refused; the type says why, RemoteError has the code.
        """

    def begin(
        self,
        question: Question,
        then: Callable[[Answer], None],
        *,
        timeout: float | None = None,
        slave_may_answer: bool = False,
    ) -> None:
        """Ask without waiting or raising; `then` is called once, on a thread of the wire that must not wait.

        Args:
            slave_may_answer: ask a slave while there is no master.
        """

    def close(self) -> None:
        """Let go of the brokers, without a word to them; never raises."""


def guarded(call: Callable[..., None], *arguments: object) -> None:
    """Call something, such as `then`, whose failure must not end the thread that all others depend on."""
    try:
        call(*arguments)
    except Exception:
        LOG.exception("a callback of the control connection failed")


CONCURRENT_MAX: Final = 16
"""Requests of one question that are on their way at once."""
_ANSWER_MARGIN: Final = 1.0  # seconds after the deadline of a request, whose own error says more


def ask_each(wire: Wire, questions: Sequence[Question], *, slave_may_answer: bool = False) -> list[Answer]:
    """Ask several brokers at once, and return their answers in the order of the questions.

    Raises:
        RequestTimeout: an answer neither came nor failed in time.
    """
    answers: list[Answer | None] = [None] * len(questions)
    room = threading.Semaphore(CONCURRENT_MAX)

    def enter() -> None:
        if not room.acquire(timeout=wire.timeout + _ANSWER_MARGIN):
            raise RequestTimeout(f"no answer within {wire.timeout:g} s", hint="see where the process is stuck")

    def taking(number: int) -> Callable[[Answer], None]:
        def take(answer: Answer) -> None:
            answers[number] = answer
            room.release()

        return take

    for number, question in enumerate(questions):
        enter()
        wire.begin(question, taking(number), slave_may_answer=slave_may_answer)
    for _ in range(CONCURRENT_MAX):
        enter()
    return [answer for answer in answers if answer is not None]


def warn_of_unsaved(*replies: Command) -> None:
    """Log what brokers say of changes that are done.

    A broker answers a change when it is in shared memory, and its keeper saves it some 0.1 s later. Where the keeper
    makes no rounds the change is lost with the host, and the remark says so: a line of the log, and no error. So it
    does where slaves have to confirm, and the log takes nothing that tells them.
    """
    for reply in replies:
        if reply.remark and reply.remark.startswith((NOT_SAVED_YET, ONLY_HERE)):
            LOG.warning("%s", reply.remark)


class Queues(Protocol):
    """The queues of topics, as the wire sees them, and the offsets of groups on them."""

    def resolve(self, topic: str) -> int:
        """Make sure that a topic can be used, creating it where that is the broker's way."""

    def write_queues(self, topic: str, *, with_master: bool = False) -> Sequence[int]:
        """Return the ids of the queues of a topic that may be written, made if that is the broker's way.

        Args:
            with_master: leave out those of brokers without a master now, with which a choice by a hash would move.
        """

    def read_queues(self, topic: str, *, must_exist: bool = False) -> list[QueueSlot]:
        """Return the readable queues of a topic; one that must exist is not created."""

    def bounds(self, topic: str, queue: QueueSlot) -> tuple[int, int]:
        """Return the first offset stored in a queue, and the one behind the last."""

    def place_in(self, topic: str, queue: QueueSlot, position: Position) -> int:
        """Return the offset a position means in a queue now."""

    def message_queue(self, topic: str, queue_id: int) -> MessageQueue:
        """Return the broker's name of a queue that users know by its id."""

    def queue_id(self, queue: MessageQueue) -> int:
        """Return the id by which users know a queue of a broker."""

    def messages_at(self, places: Sequence[tuple[str, int, int]]) -> list[Message]:
        """Return the messages at (topic, queue id, offset), without those that are gone."""

    def version(self, topic: str) -> int | None:
        """Return what differs when a topic may have other queues, None while there is none of this name here.

        Always 0 where each pull's answer says so.
        """

    @property
    def is_copy(self) -> bool:
        """Whether they are copies, which may not be as far as what groups have committed."""

    def born(self, topic: str) -> int:
        """Return what differs once a topic was deleted and made again; always 0 where a pull's answer says so."""

    def is_to_come(self, topic: str) -> bool:
        """Whether a place behind the end, up to which was read, is not copied yet; else what was there is lost."""

    def committed(self, group: str, topic: str) -> dict[int, int]:
        """Return {queue id: committed offset}, without queues the group never committed."""

    def commit(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        """Write offsets down for a group."""


class MessageSender(Protocol):
    """The four ways to send; see `shmq.Connection` for what they take."""

    def send(self, *positional: Any, **named: Any) -> Any:
        """Store one message and return its receipt."""

    def send_oneway(self, *positional: Any, **named: Any) -> Any:
        """Store one message without a receipt."""

    def send_batch(self, *positional: Any, **named: Any) -> Any:
        """Store messages in one queue and return their receipts."""

    def reserve(self, *positional: Any, **named: Any) -> Any:
        """Return memory for a body to be written in place."""


class HandedOver:
    """A `MessageSender` whose calls all take one way, which its class says."""

    def send(self, *positional: Any, **named: Any) -> Any:
        return self._carry_out("send", positional, named)

    def send_oneway(self, *positional: Any, **named: Any) -> Any:
        return self._carry_out("send_oneway", positional, named)

    def send_batch(self, *positional: Any, **named: Any) -> Any:
        return self._carry_out("send_batch", positional, named)

    def reserve(self, *positional: Any, **named: Any) -> Any:
        return self._carry_out("reserve", positional, named)

    def _carry_out(self, method: str, positional: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Call this method of whatever sends now."""
        raise NotImplementedError


class Sends(Protocol):
    """Senders, and what belongs to sending."""

    def sender(
        self, timeout: float, *, group: str | None = None, compression: str | None = None, keeps: object = None
    ) -> MessageSender:
        """Return something that sends; `timeout` in seconds, `compression` None as the transport has it, and `keeps`
        lives as long as the sender or one of its methods."""

    def until_taken(self, call: Callable[[float], ResultT], seconds: float, topic: str) -> ResultT:
        """Return what a call returns that goes to the leader of a topic's broker, and is given the seconds left; one
        that is refused because the leader changes is made anew."""

    def fastest_queue(self, topic: str) -> int | None:
        """Return a queue of the broker that answered fastest lately; None when all are as good."""

    def store_trace(self, body: bytes, keys: Sequence[str]) -> None:
        """Store a message in the trace topic, which is made if need be."""

    def host_of(self, receipt: Receipt) -> str:
        """Say where a broker stored a message, as "host:port"; "" when that is not known."""


class MessageSource(Protocol):
    """The messages that one consumer receives; any thread may use it."""

    def poll(self, max: int = ..., timeout: float = ...) -> list[Message]:
        """Return at most `max` messages; [] when nothing came in time, after wake() and after stop()."""

    def lag(self) -> int:
        """Return how many messages are not settled."""

    def wake(self) -> None:
        """End a wait, from any thread."""

    def stop(self) -> None:
        """End the iteration and every later poll, from any thread."""

    def close(self) -> None:
        """Stop, and let go of what is in hand."""

    def __iter__(self) -> Iterator[Message]: ...

    def __next__(self) -> Message: ...


class QueueReader(MessageSource, Protocol):
    """A source that reads the queues it is given."""

    def assign(self, topic: str, queue: int, queue_id: int, offset: int, slot: int = ..., /) -> None:
        """Read a queue from an offset."""

    def assigned(self) -> Sequence[Assignment]:
        """Return what is read of each queue; `committed` is the lowest offset not settled."""

    def seek(self, queue: int, offset: int, /) -> None:
        """Deliver a queue from another offset."""

    def pause(self, queue: int, paused: bool, /) -> None:
        """Leave a queue out, or take it in again."""

    def revoke(self, queue: int, /) -> None:
        """Stop reading a queue; its messages move no offset any more."""

    def requeue(self, message: Message) -> None:
        """Deliver this message again, before anything new."""

    def doubts(self) -> bool:
        """Whether a queue waits for the broker to mend where its next message is."""


class Hider(Protocol):
    """Hides messages that were handed out, and makes dead letters of them: the broker, or this process."""

    def hide(self, messages: Sequence[Message], seconds: float) -> None:
        """Deliver again what is not settled by then."""

    def dead_letter(self, message: Message, reason: str) -> object:
        """Store the dead letter of a message in hand, and settle it."""


class ReaderOwner(Protocol):
    """The consumer behind a reader, as the reader and its messages know it."""

    def _nack(self, message: Message, after: float | None) -> object: ...
    def _extend(self, message: Message, seconds: float) -> object: ...
    def _idle(self) -> bool: ...
    def _now(self) -> float: ...
    def _later(self, seconds: float, job: Callable[[], None]) -> None: ...
    def keep_for(self, messages: list[Message]) -> None: ...


class WaitingReader:
    """The shared part of readers whose messages come in on a thread of the wire: waits that end, and the iteration."""

    def __init__(self, owner: ReaderOwner | None) -> None:
        self.owner = owner
        self.changed = threading.Condition()
        self.stopped = False
        self._woken = False
        self._pid = os.getpid()

    def poll(self, max: int = options.RECEIVE_MAX, timeout: float = 0.0) -> list[Message]:
        """Return at most `max` messages; [] when none came in time, after wake() and after stop()."""
        raise NotImplementedError

    def __iter__(self) -> Iterator[Message]:
        return self

    def __next__(self) -> Message:
        while not self.stopped:
            if messages := self.poll(1, options.ITERATION_SLICE):
                return messages[0]
            if self.owner is not None and self.owner._idle():
                break
        raise StopIteration

    def wake(self) -> None:
        with self.changed:
            self._woken = True
            self.changed.notify_all()

    def stop(self) -> None:
        with self.changed:
            self.stopped = True
            self.changed.notify_all()


def poll_whole(reader: QueueReader, count_max: int, seconds: float) -> list[Message]:
    """As `reader.poll`, for looking only: damaged messages are logged and left out, doubts are waited for."""
    until = time.monotonic() + _DOUBT_SECONDS_MAX
    while True:
        try:
            messages = reader.poll(count_max, seconds)
            if messages or not reader.doubts() or time.monotonic() > until:
                return messages
            time.sleep(_DOUBT_SECONDS)
        except DamagedMessage as error:
            LOG.warning("left out: %s", error)
