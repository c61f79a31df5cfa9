"""Bodies of the control plane as RocketMQ writes them in JSON.

A body is read as standard JSON first; only what is not standard is read by `shmq.protocol.dialect`, which is slow and
therefore bounded. Names are those of the wire. Unknown fields are ignored, as RocketMQ does, since every release adds
some.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from shmq.errors import ProtocolError, UsageError
from shmq.message import PERM_READ_WRITE
from shmq.protocol.codes import TopicFlush, TopicKind
from shmq.typed_json import convert_plain, decode_json

DIALECT_BYTES_MAX = 64 << 10  # of a request; the dialect's reader takes about a second a megabyte
TABLE_BYTES_MAX = 4 << 20  # of a broker's table, which is the answer to a question of ours

_MESSAGE_TYPE = "message.type"
_FLUSH_MODE = "shmq.flush"
T = TypeVar("T")

_encoder = msgspec.json.Encoder(order="sorted")


class SubscriptionData(msgspec.Struct, omit_defaults=False):
    """A consumer's subscription to one topic. `codeSet` are hashes of the tags, a hint only: Go writes them as text.

    `isPopped` is ours: the member has brokers hide messages, and reads no queue.
    """

    topic: str
    subString: str = "*"
    subVersion: int = 0
    expressionType: str | None = "TAG"
    tagsSet: list[str] = []
    codeSet: list[int | str] = []
    classFilterMode: bool = False
    isPopped: bool | msgspec.UnsetType = msgspec.UNSET


class ConsumerData(msgspec.Struct):
    """One group a client consumes for.

    `sharesByTopic` is ours: the member divides a topic among those that read it, and its retries likewise.
    """

    groupName: str
    subscriptionDataSet: list[SubscriptionData] = []
    consumeType: str = "CONSUME_PASSIVELY"
    messageModel: str = "CLUSTERING"
    consumeFromWhere: str = "CONSUME_FROM_LAST_OFFSET"
    unitMode: bool = False
    sharesByTopic: bool | msgspec.UnsetType = msgspec.UNSET


class ProducerData(msgspec.Struct):
    """One group a client produces for."""

    groupName: str


class HeartbeatData(msgspec.Struct):
    """Body of HEART_BEAT: everything one client is a member of."""

    clientID: str
    consumerDataSet: list[ConsumerData] = []
    producerDataSet: list[ProducerData] = []
    heartbeatFingerprint: int = 0
    withoutSub: bool = False


class ClientConfig(msgspec.Struct):
    """Body of CHECK_CLIENT_CONFIG."""

    clientId: str | None = None
    group: str | None = None
    subscriptionData: SubscriptionData | None = None


class ConsumerList(msgspec.Struct):
    """Body of the answer to GET_CONSUMER_LIST_BY_GROUP."""

    consumerIdList: list[str] = []


class DataVersion(msgspec.Struct):
    """Grows with each change of a table, so that a copy knows when it is old."""

    counter: int = 0
    timestamp: int = 0


class TopicConfig(msgspec.Struct, omit_defaults=False):
    """One topic. `attributes` is RocketMQ 5's; it is left out when empty, since RocketMQ 4 does not write it."""

    topicName: str
    readQueueNums: int = 16
    writeQueueNums: int = 16
    perm: int = PERM_READ_WRITE
    topicFilterType: str = "SINGLE_TAG"
    topicSysFlag: int = 0
    order: bool = False
    attributes: dict[str, str] | msgspec.UnsetType | None = msgspec.UNSET


LOG_END = "logEnd"  # in answers to 43, which are asked for it, and to 21: how far the log reached then
TABLES_VERSION = "tablesVersion"  # beside it in answers to 43: the counter of the `DataVersion` of topics and groups
CHECKS = (
    "shmqChecks"  # of the runtime table, which checks of `mq.admin.health()` fail: [[name, verdict, text], …] as JSON
)
ONLY_FORWARD = "onlyForward"  # with code 15: a commit that would set the group back is dropped
BORN_POSITIONS = "bornPositions"  # the header field with which a slave of ours asks for them


class TopicTable(msgspec.Struct):
    """Body of the answer to GET_ALL_TOPIC_CONFIG."""

    topicConfigTable: dict[str, TopicConfig] = {}
    dataVersion: DataVersion = msgspec.field(default_factory=DataVersion)
    # Ours, for a slave that asks for it: where the log ended when each topic was made.
    bornPositions: dict[str, int] | msgspec.UnsetType = msgspec.UNSET


class SubscriptionGroupConfig(msgspec.Struct):
    """One consumer group, with RocketMQ's defaults. What is UNSET is RocketMQ 5's; left out unless said."""

    groupName: str
    brokerId: int = 0
    consumeBroadcastEnable: bool = True
    consumeEnable: bool = True
    consumeFromMinEnable: bool = True
    notifyConsumerIdsChangedEnable: bool = True
    retryMaxTimes: int = 16
    retryQueueNums: int = 1
    whichBrokerWhenConsumeSlowly: int = 1
    consumeMessageOrderly: bool | msgspec.UnsetType = msgspec.UNSET
    consumeTimeoutMinute: int | msgspec.UnsetType = msgspec.UNSET
    groupSysFlag: int | msgspec.UnsetType = msgspec.UNSET
    groupRetryPolicy: dict[str, Any] | msgspec.UnsetType | None = msgspec.UNSET
    subscriptionDataSet: list[dict[str, Any]] | msgspec.UnsetType | None = msgspec.UNSET
    attributes: dict[str, Any] | msgspec.UnsetType | None = msgspec.UNSET


class SubscriptionGroupTable(msgspec.Struct):
    """Body of the answer to GET_ALL_SUBSCRIPTIONGROUP_CONFIG."""

    subscriptionGroupTable: dict[str, SubscriptionGroupConfig] = {}
    dataVersion: DataVersion = msgspec.field(default_factory=DataVersion)


def encode_body(value: msgspec.Struct | dict[str, Any]) -> bytes:
    """Return a body as compact JSON with sorted names. Maps with keys other than text need `dialect.dumps`."""
    return _encoder.encode(value)


def decode_body(data: bytes, kind: type[T], *, dialect_bytes_max: int = DIALECT_BYTES_MAX) -> T:
    """Return a body as `kind`.

    Raises:
        ProtocolError: the body is not JSON, not even RocketMQ's, or not of this kind.
    """
    try:
        return decode_json(data, kind)
    except msgspec.ValidationError as error:
        raise ProtocolError(f"the body is no {kind.__name__}: {error}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        if len(data) > dialect_bytes_max:
            raise ProtocolError(f"the body of {len(data)} bytes is not JSON: {error}") from error
    # Imported here because its regular expressions take 2 ms to compile, and a client hardly ever needs them.
    from shmq.protocol.dialect import loads

    try:
        # strict=False: keys and numbers may be the other's text in the dialect.
        return convert_plain(loads(data), kind, strict=False)
    except (msgspec.ValidationError, RecursionError) as error:
        raise ProtocolError(f"the body is no {kind.__name__}: {error}") from error


def kind_text(kind: TopicKind) -> str:
    """Return the attribute text that creates a topic of this kind; empty for a normal topic."""
    return "" if kind == TopicKind.NORMAL else f"+{_MESSAGE_TYPE}={kind.name}"


def listed_attributes(kind: TopicKind, flush: int) -> dict[str, str] | msgspec.UnsetType:
    """Return the attributes a topic is listed with."""
    found = {} if kind == TopicKind.NORMAL else {_MESSAGE_TYPE: kind.name}
    if flush in (TopicFlush.ASYNC, TopicFlush.SYNC):
        found[_FLUSH_MODE] = TopicFlush(flush).name
    return found or msgspec.UNSET


def names_kind(attributes: str) -> bool:
    """Say whether an attribute text says anything of the kind."""
    return any(change[1:].partition("=")[0] == _MESSAGE_TYPE for change in attributes.split(","))


def parse_kind(attributes: str) -> TopicKind:
    """Return the kind an attribute text `+key=value,-key` asks for.

    Raises:
        UsageError: an attribute other than the message type, or a type that does not exist here.
    """
    kind = TopicKind.NORMAL
    for change in filter(None, attributes.split(",")):
        key, _, value = change[1:].partition("=")
        if key == _FLUSH_MODE:
            continue
        if change[0] not in "+-" or key != _MESSAGE_TYPE:
            raise UsageError(f"the topic attribute {change[:64]!a} is not supported", hint=f"use +{_MESSAGE_TYPE}=FIFO")
        if change[0] == "-":
            kind = TopicKind.NORMAL
        elif value in TopicKind.__members__:
            kind = TopicKind[value]
        else:
            names = ", ".join(TopicKind.__members__)
            raise UsageError(f"the topic type {value[:64]!a} does not exist", hint=f"choose one of {names}")
    return kind


def flush_text(flush: TopicFlush) -> str:
    """Return the attribute text that gives a topic a flush of its own, or takes that away."""
    return f"-{_FLUSH_MODE}" if flush == TopicFlush.BROKER else f"+{_FLUSH_MODE}={flush.name}"


def attribute_text(kind: str, flush: str | None, *, changes_kind: bool = False) -> str:
    """Return the attributes that create a topic of a kind, and say its flush unless that is None.

    Args:
        changes_kind: the topic has another kind, which "normal" ends only if it is said.
    """
    texts = [f"+{_MESSAGE_TYPE}={kind.upper()}" if changes_kind else kind_text(TopicKind[kind.upper()])]
    if flush is not None:
        texts.append(flush_text(TopicFlush[flush.upper()]))
    return ",".join(filter(None, texts))


def parse_flush(attributes: str) -> TopicFlush | None:
    """Return the flush an attribute text asks for; None when it says nothing about that.

    Raises:
        UsageError: there is no such flush.
    """
    found = None
    for change in filter(None, attributes.split(",")):
        key, _, value = change[1:].partition("=")
        if key == _FLUSH_MODE:
            if change[0] == "+" and value not in ("ASYNC", "SYNC"):
                raise UsageError(f"{_FLUSH_MODE}={value[:64]!a} does not exist", hint="choose ASYNC or SYNC")
            found = TopicFlush[value] if change[0] == "+" else TopicFlush.BROKER
    return found


def topic_flush(config: TopicConfig) -> TopicFlush:
    """Return the flush a listed topic has; an unknown one counts as the broker's."""
    attributes = config.attributes if isinstance(config.attributes, dict) else {}
    return TopicFlush.__members__.get(attributes.get(_FLUSH_MODE, ""), TopicFlush.BROKER)


def topic_kind(config: TopicConfig) -> TopicKind:
    """Return the kind a listed topic has; an unknown one counts as normal."""
    attributes = config.attributes if isinstance(config.attributes, dict) else {}
    return TopicKind.__members__.get(attributes.get(_MESSAGE_TYPE, ""), TopicKind.NORMAL)


_ORDINALS = {
    "consumeType": ("CONSUME_ACTIVELY", "CONSUME_PASSIVELY", "CONSUME_POP"),
    "messageModel": ("BROADCASTING", "CLUSTERING"),
    "consumeFromWhere": (
        "CONSUME_FROM_LAST_OFFSET",
        "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST",
        "CONSUME_FROM_MIN_OFFSET",
        "CONSUME_FROM_MAX_OFFSET",
        "CONSUME_FROM_FIRST_OFFSET",
        "CONSUME_FROM_TIMESTAMP",
    ),
}


def decode_heartbeat(data: bytes) -> HeartbeatData:
    """Return the body of a HEART_BEAT, as every client writes it.

    The C++ client writes enumerations as numbers and numbers as text, which RocketMQ's own reader takes too.

    Raises:
        ProtocolError: it is none, in no dialect.
    """
    try:
        return decode_body(data, HeartbeatData)
    except ProtocolError:
        try:
            raw: Any = decode_json(data, dict)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raw = None
        if not isinstance(raw, dict):
            raise
    consumers = raw.get("consumerDataSet")
    for consumer in consumers if isinstance(consumers, list) else ():
        if isinstance(consumer, dict):
            _name_ordinals(consumer)
    try:
        return convert_plain(raw, HeartbeatData, strict=False)
    except (msgspec.ValidationError, RecursionError) as error:
        raise ProtocolError(f"the body is no HeartbeatData: {error}") from error


def _name_ordinals(consumer: dict[Any, Any]) -> None:
    for field, names in _ORDINALS.items():
        value = consumer.get(field)
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < len(names):
            consumer[field] = names[value]
