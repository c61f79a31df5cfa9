"""The broker's state as RocketMQ's tools read it, its settings, and what they may change."""

import re
from dataclasses import fields
from typing import Any

import msgspec
import pytest

from shmq.client.administration.remote_figures import cluster_health
from shmq.daemon.broker.administration.config import TUNABLES
from shmq.daemon.broker.broker import Broker
from shmq.daemon.broker.settings import BrokerSettings
from shmq.daemon.broker.tables import QueueBounds, StoreFacts
from shmq.errors import PermissionDenied, UsageError
from shmq.protocol.body import CHECKS
from shmq.protocol.codes import Request
from tests.broker.admin_client import Admin, RemoteAdmin
from tests.broker.memory_log import MemoryLog

# Every key a stock broker 4.9.7 and 5.3.3 answered 28 with, apart from one that names a directory.
STOCK_KEYS = """
ackThreadPoolQueueCapacity ackThreadPoolQueueHeadWaitTimeMills ackThreadPoolQueueSize bootTimestamp brokerActive
brokerVersion brokerVersionDesc commitLogDirCapacity commitLogDiskRatio commitLogMaxOffset commitLogMinOffset
consumeQueueDiskRatio dispatchBehindBytes dispatchMaxBuffer earliestMessageTimeStamp EndTransactionQueueSize
EndTransactionThreadPoolQueueCapacity getFoundTps getMessageEntireTimeMax getMissTps getTotalTps getTransferedTps
getTransferredTps litePullThreadPoolQueueCapacity litePullThreadPoolQueueHeadWaitTimeMills litePullThreadPoolQueueSize
msgGetTotalTodayMorning msgGetTotalTodayNow msgGetTotalYesterdayMorning msgPutTotalTodayMorning msgPutTotalTodayNow
msgPutTotalYesterdayMorning pageCacheLockTimeMills pullThreadPoolQueueCapacity pullThreadPoolQueueHeadWaitTimeMills
pullThreadPoolQueueSize putLatency99 putLatency999 putMessageAverageSize putMessageDistributeTime
putMessageEntireTimeMax putMessageFailedTimes putMessageSizeTotal putMessageTimesTotal putTps
queryThreadPoolQueueCapacity queryThreadPoolQueueHeadWaitTimeMills queryThreadPoolQueueSize remainHowManyDataToFlush
remainTransientStoreBufferNumbs runtime sendThreadPoolQueueCapacity sendThreadPoolQueueHeadWaitTimeMills
sendThreadPoolQueueSize startAcceptSendRequestTimeStamp timerCongestNum timerDequeueTps timerEnqueueTps
timerOffsetBehind timerReadBehind
"""
DAY = 86_400_000
TOPIC_FIELDS = {"defaultTopic": "TBW102", "readQueueNums": "4", "writeQueueNums": "4", "perm": "6"}
TOPIC_FIELDS |= {"topicFilterType": "SINGLE_TAG", "order": "false"}


@pytest.fixture
def broker(tables: Any, settings: BrokerSettings) -> Broker:
    return Broker(tables, settings, now_ms=0, log=MemoryLog(tables))


@pytest.fixture
def admin(broker: Broker) -> RemoteAdmin:
    return RemoteAdmin(broker)


def runtime(admin: RemoteAdmin) -> dict[str, str]:
    body = admin.body(Request.GET_BROKER_RUNTIME_INFO)
    assert isinstance(body, dict)
    return dict(body["table"])


def test_every_key_of_both_stock_releases_is_there_and_is_text(admin: RemoteAdmin) -> None:
    table = runtime(admin)
    assert not set(STOCK_KEYS.split()) - set(table)
    assert all(isinstance(value, str) for value in table.values())


def test_figures_have_the_form_that_exporters_cut_up(admin: RemoteAdmin) -> None:
    table = runtime(admin)
    # As a stock broker 4.9.7 and 5.3.3 says it from the second minute on.
    times = "".join(f"[{span}]:0 " for span in ("<=0ms", "0~10ms", "10~50ms", "50~100ms", "100~200ms", "200~500ms"))
    times += "".join(f"[{span}]:0 " for span in ("500ms~1s", "1~2s", "2~3s", "3~4s", "4~5s", "5~10s", "10s~"))
    assert table["putMessageDistributeTime"] == times
    for name in table:
        if name.endswith("Tps") and not name.startswith("timer"):
            assert [float(rate) for rate in table[name].split()] == [0.0] * 3, name
    assert re.fullmatch(r"Total : \d+\.\d GiB, Free : \d+\.\d GiB\.", table["commitLogDirCapacity"])
    assert re.fullmatch(r"\d+ B", table["remainHowManyDataToFlush"])


def test_health_over_tcp_says_what_is_wrong(admin: RemoteAdmin, tables: Any) -> None:
    assert cluster_health({"b": runtime(admin)}).verdict == "OK"
    tables.failing = [
        ("files files", "WARNING", "1 file changed"),
        ("master 10.0.0.4:10912", "CRITICAL", "lost: why; do"),
    ]
    health = cluster_health({"b": runtime(admin), "stock": {}, "hostile": {CHECKS: '[["store", "FINE", 7]]'}})
    assert health.verdict == "CRITICAL"
    told = [check for check in health.checks if check.verdict != "OK"]
    assert [check.name for check in told] == ["files files of b", "master 10.0.0.4:10912 of b"]
    assert told[1].text == "lost: why; do"


def test_the_figures_are_those_of_the_store(admin: RemoteAdmin, tables: Any) -> None:
    tables.store_facts = StoreFacts(100, 900, 800, appended=4, appended_bytes=800, refused=2)
    admin.now_ms = DAY + 3_723_000
    table = runtime(admin)
    assert table["runtime"] == "[ 1 days, 1 hours, 2 minutes, 3 seconds ]"
    assert table["bootTimestamp"] == str(tables.clock - admin.now_ms)
    assert (table["commitLogMinOffset"], table["commitLogMaxOffset"]) == ("100", "900")
    assert (table["putMessageTimesTotal"], table["putMessageAverageSize"]) == ("4", "200.0")
    assert (table["remainHowManyDataToFlush"], table["putMessageFailedTimes"]) == ("100 B", "2")
    assert table["commitLogDiskRatio"] == "0.25"


def test_the_rates_are_those_of_local_clients_too(broker: Broker, admin: RemoteAdmin, tables: Any) -> None:
    tables.topic_put("orders", read_queues=1, write_queues=1, perm=6, flags=0, kind=0)
    (queue,) = tables.topic("orders").queues
    slot = tables.offset_put(tables.group_put("g"), queue)
    tables.set_committed(slot, 0)
    for second in range(12):
        tables.bounds[queue] = QueueBounds(0, 100 * second)
        tables.store_facts = StoreFacts(0, 0, 0, 100 * second, 0, 0)
        tables.set_committed(slot, 50 * second)
        broker.tick(1000 * second)
    table = runtime(admin)
    assert table["putTps"] == "100.0 100.0 100.0"
    assert table["getTransferedTps"] == table["getTransferredTps"] == "50.0 50.0 50.0"
    assert (table["msgPutTotalTodayNow"], table["msgGetTotalTodayNow"]) == ("1100", "550")
    stats = admin.body(Request.VIEW_BROKER_STATS_DATA, statsName="TOPIC_PUT_NUMS", statsKey="orders")
    assert isinstance(stats, dict) and stats["statsMinute"]["tps"] == pytest.approx(100.0)
    missing = admin.fail(Request.VIEW_BROKER_STATS_DATA, statsName="TOPIC_PUT_NUMS", statsKey="none")
    assert missing.code == 1 and "The stats <TOPIC_PUT_NUMS> <none> not exist" in str(missing)


def test_there_is_no_slave(admin: RemoteAdmin) -> None:
    body = admin.body(Request.GET_BROKER_HA_STATUS)
    assert isinstance(body, dict) and body["master"] is True and body["haConnectionInfo"] == []


@pytest.mark.parametrize(
    "name", ["DefaultCluster", "default", "DefaultCluster_REPLY_TOPIC", "RMQ_SYS_TRACE_TOPIC", "TBW102"]
)
def test_the_topics_of_a_broker_can_be_neither_made_nor_deleted(
    tables: Any, settings: BrokerSettings, name: str
) -> None:
    settings.serves_tcp = True
    admin = RemoteAdmin(Broker(tables, settings, now_ms=0, log=MemoryLog(tables)))
    for code in (Request.UPDATE_AND_CREATE_TOPIC, Request.DELETE_TOPIC_IN_BROKER):
        refused = admin.reply(code, **TOPIC_FIELDS, topic=name)
        assert (refused.code, refused.remark) == (1, f"The topic[{name}] is conflict with system topic.")


def test_a_time_after_the_last_message_is_the_last_one_unless_a_boundary_is_named(
    admin: RemoteAdmin, tables: Any
) -> None:
    tables.topic_put("orders", read_queues=1, write_queues=1, perm=6, flags=0, kind=0)
    of_queue = {"topic": "orders", "queueId": "0"}
    index = tables.topic("orders").queues[0]
    tables.bounds[index], tables.times[index] = QueueBounds(0, 3), [100, 200, 300]
    for time_ms, boundary, offset in [
        ("301", {}, "2"),
        ("301", {"boundaryType": "lower"}, "3"),
        ("301", {"boundaryType": "UPPER"}, "2"),
        ("200", {"boundaryType": "UPPER"}, "1"),
        ("299", {"boundaryType": "UPPER"}, "1"),
        ("1", {"boundaryType": "UPPER"}, "0"),
        ("150", {}, "1"),
    ]:
        found = admin.ask(Request.SEARCH_OFFSET_BY_TIMESTAMP, timestamp=time_ms, **of_queue, **boundary).ext
        assert found == {"offset": offset}, (time_ms, boundary)


def test_system_topics_are_listed_and_cleaning_finds_nothing(admin: RemoteAdmin) -> None:
    body = admin.body(Request.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)
    assert isinstance(body, dict) and {"TBW102", "DefaultCluster", "default"} <= set(body["topicList"])
    for code in (
        Request.CLEAN_EXPIRED_CONSUMEQUEUE,
        Request.CLEAN_UNUSED_TOPIC,
        Request.DELETE_EXPIRED_COMMITLOG,
    ):
        assert admin.ask(code).body == b""


# ---- settings ---------------------------------------------------------------------------------------------------


def config(admin: Admin) -> dict[str, str]:
    lines = admin.ask(Request.GET_BROKER_CONFIG).body.decode().splitlines()
    return dict(line.split("=", 1) for line in lines)


def test_settings_are_lines_of_text_with_a_version(admin: RemoteAdmin) -> None:
    reply = admin.ask(Request.GET_BROKER_CONFIG)
    assert msgspec.json.decode(reply.ext["version"]) == {"counter": 0, "timestamp": 0}
    values = config(admin)
    assert values["brokerName"] == "default" and values["listenPort"] == "10911"
    assert not {value for value in values.values() if "/" in value}, "no path is listed"


def test_nothing_is_changed_over_tcp_without_an_account(admin: RemoteAdmin, settings: BrokerSettings) -> None:
    refused = admin.fail(Request.UPDATE_BROKER_CONFIG, b"autoCreateTopicEnable=false\n")
    assert isinstance(refused, PermissionDenied) and settings.auto_create


def test_an_account_changes_what_is_listed(broker: Broker, admin: RemoteAdmin, settings: BrokerSettings) -> None:
    broker._connections[1].has_account = True
    admin.ask(Request.UPDATE_BROKER_CONFIG, b"# mqadmin\nautoCreateTopicEnable=false\ndefaultTopicQueueNums=3\n")
    assert (settings.auto_create, settings.default_queues) == (False, 3)
    assert config(admin)["autoCreateTopicEnable"] == "false"
    counter = msgspec.json.decode(admin.ask(Request.GET_BROKER_CONFIG).ext["version"])["counter"]
    assert counter == 1


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (b"defaultTopicQueueNums=3\nbrokerConfigPath=/tmp/x\n", PermissionDenied),
        (b"defaultTopicQueueNums=3\nrocketmqHome=/tmp;id\n", PermissionDenied),
        (b"defaultTopicQueueNums=3\nfilterServerNums=1\n", PermissionDenied),
        (b"defaultTopicQueueNums=3\nmaxMessageSize=4194305\n", UsageError),
        (b"defaultTopicQueueNums=3\nmaxMessageSize=-1\n", UsageError),
        (b"defaultTopicQueueNums=3\nmaxMessageSize=" + b"9" * 5000 + b"\n", UsageError),
        (b"defaultTopicQueueNums=3\nautoCreateTopicEnable=yes\n", UsageError),
        ("defaultTopicQueueNums=3\nmaxMessageSize=٤٠٩٦\n".encode(), UsageError),
        (b"\xff\xfe", Exception),
        (b"defaultTopicQueueNums=3\n" * 65, Exception),
    ],
)
def test_one_wrong_line_and_nothing_is_changed(
    broker: Broker, settings: BrokerSettings, body: bytes, error: type[Exception]
) -> None:
    refused = Admin(broker, 2).fail(Request.UPDATE_BROKER_CONFIG, body)
    assert isinstance(refused, error) and settings.default_queues == 8


def test_what_may_be_set_is_a_number_or_a_switch_and_little() -> None:
    numbers = {field.name for field in fields(BrokerSettings) if field.type in (int, bool)}
    assert {tunable.field for tunable in TUNABLES.values()} <= numbers
    assert len(TUNABLES) <= 15
