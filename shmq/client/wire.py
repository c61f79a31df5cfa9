"""Owns what connections, producers and consumers need of whatever carries their messages.

It does not know shared memory or TCP. `shmq.client.wire_shm.session.Session` is the one over the segments of this host,
`shmq.client.wire_tcp.session.RemoteSession` the one to RocketMQ brokers anywhere; both are made by `open_session`.

    Session ── sender ──▶ MessageSender     send · send_oneway · send_batch · reserve
            ── reader ──▶ MessageReader     what one consumer receives; the iterator behind `for message in …`
            ── share  ──▶ QueueShare        which queues it reads, taking and leaving them

Queues are named twice: by `queue_id`, which users see, and by `queue_index`, which only the transport understands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from shmq.errors import ShmqError
from shmq.protocol.command import Command
from shmq.protocol.dialect import MessageQueue

if TYPE_CHECKING:
    from concurrent.futures import Future

    from shmq.client.position import Position
    from shmq.client.search.browse import KeyQuery
    from shmq.client.spec import ConsumerSpec
    from shmq.client.transactions.transaction import Transactions
    from shmq.shm.core import Message, Receipt


class QueueSlot(NamedTuple):
    """One queue, and where the group's offset of it is kept in shared memory (-1: nowhere there)."""

    queue_id: int
    queue_index: int
    offset_slot: int = -1


Answer = Command | ShmqError
"""What `Wire.begin` hands over: the broker's answer whatever its code is, or why there is none."""


class Wire(Protocol):
    """Carries requests to brokers and their answers; it knows no feature."""

    client_id: str
    timeout: float  # seconds, of a request that names none

    @property
    def alive(self) -> bool:
        """Whether somebody answers requests right now."""

    def brokers(self, topic: str) -> list[str]:
        """Return the names of the brokers that have a topic, sorted; [] when it does not exist."""

    def request(
        self,
        broker: str,
        code: int,
        ext: Mapping[str, str] | None = None,
        body: bytes = b"",
        timeout: float | None = None,
    ) -> Command:
        """Ask the master of a broker name, and return its answer.

        Raises:
            BrokerNotRunning: it cannot be reached.
            RequestTimeout: it did not answer in time.
            ShmqError: it refused; the type says why, RemoteError has the code.
        """

    def begin(
        self,
        broker: str,
        code: int,
        ext: Mapping[str, str] | None = None,
        body: bytes = b"",
        *,
        then: Callable[[Answer], None],
        timeout: float | None = None,
    ) -> None:
        """Ask without waiting or raising; `then` is called once, on a thread of the wire that must not wait."""


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


class MessageReader(Protocol):
    """Messages of the queues that one consumer reads; any thread may use it."""

    def poll(self, max: int = ..., timeout: float = ...) -> list[Message]:
        """Return at most `max` messages; [] when nothing came in time, after wake() and after stop()."""

    def assign(self, topic: str, queue: int, queue_id: int, offset: int, slot: int = ..., /) -> None:
        """Read a queue from an offset."""

    def assigned(self) -> list[tuple[str, int, int, int, int]]:
        """Return (topic, queue index, queue id, next offset, lowest offset not settled) of each queue."""

    def seek(self, queue: int, offset: int, /) -> None:
        """Deliver a queue from another offset."""

    def revoke(self, queue: int, /) -> None:
        """Stop reading a queue; its messages move no offset any more."""

    def requeue(self, message: Message) -> None:
        """Deliver this message again, before anything new."""

    def lag(self) -> int:
        """Return how many messages are not settled."""

    def wake(self) -> None:
        """End a wait, from any thread."""

    def stop(self) -> None:
        """End the iteration and every later poll, from any thread."""

    def close(self) -> None:
        """Stop, and forget the queues."""

    def __iter__(self) -> Iterator[Message]: ...

    def __next__(self) -> Message: ...


@runtime_checkable
class HidingReader(Protocol):
    """A reader whose messages are hidden, and delivered again in time, by whoever sent them."""

    hides: bool


class QueueShare(Protocol):
    """The part of a topic that one consumer reads."""

    held: dict[int, QueueSlot]
    step_interval: float

    @property
    def missing(self) -> list[QueueSlot]:
        """Wanted queues that are not held yet."""

    def name_of(self, slot: QueueSlot) -> str:
        """Return a name of a queue that means the same after a restart."""

    def go_on(self, offsets: Mapping[int, int]) -> None:
        """Say by queue index where a broadcast consumer was, for queues it has not read yet."""

    def want(self, wanted: Iterable[QueueSlot], all_slots: Iterable[QueueSlot], now: float) -> None:
        """Say which queues to read from now on; `step()` makes it so."""

    def step(self, now: float) -> bool:
        """Leave and take what can be left and taken, without waiting; True while something is pending."""

    def pause(self, queue_id: int, *, paused: bool) -> None:
        """Stop or go on delivering a held queue."""

    def retake(self) -> None:
        """After a reconnection: make sure that the held queues are still ours."""

    def leave_all(self) -> None:
        """Give every queue up at once."""


class Requests(Protocol):
    """Requests of one session, and their replies."""

    def request(self, topic: str, body: Any, timeout: float, **arguments: Any) -> Message:
        """Send a request and return its reply."""

    def begin(self, topic: str, body: Any, timeout: float, **arguments: Any) -> Future[Message]:
        """Send a request and return a future of its reply."""


class Session(Wire, Queues, Protocol):
    """One attachment to a broker or a cluster."""

    def watch(
        self,
        *,
        on_members_changed: Callable[[str], None],
        on_reconnect: Callable[[], None],
        on_error: Callable[[ShmqError], None],
    ) -> None:
        """Say whom to tell, on a thread of the session's, who must not wait."""

    def renew(self) -> bool:
        """After a reconnection: True when everything has to be opened anew."""

    def close(self) -> None:
        """Say goodbye and let go of everything; never raises."""

    def abandon(self) -> None:
        """Forget everything in a forked child, without telling anybody."""

    def register(self, producer_groups: Sequence[str], specs: Sequence[ConsumerSpec]) -> None:
        """Say which groups this client is a member of."""

    def unregister(self, group: str) -> None:
        """Leave a group."""

    def sender(self, timeout: float, *, group: str | None = None, compression: str | None = None) -> MessageSender:
        """Return something that sends; `timeout` in seconds, `compression` as the transport has it when None."""

    def fastest_queue(self, topic: str) -> int | None:
        """Return a queue of the broker that answered fastest lately; None when all are as good."""

    def recall(self, topic: str, handle: str, group: str) -> None:
        """Take a timed message back."""

    def store_trace(self, body: bytes, keys: Sequence[str]) -> None:
        """Store a message in the trace topic, which is made if need be."""

    def host_of(self, receipt: Receipt) -> str:
        """Say where a broker stored a message, as "host:port"; "" when that is not known."""

    @property
    def requests(self) -> Requests:
        """What sends requests; made when it is first asked for."""

    @property
    def transactions(self) -> Transactions:
        """What begins and ends transactions; made when it is first asked for."""

    def reply(self, message: Message, body: Any) -> bool:
        """Bring a reply to whoever asked; False when the requester is not there any more."""

    def reader(self, owner: Any, spec: ConsumerSpec) -> MessageReader:
        """Return the reader of a consumer; `owner` has `_nack`, `_extend` and `_idle`."""

    def share(self, reader: Any, spec: ConsumerSpec, on_left: Callable[[int], None]) -> QueueShare:
        """Return the share that decides what such a reader reads."""

    def assignment(self, spec: ConsumerSpec, client_id: str) -> tuple[list[QueueSlot], list[QueueSlot]]:
        """Return the queues a consumer is to read, and all of them."""

    def why_unassigned(self, spec: ConsumerSpec, share: Any, client_id: str) -> str:
        """Say why a consumer has no queue."""

    def hand_back(
        self,
        spec: ConsumerSpec,
        message: Message,
        after: float | None,
        *,
        failed: Callable[[Message], None],
    ) -> bool:
        """Let the broker deliver a message again, and settle it; False when that is the client's own work.

        Where this does not wait for the broker, `failed` is told when it did not take the message after all.
        """

    def bury(self, spec: ConsumerSpec, message: Message, reason: str, *, failed: Callable[[Message], None]) -> bool:
        """Let the broker store the dead-letter copy of a message; True when it is also settled then.

        Raises:
            ShmqError: the copy cannot be stored now.
        """

    def pull_reader(
        self, tags: Sequence[str], codec: Callable[[bytes], Any] | None, where: str | None = None
    ) -> MessageReader:
        """Return a reader for a consumer that decides itself where it reads."""

    def find_by_key(self, query: KeyQuery) -> list[Message]:
        """Return the messages of a topic that have a key, in any order."""

    def find_by_place(self, topic: str, message_id: str) -> Message | None:
        """Return the message an offset message id leads to, None when it leads to none of this topic."""
