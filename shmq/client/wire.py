"""The interface of the two carriers of messages: shared memory (`wire_shm`) and TCP (`wire_tcp`).

    Wire           requests to brokers and their answers          MessageReader   what one consumer receives
    Queues         where messages are, and offsets of groups      QueueShare      which queues it reads
    MessageSender  the four ways to send

Queues are named twice: by `queue_id`, which users see, and by `queue_index`, which only the wire understands.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, runtime_checkable

from shmq.client import options
from shmq.errors import DamagedMessage, ProtocolError, RequestTimeout, ShmqError
from shmq.protocol.command import Command
from shmq.protocol.dialect import MessageQueue
from shmq.protocol.failure import error_of

if TYPE_CHECKING:
    from shmq.client.position import Position
    from shmq.shm.core import Assignment, Message, Receipt

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

    @property
    def command(self) -> Command:
        """The same as it travels."""
        return Command(code=self.code, ext=dict(self.ext or {}), body=self.body)


Answer = Command | ShmqError
"""What `Wire.begin` hands over: the broker's answer whatever its code is, or why there is none."""


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
        logging.getLogger("shmq").exception("a callback of the control connection failed")


CONCURRENT_MAX: Final = 16
"""Requests of one question that are on their way at once."""
_DIGITS_MAX: Final = 19  # of 64 bits
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


def error_in(answer: Answer) -> ShmqError | None:
    """Return why there is no answer, or why the broker refused; None when it did neither."""
    return answer if isinstance(answer, ShmqError) else error_of(answer)


def reply_of(answer: Answer) -> Command:
    """Return an answer that is no refusal.

    Raises:
        ShmqError: there is none, or the broker refused; the type says why.
    """
    if (error := error_in(answer)) is not None:
        raise error
    assert not isinstance(answer, ShmqError)
    return answer


def number_in(answer: str, ext: Mapping[str, str], name: str) -> int:
    """Return a field of an answer that is a number.

    Raises:
        ProtocolError: it is none; `answer` says what was answered.
    """
    text = ext.get(name, "")
    if not text.isdecimal() or len(text) > _DIGITS_MAX:
        raise ProtocolError(f"{answer} has {name}={text[:32]!a}")
    return int(text)


class Queues(Protocol):
    """The queues of topics, as the wire sees them, and the offsets of groups on them."""

    def resolve(self, topic: str) -> int:
        """Make sure that a topic can be used, creating it where that is the broker's way."""

    def write_queues(self, topic: str) -> Sequence[int]:
        """Return the ids of the queues of a topic that may be written, made if that is the broker's way."""

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

    def version(self) -> int:
        """Return what differs when a topic may have other queues; always 0 where each pull's answer says so."""

    def committed(self, group: str, topic: str) -> dict[int, int]:
        """Return {queue id: committed offset}, without queues the group never committed."""

    def commit(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        """Write offsets down for a group."""


class MessageSender(Protocol):
    """The four ways to send; see `shmq.Connection` for what they take."""

    @property
    def send(self) -> Callable[..., Any]:
        """Store one message and return its receipt."""

    @property
    def send_oneway(self) -> Callable[..., Any]:
        """Store one message without a receipt."""

    @property
    def send_batch(self) -> Callable[..., Any]:
        """Store messages in one queue and return their receipts."""

    @property
    def reserve(self) -> Callable[..., Any]:
        """Return memory for a body to be written in place."""


class Sends(Protocol):
    """Senders, and what belongs to sending."""

    def sender(
        self, timeout: float, *, group: str | None = None, compression: str | None = None, keeps: object = None
    ) -> MessageSender:
        """Return something that sends; `timeout` in seconds, `compression` None as the transport has it, and `keeps`
        lives as long as the sender or one of its methods."""

    def fastest_queue(self, topic: str) -> int | None:
        """Return a queue of the broker that answered fastest lately; None when all are as good."""

    def store_trace(self, body: bytes, keys: Sequence[str]) -> None:
        """Store a message in the trace topic, which is made if need be."""

    def host_of(self, receipt: Receipt) -> str:
        """Say where a broker stored a message, as "host:port"; "" when that is not known."""


class MessageReader(Protocol):
    """Messages of the queues that one consumer reads; any thread may use it."""

    def poll(self, max: int = ..., timeout: float = ...) -> list[Message]:
        """Return at most `max` messages; [] when nothing came in time, after wake() and after stop()."""

    def assign(self, topic: str, queue: int, queue_id: int, offset: int, slot: int = ..., /) -> None:
        """Read a queue from an offset."""

    def assigned(self) -> Sequence[Assignment]:
        """Return what is read of each queue; `committed` is the lowest offset not settled."""

    def seek(self, queue: int, offset: int, /) -> None:
        """Deliver a queue from another offset."""

    def revoke(self, queue: int, /) -> None:
        """Stop reading a queue; its messages move no offset any more."""

    def requeue(self, message: Message) -> None:
        """Deliver this message again, before anything new."""

    def lag(self) -> int:
        """Return how many messages are not settled."""

    def doubts(self) -> bool:
        """Whether a queue waits for the broker to mend where its next message is."""

    def wake(self) -> None:
        """End a wait, from any thread."""

    def stop(self) -> None:
        """End the iteration and every later poll, from any thread."""

    def close(self) -> None:
        """Stop, and forget the queues."""

    def __iter__(self) -> Iterator[Message]: ...

    def __next__(self) -> Message: ...


class ReaderOwner(Protocol):
    """The consumer behind a reader, as the reader and its messages know it."""

    def _nack(self, message: Message, after: float | None) -> object: ...
    def _extend(self, message: Message, seconds: float) -> object: ...
    def _idle(self) -> bool: ...
    def _now(self) -> float: ...
    def _later(self, seconds: float, job: Callable[[], None]) -> None: ...


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
        """End a wait, from any thread."""
        with self.changed:
            self._woken = True
            self.changed.notify_all()

    def stop(self) -> None:
        """End the iteration and every later poll, from any thread."""
        with self.changed:
            self.stopped = True
            self.changed.notify_all()


def poll_whole(reader: MessageReader, count_max: int, seconds: float) -> list[Message]:
    """As `reader.poll`, for looking only: damaged messages are logged and left out, doubts are waited for."""
    until = time.monotonic() + _DOUBT_SECONDS_MAX
    while True:
        try:
            messages = reader.poll(count_max, seconds)
            if messages or not reader.doubts() or time.monotonic() > until:
                return messages
            time.sleep(_DOUBT_SECONDS)
        except DamagedMessage as error:
            logging.getLogger("shmq").warning("left out: %s", error)


@runtime_checkable
class HidingReader(Protocol):
    """A reader whose messages are hidden, and delivered again in time, by the broker that sent them."""

    hides: bool

    def dead_letter(self, message: Message, reason: str) -> object:
        """Let the broker store the dead letter of a message in hand, and settle it."""


@runtime_checkable
class PacingReader(Protocol):
    """A reader that stops to take messages of a queue by itself while too many of it are not settled."""

    paces: bool


class QueueShare:
    """The part of a topic that one consumer reads: `want` names its queues, `step` takes them. Nothing here waits.

        free ──taken──▶ held ──no longer wanted──▶ leaving ──nothing in flight, or time is up──▶ free
                                                     │ paused: delivers nothing new, acknowledgements still count
                                                     └──wanted again──▶ held

    Invariant: a broadcast consumer takes and leaves without asking, and its last offset is handed to it.
    """

    step_interval = options.TAKE_INTERVAL

    def __init__(self, reader: Any, on_left: Callable[[int], None]) -> None:
        """`on_left` is called with the id of a queue left."""
        self.held: dict[int, QueueSlot] = {}
        self._reader = reader
        self._on_left = on_left
        self._wanted: dict[int, QueueSlot] = {}
        self._leaving: dict[int, float] = {}
        self._paused: set[int] = set()
        self._offsets: dict[int, int] = {}  # broadcasting: where a queue goes on after it was left

    @property
    def missing(self) -> list[QueueSlot]:
        """Wanted queues that are not held yet."""
        return [slot for index, slot in self._wanted.items() if index not in self.held]

    def name_of(self, slot: QueueSlot) -> str:
        """Return a name of a queue that means the same after a restart."""
        return str(slot.queue_id)

    def go_on(self, offsets: Mapping[int, int]) -> None:
        """Say by queue index where a broadcast consumer was, for queues it has not read yet."""
        self._offsets = {**offsets, **self._offsets}

    def want(self, wanted: Iterable[QueueSlot], all_slots: Iterable[QueueSlot], now: float) -> None:
        """Say which queues to read from now on, out of all queues of the topic; `step()` makes it so."""
        self._wanted = {slot.queue_index: slot for slot in wanted}
        self._prepare(list(all_slots))
        for index in self.held:
            if index in self._wanted:
                if self._leaving.pop(index, None) is not None:
                    self._reader.pause(index, index in self._paused)
            elif index not in self._leaving:
                self._leaving[index] = now + options.REVOKE_TIMEOUT
                self._reader.pause(index, True)

    def step(self, now: float) -> bool:
        """Leave and take what can be left and taken, without waiting; True while something is pending."""
        in_flight = self._in_flight() if self._leaving else {}
        for index, deadline in list(self._leaving.items()):
            if now >= deadline or not in_flight.get(index, 0):
                self._leave(index)
        return self._take_missing(now)

    def pause(self, queue_id: int, *, paused: bool) -> None:
        """Stop or go on delivering a held queue; one that is being left stays silent."""
        for index, slot in self.held.items():
            if slot.queue_id == queue_id:
                (self._paused.add if paused else self._paused.discard)(index)
                if index not in self._leaving:
                    self._reader.pause(index, paused)

    def retake(self) -> None:
        """After a reconnection: make sure that the held queues are still ours."""

    def finish(self) -> None:
        """Before every queue is given up: wait, not for long, for what was asked of a broker."""

    def leave_all(self) -> None:
        """Give every queue up at once; messages in flight are delivered again, to the next reader."""
        self._wanted = {}
        for index in list(self.held):
            self._leave(index)

    def _forget(self, index: int) -> None:
        """Read a queue no more."""
        slot = self.held.pop(index)
        self._leaving.pop(index, None)
        self._paused.discard(index)
        self._reader.revoke(index)
        self._on_left(slot.queue_id)

    # -- what each wire does in its way
    def _prepare(self, all_slots: list[QueueSlot]) -> None:
        """Do what has to be done before queues are taken and left."""

    def _in_flight(self) -> Mapping[int, int]:
        """Return by queue index how many messages are in the hands of the application."""
        raise NotImplementedError

    def _take_missing(self, now: float) -> bool:
        """Take what can be taken; True while something is pending."""
        raise NotImplementedError

    def _leave(self, index: int) -> None:
        """Forget a queue, and let others have it."""
        raise NotImplementedError
