"""Serves clients of a name server: routes, clusters, lists of topics.

They are the requests 105, 106, 206, 224, 304 and 311 to 313.

A route names every broker that has queues of the topic and a live process to serve them. What is without a master can
be read from its slaves, not written to; clients see that by themselves.
"""

from collections.abc import Callable, Iterable

from shmq.daemon.logic.header_fields import ADVICE, text_of
from shmq.daemon.logic.requests import Answer, Call, Connection, Handler
from shmq.daemon.nameserver.addresses import reached_address
from shmq.daemon.nameserver.admin_requests import ConfigRequests
from shmq.daemon.nameserver.key_values import ORDER_NAMESPACE, KeyValues
from shmq.daemon.nameserver.registry import BrokerEntry, Registry
from shmq.protocol.body import encode_body
from shmq.protocol.codes import Request, Response
from shmq.protocol.route import (
    BrokerData,
    ClusterInfo,
    QueueData,
    TopicList,
    TopicRoute,
    encode_route,
    encode_unquoted,
    wants_standard_json,
)

_UNIT = 1  # bits of topicSysFlag
_UNIT_SUBSCRIPTION = 2


class RouteRequests:
    """Serves clients and administrators."""

    def __init__(self, registry: Registry, key_values: KeyValues, config: ConfigRequests) -> None:
        self._registry = registry
        self._key_values = key_values
        self._config = config

    def handlers(self) -> dict[int, Handler]:
        """Return what is served here, by request code."""
        return {
            Request.GET_ROUTEINFO_BY_TOPIC: self._route,
            Request.GET_BROKER_CLUSTER_INFO: self._clusters,
            Request.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: self._topics,
            Request.GET_TOPICS_BY_CLUSTER: self._topics_of_cluster,
            Request.GET_SYSTEM_TOPIC_LIST_FROM_NS: self._system_topics,
            Request.GET_UNIT_TOPIC_LIST: self._topics_where(lambda flags: bool(flags & _UNIT)),
            Request.GET_HAS_UNIT_SUB_TOPIC_LIST: self._topics_where(lambda flags: bool(flags & _UNIT_SUBSCRIPTION)),
            Request.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: self._topics_where(
                lambda flags: flags & (_UNIT | _UNIT_SUBSCRIPTION) == _UNIT_SUBSCRIPTION
            ),
        }

    def _route(self, call: Call) -> Answer:
        topic = text_of(call.ext, "topic")
        queues = self._registry.topics().get(topic)
        if not queues:
            remark = f"No topic route info in name server for the topic: {topic[:255]}{ADVICE}"
            return Answer(code=Response.TOPIC_NOT_EXIST, remark=remark)
        route = TopicRoute()
        for name, queue in sorted(queues.items()):
            entry = self._registry.brokers()[name]
            route.queueDatas.append(QueueData(name, queue.read_queues, queue.write_queues, queue.perm, queue.flags))
            route.brokerDatas.append(_broker_data(name, entry, call.connection))
            for member in entry.members.values():
                if member.filter_servers:
                    route.filterServerTable[member.address] = list(member.filter_servers)
        order = self._key_values.get(ORDER_NAMESPACE, topic)
        if order is not None and self._config.is_on("orderMessageEnable"):
            route.orderTopicConf = order
        return Answer(body=encode_route(route, standard=wants_standard_json(call.command)))

    def _clusters(self, call: Call) -> Answer:
        info = ClusterInfo()
        for name, entry in sorted(self._registry.brokers().items()):
            info.brokerAddrTable[name] = _broker_data(name, entry, call.connection)
            info.clusterAddrTable.setdefault(entry.cluster, []).append(name)
        return Answer(body=encode_unquoted(info))

    def _topics(self, call: Call) -> Answer:
        return _listed(self._registry.topics())

    def _topics_of_cluster(self, call: Call) -> Answer:
        cluster = text_of(call.ext, "cluster")
        brokers = {name for name, entry in self._registry.brokers().items() if entry.cluster == cluster}
        topics = self._registry.topics()
        return _listed(topic for topic, queues in topics.items() if not brokers.isdisjoint(queues))

    def _system_topics(self, call: Call) -> Answer:
        """Clusters and brokers have topics of their own names; with them comes the address of some broker."""
        brokers = self._registry.brokers()
        found = TopicList(sorted({entry.cluster for entry in brokers.values()} | brokers.keys()))
        for _, entry in sorted(brokers.items()):
            found.brokerAddr = reached_address(entry.members[min(entry.members)], call.connection)
            break
        return Answer(body=encode_body(found))

    def _topics_where(self, is_wanted: Callable[[int], bool]) -> Handler:
        def handler(call: Call) -> Answer:
            topics = self._registry.topics()
            # One broker's flags speak for the topic, as in RocketMQ.
            return _listed(topic for topic, queues in topics.items() if is_wanted(next(iter(queues.values())).flags))

        return handler


def _broker_data(name: str, entry: BrokerEntry, connection: Connection) -> BrokerData:
    addresses = {broker_id: reached_address(member, connection) for broker_id, member in sorted(entry.members.items())}
    return BrokerData(name, addresses, entry.cluster)


def _listed(topics: Iterable[str]) -> Answer:
    return Answer(body=encode_body(TopicList(sorted(topics))))
