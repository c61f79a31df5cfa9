"""The parts of a connection that end with its attachment to a broker or a cluster.

A session is made of parts; a feature gets the parts it needs, not the session.

    wire          requests and answers                    sends          senders, and what belongs to sending
    queues        topics, queues, offsets of groups       readers        readers, and which queues they read
    members       the groups of this connection           requests       asking and being answered
    search        finding stored messages                 transactions   beginning and ending them
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from shmq.client.place import RemotePlace
from shmq.client.wire import Queues, Sends, Watcher, Wire
from shmq.shm.place import Place

if TYPE_CHECKING:
    from shmq.client.pop.poppers import PoppingReaders
    from shmq.client.requests.requester import Requests
    from shmq.client.search import Search
    from shmq.client.spec import ConsumerSpec
    from shmq.client.transactions.transaction import Transactions


class Members(Protocol):
    """The groups of this connection: their registration, and the watcher of their changes."""

    def watch(self, watcher: Watcher) -> None:
        """Set the watcher; it is called on a thread of the wire's and must not wait."""

    def register(self, producer_groups: Sequence[str], specs: Sequence[ConsumerSpec]) -> None:
        """Say which groups this client is a member of."""

    def unregister(self, group: str) -> None:
        """Leave a group."""


class Session(Protocol):
    """One attachment to a broker or a cluster."""

    @property
    def wire(self) -> Wire:
        """Carries requests."""

    @property
    def queues(self) -> Queues:
        """Topics, queues, and offsets of groups."""

    @property
    def members(self) -> Members:
        """The groups of the connection."""

    @property
    def readers(self) -> PoppingReaders:
        """Makes readers."""

    @property
    def sends(self) -> Sends:
        """Makes senders."""

    @property
    def search(self) -> Search:
        """Finds stored messages."""

    @property
    def requests(self) -> Requests:
        """Sends requests; made at the first use."""

    @property
    def transactions(self) -> Transactions:
        """Begins and ends transactions; made at the first use."""

    def renew(self) -> bool:
        """After a reconnection: True when everything has to be opened anew."""

    def close(self) -> None:
        """Say goodbye and let go of everything; never raises."""

    def abandon(self) -> None:
        """Forget everything in a forked child, without a word to the broker."""


def open_session(place: Place | RemotePlace, *, client_id: str, timeout: float) -> Session:
    """Attach to a broker of this host, or connect to a cluster.

    Raises:
        ConnectError: neither is there, or not for us.
    """
    # Each imported when it is needed: a local connection pays nothing for TCP, a remote one maps nothing.
    if isinstance(place, RemotePlace):
        from shmq.client.remote_session import RemoteSession

        return RemoteSession(place, client_id=client_id, timeout=timeout)
    from shmq.client.local_session import LocalSession

    return LocalSession(place, client_id=client_id, timeout=timeout)
