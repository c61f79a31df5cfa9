"""The session over TCP: the features of a connection, made over the wire to one cluster."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from shmq.client.place import RemotePlace
from shmq.client.pop.poppers import Poppers
from shmq.client.remote.groups import TcpGroups
from shmq.client.remote.questions import QueueQuestions
from shmq.client.remote.queues import TcpQueues
from shmq.client.remote.sender import TcpSends
from shmq.client.requests.pushed import PushedReplies, take_pushed
from shmq.client.requests.replier import Replier
from shmq.client.requests.requester import Requests
from shmq.client.search import Search
from shmq.client.transactions.half import RemoteTransactions, end_command
from shmq.client.wire_tcp.channel import Channel
from shmq.client.wire_tcp.name_service import Answering
from shmq.client.wire_tcp.network import countdown
from shmq.client.wire_tcp.wire import TcpWire
from shmq.protocol.codes import Request
from shmq.protocol.command import Command
from shmq.protocol.failure import reply_of
from shmq.protocol.system_topics.transaction import PREPARED
from shmq.shm.core import Receipt


class RemoteSession:
    """Everything of a remote connection that dies with it or a fork."""

    def __init__(self, place: RemotePlace, *, client_id: str, timeout: float, answer: Answering | None = None) -> None:
        """
        Args:
            answer: answers what name servers are asked, in their place.
        """
        self.wire = wire = TcpWire(place, client_id=client_id, timeout=timeout, answer=answer)
        questions = QueueQuestions(wire.network, wire.names, timeout)
        self.queues = TcpQueues(wire, questions)
        self.members = TcpGroups(wire, questions)
        self.sends = TcpSends(wire)
        self.poppers = Poppers(wire, self.queues)
        self.search = Search(wire, self.queues, self.members.pull_reader)
        self.requests = Requests(self._open_replies, Replier(wire, self.queues).reply)
        self.transactions = RemoteTransactions(wire, self.queues, self._send_half)
        wire.serve(Request.CHECK_TRANSACTION_STATE, self._checked)
        wire.serve(Request.PUSH_REPLY_MESSAGE_TO_CLIENT, lambda _, request: take_pushed(self.requests, request))

    # -- requests and transactions
    def _open_replies(self) -> PushedReplies:
        return PushedReplies(
            self.wire.client_id,
            prepare=self.sends.sender(self.wire.timeout).prepare,
            introduce=partial(self.members.registration.introduce, asks=True),
            submit=self.wire.network.submit,
        )

    def _send_half(
        self, topic: str, body: Any, extra: Mapping[str, str], *, group: str, timeout: float, **arguments: Any
    ) -> Receipt:
        """Store the first half of a transaction, trying once, at a broker that knows us as a member of its group."""
        sender = self.sends.sender(timeout, group=group)
        sending = sender.prepare(topic, body, extra, sys_flag=PREPARED, retries=0, **arguments)

        async def send() -> Receipt:
            left = countdown(self.wire.network.loop, timeout)
            await self.members.registration.introduce(topic, left())
            return await sending(left())

        return self.wire.wait(self.wire.network.submit(send()), timeout)

    def _checked(self, channel: Channel, request: Command) -> None:
        """A broker asks how a transaction ended; the answer goes over the connection by which the question came."""

        def tell(fields: dict[str, str]) -> None:
            ask = self.wire.network.request
            reply_of(self.wire.call(ask(channel.address, end_command(fields), self.wire.timeout)))

        self.transactions.asked(request, tell)

    # -- life
    @property
    def is_led_elsewhere(self) -> bool:
        """Whether calls wait for the leader in this thread: the I/O thread finds it, for each request."""
        return False

    def reach(self, seconds: float) -> float:
        """Return the seconds; see above."""
        return seconds

    def renew(self) -> bool:
        """A broker that is back has forgotten us, but everything here is as it was."""
        return False

    def close(self) -> None:
        """Commit, say goodbye and end the I/O thread; never raises."""
        self.requests.close()
        self.members.close()
        self.wire.close()

    def abandon(self) -> None:
        self.wire.abandon()
