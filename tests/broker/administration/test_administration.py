"""Topics, groups and offsets through their requests."""

from typing import Any

import msgspec
import pytest

from shmq.daemon.broker.broker import Broker
from shmq.daemon.broker.settings import BrokerSettings
from shmq.daemon.broker.tables import QueueBounds
from shmq.daemon.logic.effects import Notify, Reply, Report
from shmq.errors import InvalidName, RemoteError, ShmqError, TopicNotFound, UsageError
from shmq.protocol.body import (
    ConsumerData,
    HeartbeatData,
    SubscriptionData,
    SubscriptionGroupConfig,
    SubscriptionGroupTable,
    decode_body,
    encode_body,
)
from shmq.protocol.codes import Request, Response, TopicKind
from tests.broker.admin_client import Admin, RemoteAdmin
from tests.broker.memory_log import MemoryLog


@pytest.fixture
def admin(tables: Any, settings: BrokerSettings) -> Admin:
    return Admin(Broker(tables, settings, now_ms=0, log=MemoryLog(tables)))


def test_a_topic_is_created_listed_changed_and_deleted(admin: Admin) -> None:
    created = admin.ask(
        Request.UPDATE_AND_CREATE_TOPIC,
        topic="orders",
        defaultTopic="TBW102",
        readQueueNums="4",
        writeQueueNums="4",
        perm="6",
        topicFilterType="SINGLE_TAG",
        order="false",
    )
    assert created.ext["created"] == "true"
    config = admin.topics().topicConfigTable["orders"]
    assert (config.readQueueNums, config.writeQueueNums, config.perm) == (4, 4, 6)
    counter = admin.topics().dataVersion.counter
    assert admin.ask(17, topic="orders", readQueueNums="8", writeQueueNums="8", perm="4").ext["created"] == "false"
    assert admin.topics().topicConfigTable["orders"].writeQueueNums == 8
    assert admin.topics().dataVersion.counter > counter
    admin.ask(Request.DELETE_TOPIC_IN_BROKER, topic="orders")
    assert admin.topics().topicConfigTable == {}


def test_fields_that_are_left_out_have_defaults(admin: Admin) -> None:
    admin.ask(17, topic="a")
    admin.ask(17, topic="b", writeQueueNums="3", attributes="+message.type=FIFO")
    table = admin.topics().topicConfigTable
    assert (table["a"].readQueueNums, table["a"].writeQueueNums, table["a"].perm, table["a"].order) == (8, 8, 6, False)
    assert (table["b"].readQueueNums, table["b"].writeQueueNums, table["b"].order) == (3, 3, True)
    assert table["b"].attributes == {"message.type": TopicKind.FIFO.name}


def test_creating_on_first_use_never_changes_a_topic(admin: Admin) -> None:
    admin.ask(17, topic="orders", writeQueueNums="16")
    assert admin.ask(17, topic="orders", writeQueueNums="8", onlyIfMissing="true").ext == {"created": "false"}
    assert admin.topics().topicConfigTable["orders"].writeQueueNums == 16
    assert admin.ask(17, topic="new", writeQueueNums="8", onlyIfMissing="true").ext == {"created": "true"}


@pytest.mark.parametrize(
    ("ext", "error", "text"),
    [
        ({}, RemoteError, "topic is missing"),
        ({"topic": "a b"}, InvalidName, "a b"),
        ({"topic": "t" * 128}, InvalidName, "128"),
        ({"topic": "SCHEDULE_TOPIC_XXXX"}, UsageError, "conflict with system topic"),
        ({"topic": "t", "writeQueueNums": "0"}, UsageError, "0 queues"),
        ({"topic": "t", "writeQueueNums": "1025"}, UsageError, "1025 queues"),
        ({"topic": "t", "readQueueNums": "1025"}, UsageError, "1025 queues"),
        ({"topic": "t", "writeQueueNums": "-1"}, RemoteError, "writeQueueNums"),
        ({"topic": "t", "writeQueueNums": "4.0"}, RemoteError, "writeQueueNums"),
        ({"topic": "t", "writeQueueNums": "9" * 5000}, RemoteError, "writeQueueNums"),
        ({"topic": "t", "perm": "8"}, RemoteError, "perm"),
        ({"topic": "t", "perm": "٣"}, RemoteError, "perm"),
        ({"topic": "t", "attributes": "+message.type=LIFO"}, UsageError, "LIFO"),
    ],
)
def test_a_wrong_topic_is_refused_and_not_made(
    admin: Admin, ext: dict[str, str], error: type[ShmqError], text: str
) -> None:
    refused = admin.fail(17, **ext)
    assert type(refused) is error and text in str(refused)
    assert admin.topics().topicConfigTable == {}


def test_members_get_a_notice_when_their_topic_appears_changes_or_goes(tables: Any, settings: BrokerSettings) -> None:
    broker = Broker(tables, settings, now_ms=0, log=MemoryLog(tables))
    admin, member = Admin(broker, 1), Admin(broker, 2)
    member.consume("g", "orders")

    def told(code: int, **ext: str) -> list[int]:
        return [effect.connection_id for effect in admin.effects(code, **ext) if isinstance(effect, Notify)]

    assert told(17, topic="orders") == [2]
    assert told(17, topic="orders", writeQueueNums="16") == [2]
    assert told(17, topic="orders", onlyIfMissing="true") == []
    assert told(17, topic="invoices") == []
    assert told(215, topic="orders") == [2]


def test_a_missing_topic_is_answered_with_the_nearest_names(admin: Admin) -> None:
    admin.ask(17, topic="orders")
    for refused in (
        admin.fail(215, topic="ordres"),
        admin.fail(Request.GET_MAX_OFFSET, topic="ordres", queueId="0"),
        admin.fail(Request.OFFSET_SLOTS, topic="ordres", group="g"),
    ):
        assert type(refused) is TopicNotFound and refused.code == Response.TOPIC_NOT_EXIST
        assert str(refused) == 'topic "ordres" does not exist on broker "default"'
        assert refused.hint == 'did you mean "orders"? create it with: shmq topic create ordres'


def test_a_group_is_created_listed_and_deleted(admin: Admin) -> None:
    config = encode_body(SubscriptionGroupConfig("billing"))
    admin.ask(Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, config)
    admin.ask(Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, config)
    table = decode_body(admin.ask(Request.GET_ALL_SUBSCRIPTIONGROUP_CONFIG).body, SubscriptionGroupTable)
    assert table.subscriptionGroupTable == {"billing": SubscriptionGroupConfig("billing")}
    admin.ask(Request.DELETE_SUBSCRIPTIONGROUP, groupName="billing", removeOffset="true")
    table = decode_body(admin.ask(Request.GET_ALL_SUBSCRIPTIONGROUP_CONFIG).body, SubscriptionGroupTable)
    assert table.subscriptionGroupTable == {}


def test_with_a_group_or_a_topic_go_the_retry_topics_that_are_of_no_other(admin: Admin) -> None:
    """`%RETRY%a_b` is the old name for group `a` and topic `b`, and of the retries of the group `a_b`."""
    names = {"a", "b", "%RETRY%a", "%RETRY%a_b", "%RETRY%a+b", "%RETRY%a+c", "%RETRY%c+a", "%RETRY%a_a+b", "%DLQ%a"}
    for name in names:
        admin.ask(Request.UPDATE_AND_CREATE_TOPIC, topic=name)
    admin.ask(Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, encode_body(SubscriptionGroupConfig("a")))
    admin.ask(Request.DELETE_SUBSCRIPTIONGROUP, groupName="a")
    left = names - {"%RETRY%a+b", "%RETRY%a+c"}
    assert set(admin.topics().topicConfigTable) == left
    admin.ask(Request.DELETE_TOPIC_IN_BROKER, topic="b")
    assert set(admin.topics().topicConfigTable) == left - {"b", "%RETRY%a_a+b"}
    admin.ask(Request.DELETE_TOPIC_IN_BROKER, topic="%RETRY%c+a")
    assert "a" in admin.topics().topicConfigTable


def test_the_settings_of_a_group_are_kept_and_listed(admin: Admin) -> None:
    config = SubscriptionGroupConfig("billing", retryMaxTimes=3, consumeEnable=False, consumeTimeoutMinute=30)
    admin.ask(Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, encode_body(config))
    table = decode_body(admin.ask(Request.GET_ALL_SUBSCRIPTIONGROUP_CONFIG).body, SubscriptionGroupTable)
    assert table.subscriptionGroupTable == {"billing": config}
    got = decode_body(admin.ask(Request.GET_SUBSCRIPTIONGROUP_CONFIG, group="billing").body, SubscriptionGroupConfig)
    assert got == config
    admin.ask(Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, encode_body(SubscriptionGroupConfig("billing")))
    table = decode_body(admin.ask(Request.GET_ALL_SUBSCRIPTIONGROUP_CONFIG).body, SubscriptionGroupTable)
    assert table.subscriptionGroupTable == {"billing": SubscriptionGroupConfig("billing")}


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b'{"groupName":"g","retryQueueNums":9999}', "retryQueueNums=9999"),
        (b'{"groupName":"g","retryMaxTimes":"x"}', "retryMaxTimes"),
        (b'{"groupName":"g","groupRetryPolicy":{"type":"EXPONENTIAL"}}', "groupRetryPolicy"),
        (b'{"groupName":"g","attributes":{"a":"b"}}', "attributes"),
        (b'{"groupName":"g","subscriptionDataSet":[{"topic":"t"}]}', "subscriptionDataSet"),
        (b'{"groupName":"a b"}', "a b"),
        (b"{", "JSON"),
        (b"", ""),
    ],
)
def test_a_group_setting_that_could_not_be_honoured_is_refused(admin: Admin, body: bytes, text: str) -> None:
    assert text in str(admin.fail(Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body))
    many = b'{"groupConfigList":[{"groupName":"first"},' + (body or b"x") + b"]}"
    assert text in str(admin.fail(Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, many))
    table = decode_body(admin.ask(Request.GET_ALL_SUBSCRIPTIONGROUP_CONFIG).body, SubscriptionGroupTable)
    assert table.subscriptionGroupTable == {}, "nothing of a request that fails is done"


def test_what_rocketmq_5_says_by_default_is_taken(admin: Admin) -> None:
    body = (
        b'{"attributes":{},"brokerId":0,"consumeBroadcastEnable":true,"consumeEnable":true,"consumeFromMinEnable":true,'
        b'"consumeMessageOrderly":false,"consumeTimeoutMinute":15,"groupName":"g","groupRetryPolicy":{"type":"CUSTOMIZED"},'
        b'"groupSysFlag":0,"notifyConsumerIdsChangedEnable":true,"retryMaxTimes":16,"retryQueueNums":1,'
        b'"whichBrokerWhenConsumeSlowly":1}'
    )
    admin.ask(Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body)
    admin.ask(Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, b'{"groupConfigList":[' + body + b"]}")
    table = decode_body(admin.ask(Request.GET_ALL_SUBSCRIPTIONGROUP_CONFIG).body, SubscriptionGroupTable)
    assert table.subscriptionGroupTable == {"g": SubscriptionGroupConfig("g")}


def test_a_group_with_members_is_not_deleted(admin: Admin, tables: Any) -> None:
    admin.consume("billing", "orders")
    refused = admin.fail(Request.DELETE_SUBSCRIPTIONGROUP, groupName="billing")
    assert "1 members online" in str(refused) and tables.groups() == ["billing"]
    missing = admin.fail(Request.DELETE_SUBSCRIPTIONGROUP, groupName="biling")
    assert missing.code == Response.SUBSCRIPTION_GROUP_NOT_EXIST and missing.hint == 'did you mean "billing"?'
    assert isinstance(admin.fail(Request.DELETE_SUBSCRIPTIONGROUP, groupName="a b"), InvalidName)


def queue(admin: Admin, tables: Any, bounds: tuple[int, int] = (0, 10)) -> dict[str, str]:
    admin.ask(17, topic="orders", writeQueueNums="2")
    tables.bounds[tables.topic("orders").queues[1]] = QueueBounds(*bounds)
    return {"topic": "orders", "queueId": "1"}


def test_the_bounds_of_a_queue_are_served(admin: Admin, tables: Any) -> None:
    of_queue = queue(admin, tables, (3, 10))
    assert admin.ask(Request.GET_MIN_OFFSET, **of_queue).ext == {"offset": "3"}
    assert admin.ask(Request.GET_MAX_OFFSET, **of_queue).ext == {"offset": "10"}
    tables.times[tables.topic("orders").queues[1]] = [100, 200, 300]
    assert admin.ask(Request.SEARCH_OFFSET_BY_TIMESTAMP, timestamp="200", **of_queue).ext == {"offset": "1"}
    for before in ("-1", "-2", str(-(1 << 63))):
        assert admin.ask(Request.SEARCH_OFFSET_BY_TIMESTAMP, timestamp=before, **of_queue).ext == {"offset": "0"}


def test_a_queue_id_that_does_not_exist_is_refused(admin: Admin, tables: Any) -> None:
    queue(admin, tables)
    refused = admin.fail(Request.GET_MAX_OFFSET, topic="orders", queueId="2")
    assert refused.code == Response.SYSTEM_ERROR and "request queueId[2] is illegal" in str(refused)
    assert "queueId" in str(admin.fail(Request.GET_MAX_OFFSET, topic="orders", queueId="-1"))


def test_a_committed_offset_is_found_again(admin: Admin, tables: Any) -> None:
    of_queue = queue(admin, tables)
    admin.ask(Request.UPDATE_CONSUMER_OFFSET, consumerGroup="billing", commitOffset="7", **of_queue)
    assert admin.ask(Request.QUERY_CONSUMER_OFFSET, consumerGroup="billing", **of_queue).ext == {"offset": "7"}
    assert tables.groups() == ["billing"]
    for wrong in ("-1", "9223372036854775808", "x"):
        assert "commitOffset" in str(admin.fail(15, consumerGroup="billing", commitOffset=wrong, **of_queue))
    assert isinstance(admin.fail(15, consumerGroup="a b", commitOffset="1", **of_queue), InvalidName)


def test_a_group_that_never_committed_starts_by_rocketmqs_rule(admin: Admin, tables: Any) -> None:
    of_queue = queue(admin, tables, (0, 10))
    ask = {"consumerGroup": "new", **of_queue}
    assert admin.ask(Request.QUERY_CONSUMER_OFFSET, **ask).ext == {"offset": "0"}
    assert admin.ask(Request.QUERY_CONSUMER_OFFSET, **ask | {"topic": "nowhere"}).ext == {"offset": "0"}
    tables.bounds[tables.topic("orders").queues[1]] = QueueBounds(5, 10)
    missing = admin.fail(Request.QUERY_CONSUMER_OFFSET, **ask)
    assert missing.code == Response.QUERY_NOT_FOUND and "Not found" in str(missing)
    assert tables.groups() == [] and tables.slots == {}, "a query creates nothing"


def test_offset_slots_list_every_readable_queue_and_stay_the_same(admin: Admin, tables: Any) -> None:
    admin.ask(17, topic="orders", writeQueueNums="4", readQueueNums="3")
    reply = msgspec.json.decode(admin.ask(Request.OFFSET_SLOTS, group="g", topic="orders").body)
    queues = tables.topic("orders").queues
    group = tables.group("g")
    assert reply == {"slots": [[n, queues[n], tables.offset_slot(group, queues[n])] for n in range(3)]}
    again = msgspec.json.decode(admin.ask(Request.OFFSET_SLOTS, group="g", topic="orders").body)
    assert again == reply
    assert isinstance(admin.fail(Request.OFFSET_SLOTS, group="", topic="orders"), RemoteError)


def test_a_local_group_has_the_retry_topic_that_tools_look_for(tables: Any, settings: BrokerSettings) -> None:
    Admin(Broker(tables, settings, now_ms=0, log=MemoryLog(tables))).consume("quiet", "orders")
    assert tables.topic("%RETRY%quiet") is None, "without TCP no tool looks"
    settings.serves_tcp = True
    admin = Admin(Broker(tables, settings, now_ms=0, log=MemoryLog(tables)))
    admin.consume("billing", "orders")
    admin.consume("g" * 121, "orders")
    assert tables.topic("%RETRY%billing") is not None
    assert [name for name in tables.topic_names() if "ggg" in name] == [], "a name too long for it goes without"


def test_a_client_of_rocketmq_consumes_in_a_group_too_long_for_a_retry_topic_and_that_is_said_once(
    tables: Any, settings: BrokerSettings
) -> None:
    broker = Broker(tables, settings, now_ms=0, log=MemoryLog(tables))
    member, group = RemoteAdmin(broker), "g" * 125
    beat = encode_body(HeartbeatData(member.client_id, [ConsumerData(group, [SubscriptionData("TBW102")])]))
    first, second = (member.effects(Request.HEART_BEAT, beat) for _ in range(2))
    assert all(isinstance(effects[0], Reply) and effects[0].command.code == 0 for effects in (first, second))
    (report,) = [effect.text for effect in (*first, *second) if isinstance(effect, Report)]
    assert "consumes without retries" in report and "132 characters" in report
    assert tables.group(group) is not None


@pytest.mark.parametrize("is_local", [True, False])
def test_without_room_for_its_retry_topic_a_group_consumes_and_that_is_said_once(
    tables: Any, settings: BrokerSettings, is_local: bool
) -> None:
    settings.serves_tcp = True
    broker = Broker(tables, settings, now_ms=0, log=MemoryLog(tables))
    member = Admin(broker) if is_local else RemoteAdmin(broker)
    tables.topic_max = len(tables.all_topics)
    beat = encode_body(HeartbeatData(member.client_id, [ConsumerData("billing", [SubscriptionData("TBW102")])]))
    first, second = (member.effects(Request.HEART_BEAT, beat) for _ in range(2))
    assert all(isinstance(effects[0], Reply) and effects[0].command.code == 0 for effects in (first, second))
    (report,) = [effect.text for effect in (*first, *second) if isinstance(effect, Report)]
    assert "billing" in report and "%RETRY%billing" in report and "the topic table is full" in report
    members = member.ask(Request.GET_CONSUMER_LIST_BY_GROUP, consumerGroup="billing").body
    assert member.client_id.encode() in members
    tables.topic_max += 1
    member.effects(Request.HEART_BEAT, beat)
    assert tables.topic("%RETRY%billing") is not None
