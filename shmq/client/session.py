"""The parts of a connection that end with its attachment to a broker or a cluster.

A session is made of parts; a feature gets the parts it needs, not the session.

    wire          requests and answers                    sends          senders, and what belongs to sending
    queues        topics, queues, offsets of groups       members        groups, their readers and queues
    poppers       readers of what brokers hide            requests       asking and being answered
    search        finding stored messages                 transactions   beginning and ending them
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from shmq.client.place import RemotePlace
from shmq.client.wire import Handed, QueueReader, Queues, QueueSlot, ReaderOwner, Sends, Watcher, Wire
from shmq.shm.place import Place

if TYPE_CHECKING:
    from shmq.client.pop.poppers import Poppers
    from shmq.client.queue_share import QueueShare
    from shmq.client.requests.requester import Requests
    from shmq.client.search import Search
    from shmq.client.spec import ConsumerSpec
    from shmq.client.transactions.half import Transactions
    from shmq.shm.core import Message


class Members(Protocol):
    """The groups of this connection: registration, readers, and the queues that they share with other members."""

    def watch(self, watcher: Watcher) -> None:
        """Set the watcher; it is called on a thread of the wire's and must not wait."""

    def register(self, producer_groups: Sequence[str], specs: Sequence[ConsumerSpec]) -> None:
        """Say which groups this client is a member of."""

    def unregister(self, group: str) -> None:
        """Leave a group."""

    @property
    def keeps_readers(self) -> bool:
        """Whether what is opened now is kept until it is closed."""

    def open(
        self, owner: ReaderOwner, spec: ConsumerSpec, on_left: Callable[[int], None]
    ) -> tuple[QueueReader, QueueShare]:
        """Return a reader for a consumer, and the share that decides what it reads."""

    def assignment(self, spec: ConsumerSpec) -> tuple[list[QueueSlot], list[QueueSlot]]:
        """Return the queues a consumer is to read, and all of them.

        Raises:
            ConnectError, RequestTimeout: the brokers do not answer.
            TopicNotFound: the topic was deleted since the consumer began.
        """

    def why_unassigned(self, spec: ConsumerSpec, share: Any) -> str:
        """Say why a consumer has no queue."""

    def hand_over(self, spec: ConsumerSpec, message: Message) -> Handed | None:
        """Say that a broker is about to take a message over; None when its queue is another member's now."""

    def pull_reader(
        self,
        tags: Sequence[str],
        codec: Callable[[bytes], Any] | None,
        where: str | None = None,
        verify: bool | None = None,
    ) -> QueueReader:
        """Return a reader without an owner, for a consumer that decides itself where it reads."""


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
        """The groups of the connection, and their readers."""

    @property
    def poppers(self) -> Poppers:
        """Makes readers of messages that brokers hide."""

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

    @property
    def is_led_elsewhere(self) -> bool:
        """Whether calls here may wait for another host, which leads."""

    def reach(self, seconds: float) -> float:
        """Wait for the leader where that is another host, `seconds` at most; return how many are left.

        Raises:
            NotMaster: it cannot be reached, or none is known.
        """

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
