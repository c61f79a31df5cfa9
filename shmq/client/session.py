"""Everything of a connection that dies with its attachment to a broker or a cluster.

A session is made of parts; whoever uses one gets the parts he needs, not the session.

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
    """What the brokers are told of the groups of this connection, and who is to be told of changes."""

    def watch(self, watcher: Watcher) -> None:
        """Say whom to tell, on a thread of the wire's, who must not wait."""

    def register(self, producer_groups: Sequence[str], specs: Sequence[ConsumerSpec]) -> None:
        """Say which groups this client is a member of."""

    def unregister(self, group: str) -> None:
        """Leave a group."""


class Session(Protocol):
    """One attachment to a broker or a cluster."""

    @property
    def wire(self) -> Wire:
        """What carries requests."""

    @property
    def queues(self) -> Queues:
        """Topics, queues, and offsets of groups."""

    @property
    def members(self) -> Members:
        """The groups of the connection."""

    @property
    def readers(self) -> PoppingReaders:
        """What makes readers."""

    @property
    def sends(self) -> Sends:
        """What makes senders."""

    @property
    def search(self) -> Search:
        """What finds stored messages."""

    @property
    def requests(self) -> Requests:
        """What sends requests; made when it is first asked for."""

    @property
    def transactions(self) -> Transactions:
        """What begins and ends transactions; made when it is first asked for."""

    def renew(self) -> bool:
        """After a reconnection: True when everything has to be opened anew."""

    def close(self) -> None:
        """Say goodbye and let go of everything; never raises."""

    def abandon(self) -> None:
        """Forget everything in a forked child, without telling anybody."""


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
