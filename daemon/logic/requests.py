"""What a request handler receives, and what it returns.

A `Part` is one subject of a logic with the requests it serves; `Call` comes in, `Answer` goes out, and `of_all` tells
every part of time and of the log.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple, TypeVar

from shmq.addresses import Address
from shmq.daemon.logic.access.rights import EVERYTHING, Rights
from shmq.daemon.logic.effects import Close, Effect, Reply, Report
from shmq.errors import ShmqError
from shmq.protocol.codes import Response
from shmq.protocol.command import Command
from shmq.protocol.shared_reply import SharedReply

_CODES = "_served_codes"


class Peer(NamedTuple):
    """The process at the other end of a Unix socket, as the kernel vouches for it.

    `pid` is 0 when the process is not visible in our PID namespace; `start` and `pid_namespace` are 0 when we may not
    look.
    """

    pid: int
    uid: int
    gid: int
    start: int
    pid_namespace: int


@dataclass(slots=True)
class Connection:
    """One connection and what its client said about itself. `peer` is None for TCP, the addresses for a Unix socket.

    `local` is the address the client reached us at: the one it may be given to connect to again.
    """

    connection_id: int
    peer: Peer | None
    since_ms: int
    remote: Address | None = None
    local: Address | None = None
    client_id: str = ""
    role: int = 0
    client_slot: int = -1
    version: str = ""
    has_account: bool = False  # some request of it has passed the rules
    rights: Rights = EVERYTHING  # of the last one that did
    is_of_bridge: bool = False  # another bridge of this broker speaks through it, and watches over its limits

    @property
    def is_local(self) -> bool:
        """Whether the peer is a process of this host on the control socket."""
        return self.peer is not None

    @property
    def is_attached(self) -> bool:
        """Whether ATTACH has been accepted."""
        return bool(self.client_id)


class Call(NamedTuple):
    """One request to be handled; `rights` judge what it leads to, what it names was judged before."""

    connection: Connection
    command: Command
    now_ms: int
    rights: Rights = EVERYTHING

    @property
    def ext(self) -> Mapping[str, str]:
        """The request's header fields."""
        return self.command.ext


@dataclass(slots=True)
class Ask:
    """A request of ours to a client that has to answer it. `then` gets the answer, or None when none came in time."""

    connection_id: int
    code: int
    then: Callable[[Command | None], Sequence[Effect]]
    ext: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    timeout_ms: int = 10_000


class Notice(NamedTuple):
    """A oneway request of ours to a client."""

    connection_id: int
    code: int
    ext: Mapping[str, str]
    body: bytes = b""


@dataclass(slots=True)
class Answer:
    """An answer, and what else follows from the request. `code` other than SUCCESS is not a failure of ours: it is
    what the protocol calls for, with header fields."""

    ext: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    code: int = Response.SUCCESS
    remark: str | None = None
    changed_groups: Sequence[str] = ()  # their members are asked to share the queues anew
    reports: Sequence[str] = ()
    closes: Sequence[Close] = ()
    notices: Sequence[Notice] = ()
    asks: Sequence[Ask] = ()
    held: bool = False  # no reply now: the answers to `asks` make it, with `later`
    effects: Sequence[Effect] = ()  # carried out after the reply
    shared: SharedReply | None = None  # others get the same answer


Handler = Callable[[Call], Answer | None]
"""None: the answer comes later, as the effect `later(call, answer)` of some other call of the part."""

WhenDurable = Callable[..., Answer]
"""(call, answer, end, *topics): that answer, held until the log is on disk up to `end`, where one of the topics (by
name) counts what is on disk only."""


def reply_to(call: Call, answer: Answer) -> Reply:
    """Return the answer as the effect that sends it."""
    reply = call.command.reply(answer.code, ext=answer.ext, body=answer.body, remark=answer.remark)
    return Reply(call.connection.connection_id, reply, answer.shared)


def later(call: Call, answer: Answer) -> list[Effect]:
    """Return the reply to a request that was held, and nothing for one that is oneway."""
    return [*answer.effects] if call.command.is_oneway else [reply_to(call, answer), *answer.effects]


_Method = TypeVar("_Method", bound=Callable[..., Answer | None])


def serves(*codes: int) -> Callable[[_Method], _Method]:
    """Mark a method of a part as the handler of these request codes."""

    def mark(method: _Method) -> _Method:
        setattr(method, _CODES, codes)
        return method

    return mark


class Part:
    """One subject of a logic: the requests it serves, and what time and the log do to it.

    Attributes:
        hears_arrivals: whether `arrived` does anything; only such parts are called for each message.
    """

    hears_arrivals: ClassVar[bool] = False

    def handlers(self) -> dict[int, Handler]:
        """Return what is served here, by request code: the methods that `serves` has marked."""
        methods = vars(type(self)).items()
        return {code: getattr(self, name) for name, method in methods for code in getattr(method, _CODES, ())}

    def tick(self, now_ms: int) -> Sequence[Effect]:
        """Do what is due; called about once a second."""
        return ()

    def woken(self, now_ms: int) -> Sequence[Effect]:
        """Called after a `Wake` that some part asked for, maybe this one."""
        return ()

    def arrived(self, queues: Sequence[int], now_ms: int) -> Sequence[Effect]:
        """Queues (by index) that may have new visible messages."""
        return ()

    def flushed(self, durable_end: int, now_ms: int) -> Sequence[Effect]:
        """Everything below this log position is on disk."""
        return ()

    def disconnected(self, connection: Connection, now_ms: int) -> Sequence[Effect]:
        """The connection is gone."""
        return ()


def of_all(parts: Iterable[Part], act: Callable[[Part], Sequence[Effect]]) -> list[Effect]:
    """Return what every part wants done; a part that fails is reported and takes nothing from the others.

    What the others answer is said once only: their held requests are forgotten by then.
    """
    effects: list[Effect] = []
    for part in parts:
        try:
            effects += act(part)
        except ShmqError as error:
            effects.append(Report(f"{type(part).__name__} failed: {error}"))
    return effects
