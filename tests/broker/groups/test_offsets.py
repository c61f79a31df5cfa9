"""The progress of a group: reported by a TCP client, or by the local member that took its queue over."""

from typing import Any

from shmq.daemon.broker.broker import Broker
from shmq.daemon.broker.groups.offsets import commit_of_remote
from shmq.daemon.broker.settings import BrokerSettings
from shmq.daemon.broker.tables import QueueBounds
from shmq.errors import OffsetOutOfRange
from shmq.protocol.codes import Request
from tests.broker.admin_client import RemoteAdmin
from tests.broker.memory_log import MemoryLog


def test_a_late_commit_does_not_set_back_a_queue_that_a_local_member_owns(
    tables: Any, settings: BrokerSettings
) -> None:
    client = RemoteAdmin(Broker(tables, settings, now_ms=0, log=MemoryLog(tables)))
    tables.topic_put("orders", read_queues=1, write_queues=1, perm=6, flags=0, kind=0)
    tables.bounds[tables.topic("orders").queues[0]] = QueueBounds(0, 50)
    of_queue = {"consumerGroup": "g", "topic": "orders", "queueId": "0"}
    client.ask(Request.UPDATE_CONSUMER_OFFSET, commitOffset="7", **of_queue)
    client.ask(Request.UPDATE_CONSUMER_OFFSET, commitOffset="5", **of_queue)
    slot = tables.offset_slot(tables.group("g"), tables.topic("orders").queues[0])
    assert tables.committed(slot) == 5  # its own to move, back too
    tables.owned.add(slot)
    tables.set_committed(slot, 20)
    for late in ("6", "30"):
        client.ask(Request.UPDATE_CONSUMER_OFFSET, commitOffset=late, **of_queue)
        assert client.ask(Request.QUERY_CONSUMER_OFFSET, **of_queue).ext == {"offset": "20"}
    tables.owned.clear()
    client.ask(Request.UPDATE_CONSUMER_OFFSET, commitOffset="21", **of_queue)
    assert tables.committed(slot) == 21


def test_what_a_slave_kept_sets_no_group_back(tables: Any, settings: BrokerSettings) -> None:
    client = RemoteAdmin(Broker(tables, settings, now_ms=0, log=MemoryLog(tables)))
    tables.topic_put("orders", read_queues=1, write_queues=1, perm=6, flags=0, kind=0)
    tables.bounds[tables.topic("orders").queues[0]] = QueueBounds(0, 50)
    of_queue = {"consumerGroup": "g", "topic": "orders", "queueId": "0"}
    for kept, is_then in (("7", "7"), ("5", "7"), ("9", "9")):
        client.ask(Request.UPDATE_CONSUMER_OFFSET, commitOffset=kept, onlyForward="true", **of_queue)
        assert client.ask(Request.QUERY_CONSUMER_OFFSET, **of_queue).ext == {"offset": is_then}


def test_an_offset_behind_the_end_is_refused_or_in_a_pull_ignored(tables: Any, settings: BrokerSettings) -> None:
    client = RemoteAdmin(Broker(tables, settings, now_ms=0, log=MemoryLog(tables)))
    tables.topic_put("orders", read_queues=1, write_queues=1, perm=6, flags=0, kind=0)
    (queue,) = tables.topic("orders").queues
    tables.bounds[queue] = QueueBounds(0, 3)
    of_queue = {"consumerGroup": "g", "topic": "orders", "queueId": "0"}
    client.ask(Request.UPDATE_CONSUMER_OFFSET, commitOffset="3", **of_queue)
    refused = client.fail(Request.UPDATE_CONSUMER_OFFSET, commitOffset="4", **of_queue)
    assert type(refused) is OffsetOutOfRange and "4 is behind the end" in str(refused) and "is 3" in str(refused)
    assert not commit_of_remote(tables, tables.group("g"), queue, 4)
    assert client.ask(Request.QUERY_CONSUMER_OFFSET, **of_queue).ext == {"offset": "3"}
