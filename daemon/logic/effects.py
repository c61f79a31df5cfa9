"""What the broker's logic wants done, as data; the bridge carries it out, in order.

Effects of one call are carried out in the order of the list. An effect for a connection that is gone is dropped.
"""

from dataclasses import dataclass, field

from shmq.protocol.command import Command
from shmq.protocol.shared_reply import SharedReply


@dataclass(frozen=True, slots=True)
class Reply:
    """Answer a request of this connection; `shared` where others get the same answer to theirs."""

    connection_id: int
    command: Command
    shared: SharedReply | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Notify:
    """Tell this connection something it did not ask for; may be dropped if the connection cannot keep up."""

    connection_id: int
    command: Command


@dataclass(frozen=True, slots=True)
class Close:
    """End this connection; the broker has forgotten it already."""

    connection_id: int
    reason: str


@dataclass(frozen=True, slots=True)
class Report:
    """Write one line to the log."""

    text: str


@dataclass(frozen=True, slots=True)
class Wake:
    """Call `woken` of the logic in so many milliseconds, or before; who is woken too early asks again."""

    after_ms: int


@dataclass(frozen=True, slots=True)
class Forward:
    """Let the primary bridge serve this command of a connection; what it answers goes back as it is."""

    connection_id: int
    command: Command


Effect = Reply | Notify | Close | Report | Wake | Forward
