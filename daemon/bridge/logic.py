"""The interface of a logic that the bridge hosts: a broker's or a name server's.

A logic decides and the bridge acts: no method waits, and what has to be done comes back as effects.

    connected -> handle* -> disconnected        tick about once a second, whatever happens
                                                arrived, flushed when the log has moved
"""

from collections.abc import Iterable, Sequence
from typing import Protocol

from shmq.addresses import Address
from shmq.daemon.logic.effects import Effect
from shmq.daemon.logic.requests import Peer
from shmq.protocol.command import Command


class Logic(Protocol):
    """Decisions behind connections; single-threaded, effects are carried out in order."""

    def connected(
        self,
        connection_id: int,
        peer: Peer | None,
        now_ms: int,
        *,
        remote: Address | None = None,
        local: Address | None = None,
    ) -> None:
        """Take note of a new connection; `peer` is None for TCP, `remote` and `local` are its ends then."""

    def is_attached(self, connection_id: int) -> bool:
        """Say whether a local connection has proven to be one of our own clients."""

    @property
    def holds_sends(self) -> bool:
        """Whether sends have to wait for others that came before them."""

    def handle(self, connection_id: int, command: Command, now_ms: int) -> Iterable[Effect]:
        """Serve one command of a connection."""

    def arrived(self, queues: Sequence[int], now_ms: int) -> Iterable[Effect]:
        """Serve who waited for messages in these queues (by index)."""

    def flushed(self, durable_end: int, now_ms: int) -> Iterable[Effect]:
        """Serve who waited for the log to be on disk up to a position."""

    def woken(self, now_ms: int) -> Iterable[Effect]:
        """Do what a `Wake` asked for."""

    def disconnected(self, connection_id: int, now_ms: int) -> Iterable[Effect]:
        """Forget a connection."""

    def tick(self, now_ms: int) -> Iterable[Effect]:
        """Do what is due."""
