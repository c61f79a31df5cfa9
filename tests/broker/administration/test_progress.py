"""How full queues are and how far groups are, in RocketMQ's words."""

from typing import Any

import pytest

from shmq.daemon.broker.broker import Broker
from shmq.daemon.broker.settings import BrokerSettings
from shmq.daemon.broker.tables import QueueBounds
from shmq.errors import FlowControl, TopicNotFound
from shmq.protocol.codes import Request, Response
from shmq.protocol.dialect import MessageQueue
from tests.broker.admin_client import RemoteAdmin
from tests.broker.memory_log import MemoryLog

T0 = 1_700_000_000_000


@pytest.fixture
def admin(tables: Any, settings: BrokerSettings) -> RemoteAdmin:
    """A topic with 10 messages in queue 0, one each second; group billing has read 4 of them."""
    admin = RemoteAdmin(Broker(tables, settings, now_ms=0, log=MemoryLog(tables)))
    admin.ask(
        Request.UPDATE_AND_CREATE_TOPIC,
        topic="orders",
        defaultTopic="TBW102",
        readQueueNums="2",
        writeQueueNums="2",
        perm="6",
        topicFilterType="SINGLE_TAG",
        order="false",
    )
    queue = tables.topic("orders").queues[0]
    tables.bounds[queue] = QueueBounds(0, 10)
    tables.times[queue] = [T0 + 1000 * number for number in range(10)]
    tables.clock = T0 + 60_000
    admin.ask(Request.UPDATE_CONSUMER_OFFSET, consumerGroup="billing", topic="orders", queueId="0", commitOffset="4")
    return admin


def key(queue_id: int, topic: str = "orders") -> MessageQueue:
    return MessageQueue("default", queue_id, topic)


def test_a_topics_queues_have_bounds_and_the_time_of_their_last_message(admin: RemoteAdmin) -> None:
    assert admin.body(Request.GET_TOPIC_STATS_INFO, topic="orders") == {
        "offsetTable": {
            key(0): {"minOffset": 0, "maxOffset": 10, "lastUpdateTimestamp": T0 + 9000},
            key(1): {"minOffset": 0, "maxOffset": 0, "lastUpdateTimestamp": 0},
        },
        "topicPutTps": 0.0,
    }
    missing = admin.fail(Request.GET_TOPIC_STATS_INFO, topic="none")
    assert type(missing) is TopicNotFound and str(missing) == "topic[none] not exist"


def test_a_groups_progress_lists_every_readable_queue(admin: RemoteAdmin) -> None:
    wanted = {
        "consumeTps": 0.0,
        "offsetTable": {
            key(0): {"brokerOffset": 10, "consumerOffset": 4, "lastTimestamp": T0 + 3000, "pullOffset": 4},
            key(1): {"brokerOffset": 0, "consumerOffset": 0, "lastTimestamp": 0, "pullOffset": 0},
        },
    }
    assert admin.body(Request.GET_CONSUME_STATS, consumerGroup="billing") == wanted
    assert admin.body(Request.GET_CONSUME_STATS, consumerGroup="billing", topic="orders") == wanted
    assert admin.body(Request.GET_CONSUME_STATS, consumerGroup="billing", topicList="none;orders") == wanted
    nothing = {"consumeTps": 0.0, "offsetTable": {}}
    assert admin.body(Request.GET_CONSUME_STATS, consumerGroup="billing", topic="none") == nothing
    assert admin.body(Request.GET_CONSUME_STATS, consumerGroup="absent") == nothing


def test_topics_the_members_have_left_are_not_listed(admin: RemoteAdmin) -> None:
    admin.consume("billing", "invoices")
    assert admin.body(Request.GET_CONSUME_STATS, consumerGroup="billing") == {"consumeTps": 0.0, "offsetTable": {}}


def test_all_groups_are_listed_with_what_they_are_behind(admin: RemoteAdmin) -> None:
    body = admin.body(Request.GET_BROKER_CONSUME_STATS, isOrder="false")
    assert isinstance(body, dict)
    assert (body["totalDiff"], body["brokerAddr"]) == (6, "127.0.0.1:10911")
    (group,) = body["consumeStatsList"]
    assert group["billing"][0]["offsetTable"][key(0)]["consumerOffset"] == 4
    ordered = admin.body(Request.GET_BROKER_CONSUME_STATS, isOrder="true")
    assert isinstance(ordered, dict) and ordered["consumeStatsList"] == [{"billing": []}] and ordered["totalDiff"] == 0


def test_the_age_of_a_backlog_is_that_of_the_next_message(admin: RemoteAdmin) -> None:
    body = admin.body(Request.QUERY_CONSUME_TIME_SPAN, topic="orders", group="billing")
    assert isinstance(body, dict)
    behind, empty = body["consumeTimeSpanSet"]
    assert behind == {
        "messageQueue": {"brokerName": "default", "queueId": 0, "topic": "orders"},
        "minTimeStamp": T0,
        "maxTimeStamp": T0 + 9000,
        "consumeTimeStamp": T0 + 3000,
        "delayTime": 60_000 - 4000,
    }
    assert (empty["minTimeStamp"], empty["maxTimeStamp"], empty["delayTime"]) == (-1, -1, 0)


def test_the_correction_is_the_least_offset_of_all_groups(admin: RemoteAdmin) -> None:
    admin.ask(Request.UPDATE_CONSUMER_OFFSET, consumerGroup="audit", topic="orders", queueId="0", commitOffset="7")
    ask = {"topic": "orders", "filterGroups": ""}
    assert admin.body(Request.QUERY_CORRECTION_OFFSET, compareGroup="billing", **ask) == {"correctionOffsets": {0: 4}}
    ahead = {"correctionOffsets": {0: (1 << 63) - 1}}
    assert admin.body(Request.QUERY_CORRECTION_OFFSET, compareGroup="audit", **ask) == ahead
    ask["filterGroups"] = "billing"
    assert admin.body(Request.QUERY_CORRECTION_OFFSET, compareGroup="audit", **ask) == {"correctionOffsets": {0: 7}}


def test_cloned_offsets_are_the_other_groups_own(admin: RemoteAdmin, tables: Any) -> None:
    admin.ask(Request.CLONE_GROUP_OFFSET, srcGroup="billing", destGroup="copy", topic="orders", offline="true")
    offsets = {"offsetTable": {"orders@billing": {0: 4}, "orders@copy": {0: 4}}}
    assert admin.body(Request.GET_ALL_CONSUMER_OFFSET) == offsets
    admin.ask(Request.CLONE_GROUP_OFFSET, srcGroup="absent", destGroup="empty", topic="orders", offline="true")
    assert tables.group("empty") is None


def test_a_slave_hears_with_the_offsets_whether_topics_or_groups_have_changed(admin: RemoteAdmin, tables: Any) -> None:
    def versions() -> tuple[str, str]:
        table = admin.body(Request.GET_ALL_TOPIC_CONFIG)["dataVersion"]
        return str(table["counter"]), admin.ask(Request.GET_ALL_CONSUMER_OFFSET, logEnd="true").ext["tablesVersion"]

    copied, told = versions()
    assert copied == told
    tables.topic_put("more", read_queues=1, write_queues=1, perm=6, flags=0, kind=0)
    assert versions()[1] != copied
    assert "tablesVersion" not in admin.ask(Request.GET_ALL_CONSUMER_OFFSET).ext


def test_an_answer_that_would_be_too_long_is_refused_with_a_way_out(tables: Any, settings: BrokerSettings) -> None:
    settings.list_entries_max = 5
    admin = RemoteAdmin(Broker(tables, settings, now_ms=0, log=MemoryLog(tables)))
    for topic in ("a", "b"):
        tables.topic_put(topic, read_queues=3, write_queues=3, perm=6, flags=0, kind=0)
        for queue_id in "012":
            admin.ask(15, consumerGroup="g", topic=topic, queueId=queue_id, commitOffset="0")
    for code, ext in (
        (Request.GET_CONSUME_STATS, {"consumerGroup": "g"}),
        (Request.GET_BROKER_CONSUME_STATS, {"isOrder": "false"}),
        (Request.GET_ALL_CONSUMER_OFFSET, {}),
        (Request.CLONE_GROUP_OFFSET, {"srcGroup": "g", "destGroup": "h", "topic": "", "offline": "true"}),
    ):
        refused = admin.fail(code, **ext)
        assert type(refused) is FlowControl and refused.hint
    admin.ask(Request.GET_CONSUME_STATS, consumerGroup="g", topic="a")


def test_who_reads_what_is_known_from_members_and_from_offsets(admin: RemoteAdmin) -> None:
    admin.consume("audit", "orders")
    assert admin.body(Request.QUERY_TOPIC_CONSUME_BY_WHO, topic="orders") == {"groupList": ["audit", "billing"]}
    assert admin.body(Request.QUERY_TOPIC_CONSUME_BY_WHO, topic="none") == {"groupList": []}
    topics = {"topicList": ["orders"], "brokerAddr": "127.0.0.1:10911"}
    assert admin.body(Request.QUERY_TOPICS_BY_CONSUMER, group="billing") == topics
    found = admin.body(Request.QUERY_SUBSCRIPTION_BY_CONSUMER, group="audit", topic="orders")
    assert isinstance(found, dict) and found["subscriptionData"]["subString"] == "*"
    assert admin.body(Request.QUERY_SUBSCRIPTION_BY_CONSUMER, group="audit", topic="none") == {
        "group": "audit",
        "topic": "none",
    }


def test_units_of_a_queue_are_listed_within_bounds(admin: RemoteAdmin) -> None:
    ask = {"topic": "orders", "queueId": "0", "consumerGroup": ""}
    body = admin.body(Request.QUERY_CONSUME_QUEUE, index="8", count="10", **ask)
    assert body == {
        "minQueueIndex": 0,
        "maxQueueIndex": 10,
        "queueData": [
            {"physicOffset": 8000, "physicSize": 100, "tagsCode": 65, "eval": False},
            {"physicOffset": 9000, "physicSize": 100, "tagsCode": 65, "eval": False},
        ],
    }
    missing = admin.fail(Request.QUERY_CONSUME_QUEUE, topic="orders", queueId="2", index="0", count="1")
    assert missing.code == Response.SYSTEM_ERROR and "2@orders is not exist!" in str(missing)
