"""Who reads what: groups of a topic, topics of a group, one subscription, the units of a queue.

They are the requests 300, 343, 345 and 321.
"""

from shmq.daemon.broker.fields import INT32_MAX, INT64_MAX, number_of, text_of
from shmq.daemon.broker.groups.registry import GroupRegistry
from shmq.daemon.broker.requests import Answer, Call, Part, serves
from shmq.daemon.broker.statistics.queue_index import QueueIndex
from shmq.daemon.broker.tables import Queues
from shmq.errors import RemoteError
from shmq.protocol.admin_body import GroupList, GroupSubscription, QueueData, TopicList, UnitData
from shmq.protocol.body import encode_body
from shmq.protocol.codes import Request, Response

_UNITS_MAX = 1024  # in one reply


class SubscriptionRequests(Part):
    """Serves questions about subscriptions."""

    def __init__(self, tables: Queues, registry: GroupRegistry, queues: QueueIndex) -> None:
        self._tables = tables
        self._registry = registry
        self._queues = queues

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
