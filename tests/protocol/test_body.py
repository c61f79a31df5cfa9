"""Bodies of the control plane against the texts of the reference."""

import pytest

from shmq.errors import ProtocolError, UsageError
from shmq.protocol.body import (
    DIALECT_BYTES_MAX,
    ConsumerData,
    ConsumerList,
    HeartbeatData,
    ProducerData,
    SubscriptionData,
    SubscriptionGroupConfig,
    TopicConfig,
    TopicTable,
    decode_body,
    encode_body,
    kind_text,
    listed_attributes,
    parse_kind,
    topic_kind,
)
from shmq.protocol.codes import TopicKind
from tests.tables.rows import every_row

# §8.1 of the reference, compact as a Java client writes it.
JAVA_HEARTBEAT = (
    b'{"clientID":"192.168.0.5@12345#1","consumerDataSet":[{"consumeFromWhere":"CONSUME_FROM_LAST_OFFSET",'
    b'"consumeType":"CONSUME_PASSIVELY","groupName":"G","messageModel":"CLUSTERING","subscriptionDataSet":['
    b'{"classFilterMode":false,"codeSet":[2598919],"expressionType":"TAG","subString":"TagA","subVersion":1700000000000,'
    b'"tagsSet":["TagA"],"topic":"T"},{"classFilterMode":false,"codeSet":[],"expressionType":"TAG","subString":"*",'
    b'"subVersion":1700000000001,"tagsSet":[],"topic":"%RETRY%G"}],"unitMode":false}],'
    b'"producerDataSet":[{"groupName":"P"},{"groupName":"CLIENT_INNER_PRODUCER"}]}'
)


def test_a_java_heartbeat_is_read() -> None:
    beat = decode_body(JAVA_HEARTBEAT, HeartbeatData)
    assert beat.clientID == "192.168.0.5@12345#1"
    (group,) = beat.consumerDataSet
    assert group.groupName == "G" and group.messageModel == "CLUSTERING"
    assert [(entry.topic, entry.subString, entry.tagsSet) for entry in group.subscriptionDataSet] == [
        ("T", "TagA", ["TagA"]),
        ("%RETRY%G", "*", []),
    ]
    assert [producer.groupName for producer in beat.producerDataSet] == ["P", "CLIENT_INNER_PRODUCER"]


def test_our_heartbeat_is_written_with_rocketmqs_names_in_rocketmqs_order() -> None:
    first = SubscriptionData(topic="T", subString="TagA", subVersion=1700000000000, tagsSet=["TagA"], codeSet=[2598919])
    retry = SubscriptionData(topic="%RETRY%G", subVersion=1700000000001)
    beat = HeartbeatData(
        clientID="192.168.0.5@12345#1",
        consumerDataSet=[ConsumerData(groupName="G", subscriptionDataSet=[first, retry])],
        producerDataSet=[ProducerData("P"), ProducerData("CLIENT_INNER_PRODUCER")],
    )
    ours = encode_body(beat)
    assert ours.replace(b'"heartbeatFingerprint":0,', b"").replace(b',"withoutSub":false', b"") == JAVA_HEARTBEAT


def test_gos_heartbeat_with_textual_hashes_is_read() -> None:
    beat = decode_body(JAVA_HEARTBEAT.replace(b"[2598919]", b'["2598919"]'), HeartbeatData)
    assert beat.consumerDataSet[0].subscriptionDataSet[0].codeSet == ["2598919"]


def test_a_body_in_the_dialect_is_read() -> None:
    assert decode_body(b"{consumerIdList:['a','b']}", ConsumerList) == ConsumerList(["a", "b"])


@every_row(
    "body",
    [
        b"",
        b"x",
        b"{}",
        b'{"clientID":1}',
        b'{"clientID":"c","consumerDataSet":{}}',
        b'{"clientID":null}',
        b"\xff",
        b"[" * 9999,
    ],
)
def test_a_wrong_body_is_a_protocol_error(body: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_body(body, HeartbeatData)


def test_the_slow_reader_never_sees_a_long_body() -> None:
    body = b"{consumerIdList:[" + b" " * DIALECT_BYTES_MAX + b"]}"
    with pytest.raises(ProtocolError, match=f"body of {len(body)} bytes is not JSON"):
        decode_body(body, ConsumerList)
    assert decode_body(body, ConsumerList, dialect_bytes_max=len(body)) == ConsumerList([])


def test_the_topic_table_is_the_one_of_topics_json() -> None:
    table = TopicTable({"T": TopicConfig("T", 4, 4)})
    golden = (
        b'{"dataVersion":{"counter":0,"timestamp":0},"topicConfigTable":{"T":{"order":false,"perm":6,"readQueueNums":4,'
        b'"topicFilterType":"SINGLE_TAG","topicName":"T","topicSysFlag":0,"writeQueueNums":4}}}'
    )
    assert encode_body(table) == golden
    assert decode_body(golden, TopicTable) == table


def test_a_group_config_has_rocketmqs_defaults() -> None:
    assert encode_body(SubscriptionGroupConfig("G")) == (
        b'{"brokerId":0,"consumeBroadcastEnable":true,"consumeEnable":true,"consumeFromMinEnable":true,"groupName":"G",'
        b'"notifyConsumerIdsChangedEnable":true,"retryMaxTimes":16,"retryQueueNums":1,"whichBrokerWhenConsumeSlowly":1}'
    )


@pytest.mark.parametrize("kind", TopicKind)
def test_a_topic_kind_survives_its_attribute_text(kind: TopicKind) -> None:
    assert parse_kind(kind_text(kind)) == kind
    assert topic_kind(TopicConfig("T", attributes=listed_attributes(kind, 0))) == kind


def test_a_topic_without_or_with_an_unknown_type_is_normal() -> None:
    assert parse_kind("-message.type") == TopicKind.NORMAL
    assert topic_kind(TopicConfig("T")) == TopicKind.NORMAL
    assert topic_kind(TopicConfig("T", attributes={"message.type": "MIXED"})) == TopicKind.NORMAL


@pytest.mark.parametrize("text", ["+message.type=LIFO", "message.type=FIFO", "+queue.type=BatchCQ", "x", "+"])
def test_an_attribute_that_is_not_served_is_refused(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_kind(text)
    assert caught.value.hint
