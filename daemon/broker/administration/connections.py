"""Who is connected: the members of a group, the producers of a group, all producers.

They are the requests 203, 204 and 328.

A local client has no address; it is shown as `shm-<pid>:0`, since tools split an address at its last colon.
"""

from collections.abc import Iterable

from shmq.daemon.broker.fields import text_of
from shmq.daemon.broker.groups.presence import Presence
from shmq.daemon.broker.groups.registry import Member
from shmq.daemon.broker.requests import Answer, Call, Part, serves
from shmq.daemon.broker.tables import Clock
from shmq.errors import RemoteError
from shmq.protocol.admin_body import (
    ClientConnection,
    ConsumerConnection,
    ProducerConnection,
    ProducerInfo,
    ProducerTable,
)
from shmq.protocol.body import encode_body
from shmq.protocol.codes import Request, Response


class ConnectionRequests(Part):
    """Serves what is known about connected clients."""

    def __init__(self, tables: Clock, presence: Presence) -> None:
        self._tables = tables
        self._registry, self._connections, _ = presence

    @serves(Request.GET_CONSUMER_CONNECTION_LIST)
    def _consumers(self, call: Call) -> Answer:
        name = text_of(call.ext, "consumerGroup")
        group = self._registry.consumer_group(name)
        if group is None:
            raise RemoteError(Response.CONSUMER_NOT_ONLINE, f"the consumer group[{name}] not online")
        body = ConsumerConnection(
            connectionSet=self._shown(group.members.values()),
            subscriptionTable=group.table,
            consumeType=group.consume_type,
            messageModel=group.model,
            consumeFromWhere=group.consume_from,
        )
        return Answer(body=encode_body(body))

    @serves(Request.GET_PRODUCER_CONNECTION_LIST)
    def _producers(self, call: Call) -> Answer:
        name = text_of(call.ext, "producerGroup")
        members = self._registry.producers().get(name)
        if not members:
            raise RemoteError(Response.SYSTEM_ERROR, f"the producer group[{name}] not exist")
        return Answer(body=encode_body(ProducerConnection(self._shown(members.values()))))

    @serves(Request.GET_ALL_PRODUCER_INFO)
    def _all_producers(self, call: Call) -> Answer:
        wall_ms = self._tables.clock_ms
        table = {
            name: [
                ProducerInfo(
                    clientId=member.client_id,
                    remoteIP=f"/{self._address(member)}",
                    language=member.origin.language.name,
                    version=member.origin.version,
                    lastUpdateTimestamp=wall_ms - (call.now_ms - member.seen_ms),
                )
                for member in members.values()
            ]
            for name, members in self._registry.producers().items()
        }
        return Answer(body=encode_body(ProducerTable(table)))

    def _shown(self, members: Iterable[Member]) -> list[ClientConnection]:
        return [
            ClientConnection(
                clientId=member.client_id,
                clientAddr=self._address(member),
                language=member.origin.language.name,
                version=member.origin.version,
            )
            for member in members
        ]

    def _address(self, member: Member) -> str:
        connection = self._connections.get(member.origin.connection_id)
        if connection is not None and connection.remote is not None:
            return str(connection.remote)
        return f"shm-{connection.peer.pid if connection and connection.peer else 0}:0"
