"""Connected clients, as RocketMQ's tools list them."""

from typing import Any

import pytest

from shmq.daemon.broker.broker import Broker
from shmq.daemon.broker.settings import BrokerSettings
from shmq.protocol.codes import Request, Response
from tests.broker.admin_client import Admin, RemoteAdmin
from tests.broker.memory_log import MemoryLog


@pytest.fixture
def broker(tables: Any, settings: BrokerSettings) -> Broker:
    return Broker(tables, settings, now_ms=0, log=MemoryLog(tables))


def test_members_are_listed_with_address_language_and_subscription(broker: Broker) -> None:
    admin, member, local = RemoteAdmin(broker, 1), RemoteAdmin(broker, 2), Admin(broker, 3)
    member.consume("billing", "orders")
    local.consume("billing", "orders")
    body = admin.body(Request.GET_CONSUMER_CONNECTION_LIST, consumerGroup="billing")
    assert isinstance(body, dict)
    assert body["connectionSet"] == [
        {"clientId": "127.0.0.1@2", "clientAddr": "127.0.0.1:40002", "language": "JAVA", "version": 409},
        {"clientId": "admin-3", "clientAddr": "shm-3:0", "language": "PYTHON", "version": 409},
    ]
    assert body["subscriptionTable"]["orders"]["subString"] == "*"
    assert (body["consumeType"], body["messageModel"]) == ("CONSUME_PASSIVELY", "CLUSTERING")
    assert body["consumeFromWhere"] == "CONSUME_FROM_LAST_OFFSET"


def test_a_group_without_members_is_not_online(broker: Broker) -> None:
    admin = RemoteAdmin(broker)
    offline = admin.fail(Request.GET_CONSUMER_CONNECTION_LIST, consumerGroup="none")
    assert offline.code == Response.CONSUMER_NOT_ONLINE and str(offline).endswith("the consumer group[none] not online")
    missing = admin.fail(Request.GET_PRODUCER_CONNECTION_LIST, producerGroup="none")
    assert missing.code == 1 and str(missing).endswith("the producer group[none] not exist")


def test_producers_are_listed_by_group_and_all_together(broker: Broker, tables: Any) -> None:
    admin, producer = RemoteAdmin(broker, 1), RemoteAdmin(broker, 2)
    producer.produce("shop")
    shown = {"clientId": "127.0.0.1@2", "clientAddr": "127.0.0.1:40002", "language": "JAVA", "version": 409}
    assert admin.body(Request.GET_PRODUCER_CONNECTION_LIST, producerGroup="shop") == {"connectionSet": [shown]}
    admin.now_ms = 7000
    assert admin.body(Request.GET_ALL_PRODUCER_INFO) == {
        "data": {
            "shop": [
                {
                    "clientId": "127.0.0.1@2",
                    "remoteIP": "/127.0.0.1:40002",
                    "language": "JAVA",
                    "version": 409,
                    "lastUpdateTimestamp": tables.clock - 7000,
                }
            ]
        }
    }
