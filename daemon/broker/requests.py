"""What a request handler receives and what it gives back.

Owns the shape of a call and of an answer. It does not know any request.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from shmq.daemon.broker.effects import Close
from shmq.protocol.command import Command


class Peer(NamedTuple):
    """The process at the other end of a Unix socket, as the kernel vouches for it.

    `pid` is 0 when the process is not visible in our PID namespace; `pid_namespace` is 0 when we may not look.
    """

    pid: int
    uid: int
    gid: int
    start: int
    pid_namespace: int


@dataclass(slots=True)
class Connection:
    """One connection and what its client said about itself. `peer` is None for TCP."""

    connection_id: int
    peer: Peer | None
    since_ms: int
    client_id: str = ""
    role: int = 0
    client_slot: int = -1
    version: str = ""

    @property
    def is_local(self) -> bool:
        """Whether the peer is a process of this host on the control socket."""
        return self.peer is not None

    @property
    def is_attached(self) -> bool:
        """Whether ATTACH has been accepted."""
        return bool(self.client_id)


class Call(NamedTuple):
    """One request to be handled."""

    connection: Connection
    command: Command
    now_ms: int

    @property
    def ext(self) -> Mapping[str, str]:
        """The request's header fields."""
        return self.command.ext


@dataclass(slots=True)
class Answer:
    """A successful answer, and what else follows from the request."""

    ext: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    changed_groups: Sequence[str] = ()  # their members are told to share the queues anew
    reports: Sequence[str] = ()
    closes: Sequence[Close] = ()


Handler = Callable[[Call], Answer]
