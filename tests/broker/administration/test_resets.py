"""Resetting a group: what is written, and which members get a notice."""

from typing import Any

import pytest

from shmq.daemon.broker.broker import Broker
from shmq.daemon.broker.settings import BrokerSettings
from shmq.daemon.broker.tables import QueueBounds
from shmq.errors import RemoteError, SegmentFull
from shmq.protocol.codes import Language, Request, Response
from shmq.protocol.dialect import MessageQueue, loads
from tests.broker.admin_client import Admin, RemoteAdmin, told
from tests.broker.memory_log import MemoryLog


@pytest.fixture
def broker(tables: Any, settings: BrokerSettings) -> Broker:
    tables.topic_put("orders", read_queues=2, write_queues=2, perm=6, flags=0, kind=0)
    for queue in tables.topic("orders").queues:
        tables.bounds[queue] = QueueBounds(2, 10)
        tables.times[queue] = [1000 * number for number in range(10)]
    tables.group_put("billing")
    return Broker(tables, settings, now_ms=0, log=MemoryLog(tables))


def committed(tables: Any) -> list[int]:
    group = tables.group("billing")
    slots = [tables.offset_slot(group, queue) for queue in tables.topic("orders").queues]
    return [-1 if slot is None else tables.committed(slot) for slot in slots]


def reset(admin: RemoteAdmin, **ext: str) -> object:
    return admin.body(222, **{"topic": "orders", "group": "billing", "timestamp": "-1", "isForce": "true"} | ext)


def test_no_member_has_to_be_online(broker: Broker, tables: Any) -> None:
    key = [MessageQueue("default", queue_id, "orders") for queue_id in range(2)]
    assert reset(RemoteAdmin(broker)) == {"offsetTable": {key[0]: 10, key[1]: 10}}
    assert committed(tables) == [10, 10]
    assert reset(RemoteAdmin(broker, 2), timestamp="3000") == {"offsetTable": {key[0]: 3, key[1]: 3}}
    assert committed(tables) == [3, 3]
    other = RemoteAdmin(broker, 3)
    for before in ("-2", "-2208988800000", str(-(1 << 63))):
        reset(other, timestamp="9000")
        reset(other, timestamp=before)
        assert max(committed(tables)) <= 2, "-1 alone is RocketMQ's word for the end"


def test_one_queue_may_be_set_to_one_place(broker: Broker, tables: Any) -> None:
    admin = RemoteAdmin(broker)
    reset(admin)
    reset(admin, queueId="1", offset="5")
    assert committed(tables) == [10, 5]


def test_without_force_no_offset_goes_forward(broker: Broker, tables: Any) -> None:
    admin = RemoteAdmin(broker)
    reset(admin, queueId="0", offset="4")
    reset(admin, timestamp="6000", isForce="false")
    assert committed(tables) == [4, 6]


def test_without_room_for_the_progress_of_one_queue_no_queue_is_reset(
    broker: Broker, tables: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A member would go on from its own place, without a notice of the new one."""
    admin = RemoteAdmin(broker)
    reset(admin, queueId="0", offset="5")
    monkeypatch.setattr(tables, "offset_put", lambda group, queue: _only_known(tables, group, queue))
    freed = list(tables.freed)
    reply = admin.reply(222, topic="orders", group="billing", timestamp="-1", isForce="true")
    assert reply.remark == "no room for another progress"
    assert committed(tables) == [5, -1] and tables.freed == freed


def test_without_room_for_the_progress_of_one_queue_no_queue_is_cloned(
    broker: Broker, tables: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin = RemoteAdmin(broker)
    reset(admin)
    copy = tables.group_put("copy")
    slot = tables.offset_put(copy, tables.topic("orders").queues[0])
    monkeypatch.setattr(tables, "offset_put", lambda group, queue: _only_known(tables, group, queue))
    reply = admin.reply(314, srcGroup="billing", destGroup="copy", topic="orders", offline="true")
    assert reply.remark == "no room for another progress" and tables.committed(slot) == -1


def _only_known(tables: Any, group: int, queue: int) -> int:
    slot: int | None = tables.offset_slot(group, queue)
    if slot is None:
        raise SegmentFull("no room for another progress")
    return slot


@pytest.mark.parametrize(
    ("ext", "code", "text"),
    [
        ({"topic": "none"}, Response.TOPIC_NOT_EXIST, "Topic none does not exist"),
        ({"group": "none"}, Response.SUBSCRIPTION_GROUP_NOT_EXIST, "Group none does not exist"),
        ({"queueId": "2"}, 13, "has 2 to read"),
        ({"offset": "5"}, 13, "for every queue"),
        ({"queueId": "0", "offset": "11"}, 13, "between 2 and 10"),
        ({"queueId": "0", "offset": "1"}, 13, "between 2 and 10"),
        ({"timestamp": "soon"}, 1, "timestamp"),
    ],
)
def test_what_cannot_be_reset_changes_nothing(
    broker: Broker, tables: Any, ext: dict[str, str], code: int, text: str
) -> None:
    whole = {"topic": "orders", "group": "billing", "timestamp": "-1", "isForce": "true"} | ext
    refused = RemoteAdmin(broker).fail(222, **whole)
    assert refused.code == code and text in str(refused)
    assert committed(tables) == [-1, -1]


def test_members_over_tcp_get_their_new_place(broker: Broker) -> None:
    admin, member = RemoteAdmin(broker, 1), RemoteAdmin(broker, 2)
    member.consume("billing", "orders")
    whole = {"topic": "orders", "group": "billing", "timestamp": "-1", "isForce": "true"}
    ((connection_id, command),) = told(admin.effects(222, **whole), Request.RESET_CONSUMER_CLIENT_OFFSET)
    assert connection_id == 2 and command.is_oneway
    assert command.ext == {"topic": "orders", "group": "billing", "timestamp": "-1", "isForce": "false"}
    table = loads(command.body)["offsetTable"]
    assert table == {MessageQueue("default", 0, "orders"): 10, MessageQueue("default", 1, "orders"): 10}


def test_a_tool_in_cpp_gets_the_list_its_clients_read(broker: Broker) -> None:
    admin, member = RemoteAdmin(broker, 1, language=Language.CPP), RemoteAdmin(broker, 2)
    member.consume("billing", "orders")
    whole = {"topic": "orders", "group": "billing", "timestamp": "-1", "isForce": "true"}
    ((_, command),) = told(admin.effects(222, **whole), Request.RESET_CONSUMER_CLIENT_OFFSET)
    assert command.body == (
        b'{"offsetTable":[{"brokerName":"default","offset":10,"queueId":0,"topic":"orders"},'
        b'{"brokerName":"default","offset":10,"queueId":1,"topic":"orders"}]}'
    )


def test_local_members_lose_their_queues_and_share_anew(broker: Broker, tables: Any) -> None:
    admin, member = RemoteAdmin(broker, 1), Admin(broker, 2)
    member.consume("billing", "orders")
    whole = {"topic": "orders", "group": "billing", "timestamp": "-1", "isForce": "true"}
    effects = admin.effects(222, **whole)
    assert [connection for connection, _ in told(effects, Request.NOTIFY_CONSUMER_IDS_CHANGED)] == [2]
    assert told(effects, Request.RESET_CONSUMER_CLIENT_OFFSET) == []
    group = tables.group("billing")
    assert sorted(tables.freed) == sorted(tables.offset_slot(group, q) for q in tables.topic("orders").queues)


def test_a_reset_that_is_refused_takes_no_queue_away(broker: Broker, tables: Any) -> None:
    refused = RemoteAdmin(broker).fail(222, topic="orders", group="none", timestamp="-1", isForce="true")
    assert isinstance(refused, RemoteError) and tables.freed == []
