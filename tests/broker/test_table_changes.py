"""Changes of topics and groups are refused where they could not be kept."""

from typing import Any

from shmq.daemon.broker.broker import Broker
from shmq.daemon.broker.settings import BrokerSettings
from shmq.errors import StoreError
from shmq.protocol.body import SubscriptionGroupConfig, encode_body
from shmq.protocol.codes import Request
from tests.broker.admin_client import Admin
from tests.broker.memory_log import MemoryLog


def test_what_cannot_be_saved_is_refused_and_changes_nothing(tables: Any, settings: BrokerSettings) -> None:
    admin = Admin(Broker(tables, settings, now_ms=0, log=MemoryLog(tables)))
    group = encode_body(SubscriptionGroupConfig(groupName="billing"))
    admin.ask(Request.UPDATE_AND_CREATE_TOPIC, topic="orders")
    admin.ask(Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, group)
    before = (dict(tables.all_topics), dict(tables.all_groups), dict(tables.settings))
    tables.unsavable = "the disk is read-only"
    changes = [
        admin.fail(Request.UPDATE_AND_CREATE_TOPIC, topic="new"),
        admin.fail(Request.UPDATE_AND_CREATE_TOPIC, topic="orders", writeQueueNums="16"),
        admin.fail(Request.UPDATE_AND_CREATE_TOPIC_LIST, b'{"topicConfigList":[{"topicName":"new"}]}'),
        admin.fail(Request.DELETE_TOPIC_IN_BROKER, topic="orders"),
        admin.fail(Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, encode_body(SubscriptionGroupConfig(groupName="new"))),
        admin.fail(Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, b'{"groupConfigList":[{"groupName":"new"}]}'),
        admin.fail(Request.DELETE_SUBSCRIPTIONGROUP, groupName="billing"),
    ]
    assert [(type(error), str(error)) for error in changes] == [(StoreError, "the disk is read-only")] * len(changes)
    assert (tables.all_topics, tables.all_groups, tables.settings) == before
    tables.unsavable = ""
    assert admin.ask(Request.UPDATE_AND_CREATE_TOPIC, topic="new").ext["created"] == "true"


def test_what_is_done_while_the_keeper_makes_no_rounds_is_said_not_to_be_saved_yet(
    tables: Any, settings: BrokerSettings
) -> None:
    admin = Admin(Broker(tables, settings, now_ms=0, log=MemoryLog(tables)))
    group = encode_body(SubscriptionGroupConfig(groupName="billing"))
    for silence, is_said in ((0.5, False), (12.4, True), (0.1, False)):
        tables.keeper_silence = silence
        answers = [
            admin.ask(Request.UPDATE_AND_CREATE_TOPIC, topic="orders"),
            admin.ask(Request.UPDATE_AND_CREATE_TOPIC_LIST, b'{"topicConfigList":[{"topicName":"new"}]}'),
            admin.ask(Request.DELETE_TOPIC_IN_BROKER, topic="orders"),
            admin.ask(Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, group),
            admin.ask(Request.DELETE_SUBSCRIPTIONGROUP, groupName="billing"),
        ]
        remark = "done, and not saved yet: the store keeper has made no round for 12 s; see shmq health"
        assert [answer.remark for answer in answers] == [remark if is_said else None] * len(answers)
