"""A topic's route, as a name server gives it: its queues, the brokers that hold them, their addresses.

A route is immutable: a newer one replaces it whole.

    queue            (broker name, queue id)          permitted when perm has 2; writable if its broker has a master
    queue number     broker ordinal << 16 | queue id  what users see: one int for a queue of a cluster

With one broker, numbers are queue ids. Ordinals are given by this process as it meets broker names, sorted within one
route; for the members of a group the queues of its retry topics have numbers of their own, since those messages appear
under the topic they were sent to: from 2**30 on, and those of %RETRY%group+topic from queue id 1024 on.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from shmq.addresses import Address
from shmq.client.place import parse_address
from shmq.errors import ProtocolError, UsageError
from shmq.message import PERM_READ, PERM_WRITE, QUEUES_MAX, pop_names, retry_topic, retry_topic_of
from shmq.protocol import route as wire
from shmq.protocol.dialect import MessageQueue
from shmq.protocol.route import MASTER_ID
from shmq.shm.core import RETRY_QUEUE_BASE

DEFAULT_TOPIC_QUEUES = 4

QUEUE_BITS = 16
_RETRY_ORDINAL = RETRY_QUEUE_BASE >> QUEUE_BITS
_ORDINAL_MAX = _RETRY_ORDINAL - 1


class Route(NamedTuple):
    """The places of one topic's queues, sorted as RocketMQ sorts them.

    What has to stay in order is placed by its hash over the `permitted` queues, whose number a master that is gone does
    not change; what may go anywhere goes to a `writable` one.
    """

    topic: str
    writable: tuple[MessageQueue, ...]
    readable: tuple[MessageQueue, ...]
    brokers: Mapping[str, Mapping[int, Address]]
    permitted: tuple[MessageQueue, ...]

    def master(self, broker_name: str) -> Address | None:
        """Return the address that takes writes for a broker name, None while there is none."""
        return self.brokers.get(broker_name, {}).get(MASTER_ID)

    def reader(self, broker_name: str, broker_id: int = MASTER_ID) -> Address | None:
        """Return where to pull from: the broker suggested, else the master, else any."""
        known = self.brokers.get(broker_name, {})
        found = known.get(broker_id) or known.get(MASTER_ID)
        return found or next(iter(known.values()), None)

    def with_permitted(self, others: Iterable[MessageQueue]) -> Route:
        """Return this route with more queues that are permitted, at their place in the order."""
        return self._replace(permitted=tuple(sorted((*self.permitted, *others))))


def decode_route(topic: str, body: bytes) -> Route:
    """Read the body of GET_ROUTEINFO_BY_TOPIC.

    Raises:
        ProtocolError: not a route, or one with impossible numbers.
    """
    data = wire.decode_route(body)
    brokers = {broker.brokerName: _addresses(broker) for broker in data.brokerDatas}
    permitted: list[MessageQueue] = []
    readable: list[MessageQueue] = []
    for entry in sorted(data.queueDatas, key=lambda entry: entry.brokerName):
        if not 0 <= entry.writeQueueNums <= QUEUES_MAX or not 0 <= entry.readQueueNums <= QUEUES_MAX:
            raise ProtocolError(
                f"topic {topic} has {entry.writeQueueNums} write and {entry.readQueueNums} read queues on "
                f"{entry.brokerName}; at most {QUEUES_MAX} are possible"
            )
        if entry.perm & PERM_WRITE:
            permitted += (MessageQueue(entry.brokerName, number, topic) for number in range(entry.writeQueueNums))
        if entry.perm & PERM_READ and brokers.get(entry.brokerName):
            readable += (MessageQueue(entry.brokerName, number, topic) for number in range(entry.readQueueNums))
    writable = (queue for queue in permitted if MASTER_ID in brokers.get(queue.brokerName, {}))
    return Route(topic, tuple(writable), tuple(readable), brokers, tuple(permitted))


def _addresses(broker: wire.BrokerData) -> dict[int, Address]:
    try:
        return {broker_id: parse_address(text) for broker_id, text in broker.brokerAddrs.items()}
    except UsageError as error:
        raise ProtocolError(f"broker {broker.brokerName} has an impossible address: {error}") from error


def route_of_default(topic: str, route: Route) -> Route:
    """Return the route by which a topic that does not exist yet is created: the default topic's, with few queues."""
    writable, permitted = (
        tuple(
            MessageQueue(queue.brokerName, queue.queueId, topic)
            for queue in queues
            if queue.queueId < DEFAULT_TOPIC_QUEUES
        )
        for queues in (route.writable, route.permitted)
    )
    return Route(topic, writable, (), route.brokers, permitted)


class QueueNumbers:
    """Queue numbers of this connection, and back."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ordinals: dict[str, int] = {}
        self._names: list[str] = []

    def learn(self, names: Iterable[str]) -> None:
        """Give brokers their ordinals, sorted, if they have none."""
        with self._lock:
            for name in sorted(names):
                if name not in self._ordinals and len(self._names) < _ORDINAL_MAX:
                    self._names.append(name)  # first: a number that is given has a name
                    self._ordinals[name] = len(self._names) - 1

    def number(self, queue: MessageQueue, *, retry: bool = False) -> int:
        """Return the number users see; `retry`: of a queue whose messages appear under the topic they were sent to."""
        ordinal = self._ordinals.get(queue.brokerName, 0) + (_RETRY_ORDINAL if retry else 0)
        base = QUEUES_MAX if retry and any(pop_names(queue.topic)) else 0
        return (ordinal << QUEUE_BITS) + base + queue.queueId

    def queue(self, topic: str, number: int, *, group: str | None = None) -> MessageQueue:
        """Return the queue of a number; one of the retry topic of `group`, if the number says so.

        Raises:
            UsageError: no broker has this ordinal.
        """
        ordinal, queue_id = divmod(number, 1 << QUEUE_BITS)
        if ordinal >= _RETRY_ORDINAL and group is not None:
            ordinal -= _RETRY_ORDINAL
            is_of_topic, queue_id = divmod(queue_id, QUEUES_MAX)
            topic = retry_topic_of(group, topic) if is_of_topic else retry_topic(group)
        if not 0 <= ordinal < len(self._names):
            raise UsageError(f"topic {topic} has no queue {number}", hint="see PullConsumer.queues()")
        return MessageQueue(self._names[ordinal], queue_id, topic)
