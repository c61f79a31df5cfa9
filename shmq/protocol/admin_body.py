"""Bodies of the requests administrators send, as RocketMQ writes them in JSON.

Bodies with a map whose keys are queues or numbers are in RocketMQ's dialect: write them with
`shmq.protocol.dialect.dumps`.
"""

from __future__ import annotations

import msgspec

from shmq.protocol.body import SubscriptionData, SubscriptionGroupConfig, TopicConfig
from shmq.protocol.dialect import MessageQueue


class TopicList(msgspec.Struct, omit_defaults=True):
    """Body of 305, 343 and of the name server's lists."""

    topicList: list[str]
    brokerAddr: str | None = None


class GroupList(msgspec.Struct):
    """Body of 300."""

    groupList: list[str]


class TopicConfigList(msgspec.Struct):
    """Body of the request 18."""

    topicConfigList: list[TopicConfig] = []


class GroupConfigList(msgspec.Struct):
    """Body of the request 225."""

    groupConfigList: list[SubscriptionGroupConfig] = []


class TopicOffset(msgspec.Struct):
    """One queue in the body of 202; the time is that of the last message, 0 when there is none."""

    minOffset: int
    maxOffset: int
    lastUpdateTimestamp: int


class OffsetWrapper(msgspec.Struct, omit_defaults=True):
    """One queue in the body of 208; `lastTimestamp` is when the last consumed message was stored, 0 for none.

    `popped` is ours: messages in hand, which RocketMQ's offsets cannot say. Its clients skip names they do not know.
    """

    brokerOffset: int
    consumerOffset: int
    lastTimestamp: int
    pullOffset: int
    popped: int = 0


class ClientConnection(msgspec.Struct):
    """One client in the bodies of 203 and 204."""

    clientId: str
    clientAddr: str
    language: str
    version: int


class ProducerConnection(msgspec.Struct):
    """Body of 204."""

    connectionSet: list[ClientConnection]


class ConsumerConnection(msgspec.Struct):
    """Body of 203."""

    connectionSet: list[ClientConnection]
    subscriptionTable: dict[str, SubscriptionData]
    consumeType: str
    messageModel: str
    consumeFromWhere: str


class ProducerInfo(msgspec.Struct):
    """One client in the body of 328."""

    clientId: str
    remoteIP: str
    language: str
    version: int
    lastUpdateTimestamp: int


class ProducerTable(msgspec.Struct):
    """Body of 328."""

    data: dict[str, list[ProducerInfo]]


class GroupSubscription(msgspec.Struct, omit_defaults=True):
    """Body of 345."""

    group: str
    topic: str
    subscriptionData: SubscriptionData | None = None


class QueueTimeSpan(msgspec.Struct):
    """One queue in the body of 303; all times in milliseconds, `delayTime` an age."""

    messageQueue: MessageQueue
    minTimeStamp: int
    maxTimeStamp: int
    consumeTimeStamp: int
    delayTime: int


class QueueTimeSpans(msgspec.Struct):
    """Body of 303."""

    consumeTimeSpanSet: list[QueueTimeSpan]


class UnitData(msgspec.Struct):
    """One unit in the body of 321."""

    physicOffset: int
    physicSize: int
    tagsCode: int
    eval: bool = False


class QueueData(msgspec.Struct, omit_defaults=True):
    """Body of 321."""

    minQueueIndex: int
    maxQueueIndex: int
    queueData: list[UnitData]
    filterData: str | None = None
    subscriptionData: SubscriptionData | None = None


class StatsSnapshot(msgspec.Struct):
    """The counts of one window of 315: the sum, its rate per second, and the average of one counting."""

    sum: int
    tps: float
    avgpt: float


class StatsData(msgspec.Struct):
    """Body of 315."""

    statsMinute: StatsSnapshot
    statsHour: StatsSnapshot
    statsDay: StatsSnapshot


class KeyValueTable(msgspec.Struct):
    """Body of 28."""

    table: dict[str, str]
