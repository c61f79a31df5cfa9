"""Lists connected clients: members and producers, groups of a topic, topics of a group.

They are the requests 203, 204, 328, 300, 343, 345 and 321 (the units of a queue).

A local client has no address; it is shown as `shm-<pid>:0`, since tools split an address at its last colon.
"""

from collections.abc import Iterable

from shmq.daemon.broker.groups.consumer_group import Member
from shmq.daemon.broker.groups.registry import Presence
from shmq.daemon.broker.statistics.queue_index import QueueIndex
from shmq.daemon.broker.tables import Tables
from shmq.daemon.logic.header_fields import INT32_MAX, INT64_MAX, number_of, text_of
from shmq.daemon.logic.requests import Answer, Call, Part, serves
from shmq.errors import RemoteError
from shmq.protocol.admin_body import (
    ClientConnection,
    ConsumerConnection,
    GroupList,
    GroupSubscription,
    ProducerConnection,
    ProducerInfo,
    ProducerTable,
    QueueData,
    TopicList,
    UnitData,
)
from shmq.protocol.body import encode_body
from shmq.protocol.codes import Request, Response

_UNITS_MAX = 1024  # in one reply


class MemberRequests(Part):
    """Serves what is known about connected clients and what they read."""

    def __init__(self, tables: Tables, presence: Presence, queues: QueueIndex) -> None:
        self._tables = tables
        self._queues = queues
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

    # -- who reads what

    @serves(Request.QUERY_TOPIC_CONSUME_BY_WHO)
    def _groups_of_topic(self, call: Call) -> Answer:
        name = text_of(call.ext, "topic")
        topic = self._tables.topic(name)
        stored = self._queues.groups_of(topic) if topic is not None else []
        return Answer(body=encode_body(GroupList(sorted({*stored, *self._registry.subscribers(name)}))))

    @serves(Request.QUERY_TOPICS_BY_CONSUMER)
    def _topics_of_group(self, call: Call) -> Answer:
        topics = self._queues.topics_of(text_of(call.ext, "group"))
        return Answer(body=encode_body(TopicList(topics, str(call.connection.local or "") or None)))

    @serves(Request.QUERY_SUBSCRIPTION_BY_CONSUMER)
    def _subscription(self, call: Call) -> Answer:
        name, topic = text_of(call.ext, "group"), call.ext.get("topic", "")
        group = self._registry.consumer_group(name)
        data = group.table.get(topic) if group is not None else None
        return Answer(body=encode_body(GroupSubscription(name, topic, data)))

    @serves(Request.QUERY_CONSUME_QUEUE)
    def _units(self, call: Call) -> Answer:
        ext = call.ext
        name, queue_id = text_of(ext, "topic"), number_of(ext, "queueId", most=INT32_MAX)
        first = number_of(ext, "index", most=INT64_MAX, default=0)
        count = min(_UNITS_MAX, number_of(ext, "count", most=INT32_MAX, default=_UNITS_MAX))
        topic = self._tables.topic(name)
        if topic is None or queue_id >= len(topic.queues):
            raise RemoteError(Response.SYSTEM_ERROR, f"{queue_id}@{name[:127]} is not exist!")
        queue = topic.queues[queue_id]
        bounds = self._tables.queue_bounds(queue)
        group = self._registry.consumer_group(ext.get("consumerGroup", ""))
        body = QueueData(
            minQueueIndex=bounds.offset_min,
            maxQueueIndex=bounds.offset_max,
            queueData=[UnitData(*unit) for unit in self._tables.units(queue, first, count)],
            subscriptionData=group.table.get(name) if group is not None else None,
            filterData="null" if group is not None else None,
        )
        return Answer(body=encode_body(body))
