"""Changes of topics and groups are refused where they could not be kept, and answered once slaves have them."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from shmq.daemon.broker.broker import Broker
from shmq.daemon.broker.settings import BrokerSettings
from shmq.daemon.logic.effects import Effect, Reply
from shmq.errors import BrokerBusy, BrokerNotRunning, NotMaster, ReadOnlyStore, SegmentFull, ShmqError, StoreError
from shmq.protocol.body import SubscriptionGroupConfig, encode_body
from shmq.protocol.codes import ONLY_HERE, Request, Response
from shmq.protocol.command import Command
from shmq.protocol.failure import error_of
from shmq.protocol.system_topics.table_marks import TABLES_TOPIC, TablesMark, decode_tables_mark
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


class Confirming:
    """The broker of a master whose slaves confirm, and a client that asks it; a test says what is confirmed."""

    def __init__(self, tables: Any, settings: BrokerSettings) -> None:
        self.tables, self.log = tables, MemoryLog(tables)
        self.log.held_durable_end = 0
        settings = replace(settings, confirms=True, wait_durable=True)
        self.broker = Broker(tables, settings, now_ms=0, log=self.log)
        self.admin = Admin(self.broker)

    def asks(self, code: Request, body: bytes = b"", /, **ext: str) -> list[Command]:
        """Ask for a change; return the answers that come before the mark is stored."""
        return self.replies(self.admin.effects(code, body, **ext))

    def wakes(self, now_ms: int = 0) -> list[Command]:
        """Return the answers when the broker is woken, which stores a mark."""
        return self.replies(self.broker.woken(now_ms))

    def confirms(self) -> list[Command]:
        """Return the answers that come when all of the log is confirmed."""
        self.log.held_durable_end = self.log.end
        return self.replies(self.broker.flushed(self.log.end, 0))

    def replies(self, effects: Sequence[Effect]) -> list[Command]:
        return [effect.command for effect in effects if isinstance(effect, Reply)]

    @property
    def marks(self) -> list[TablesMark]:
        topic = self.tables.topic(TABLES_TOPIC)
        records = self.log.records.get(topic.queues[0], []) if topic is not None else []
        found = [decode_tables_mark(record.body) for _, record, _ in records]
        assert None not in found
        return [mark for mark in found if mark is not None]


@pytest.fixture
def confirming(tables: Any, settings: BrokerSettings) -> Confirming:
    return Confirming(tables, settings)


def test_a_change_is_answered_when_its_mark_is_confirmed(confirming: Confirming) -> None:
    group = SubscriptionGroupConfig(groupName="billing", retryMaxTimes=3)
    assert confirming.asks(Request.UPDATE_AND_CREATE_TOPIC, topic="orders", writeQueueNums="3") == []
    assert confirming.asks(Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, encode_body(group)) == []
    assert confirming.wakes() == []
    topics, groups = confirming.marks
    assert [(each.topicName, each.writeQueueNums) for each in topics.topics] == [("orders", 3)]
    assert [(each.groupName, each.retryMaxTimes) for each in groups.groups] == [("billing", 3)]
    assert [answer.code for answer in confirming.confirms()] == [Response.SUCCESS] * 2
    assert confirming.wakes() == [] and len(confirming.marks) == 2, "nothing else is stored"


def test_what_is_deleted_is_in_the_mark(confirming: Confirming) -> None:
    for code, ext in ((Request.UPDATE_AND_CREATE_TOPIC, {}), (Request.DELETE_TOPIC_IN_BROKER, {})):
        assert confirming.asks(code, topic="orders", **ext) == []
    assert confirming.asks(Request.UPDATE_AND_CREATE_TOPIC, topic="invoices") == []
    confirming.wakes()
    (mark,) = confirming.marks
    assert (mark.deleted_topics, [each.topicName for each in mark.topics]) == (["orders"], ["invoices"])
    assert len(confirming.confirms()) == 3


def test_who_finds_a_topic_there_waits_for_what_made_it(confirming: Confirming) -> None:
    asked = {"topic": "orders", "onlyIfMissing": "true"}
    assert confirming.asks(Request.UPDATE_AND_CREATE_TOPIC, **asked) == []
    assert confirming.asks(Request.UPDATE_AND_CREATE_TOPIC, **asked) == [], "it is in no mark yet"
    confirming.wakes()
    assert confirming.asks(Request.UPDATE_AND_CREATE_TOPIC, **asked) == [], "its mark is not confirmed yet"
    assert [answer.ext["created"] for answer in confirming.confirms()] == ["true", "false", "false"]
    assert [answer.ext["created"] for answer in confirming.asks(Request.UPDATE_AND_CREATE_TOPIC, **asked)] == ["false"]
    assert len(confirming.marks) == 1


def test_a_mark_that_finds_the_log_busy_is_stored_a_moment_later(confirming: Confirming) -> None:
    confirming.log.error = BrokerBusy("the append lock is taken")
    assert confirming.asks(Request.UPDATE_AND_CREATE_TOPIC, topic="orders") == []
    assert confirming.wakes() == [] == confirming.marks
    confirming.log.error = None
    assert confirming.wakes(1_000) == []
    assert [answer.code for answer in confirming.confirms()] == [Response.SUCCESS]


@pytest.mark.parametrize("error", [ReadOnlyStore("too few slaves are in sync"), BrokerBusy("the append lock is taken")])
def test_a_change_that_the_log_takes_no_mark_of_is_said_to_be_on_this_host_only(
    confirming: Confirming, error: ShmqError
) -> None:
    confirming.log.error = error
    assert confirming.asks(Request.UPDATE_AND_CREATE_TOPIC, topic="orders") == []
    (answer,) = [*confirming.wakes(), *confirming.wakes(60_000)]
    assert (answer.code, answer.remark) == (Response.SUCCESS, f"{ONLY_HERE}: {error}")
    confirming.log.error = None
    assert confirming.asks(Request.UPDATE_AND_CREATE_TOPIC, topic="invoices") == []
    confirming.wakes()
    assert [each.topicName for each in confirming.marks[0].topics] == ["orders", "invoices"]


@pytest.mark.parametrize("error", [NotMaster("another one leads"), BrokerNotRunning("the segments were given up")])
def test_a_master_that_was_relieved_answers_with_the_refusal_of_its_log(
    confirming: Confirming, error: ShmqError
) -> None:
    confirming.log.error = error
    assert confirming.asks(Request.UPDATE_AND_CREATE_TOPIC, topic="orders") == []
    (answer,) = confirming.wakes()
    assert isinstance(error_of(answer), type(error))


def test_a_change_that_is_not_confirmed_in_time_says_so(confirming: Confirming) -> None:
    assert confirming.asks(Request.UPDATE_AND_CREATE_TOPIC, topic="orders") == []
    confirming.wakes()
    (answer,) = confirming.replies(confirming.broker.tick(60_000))
    assert (answer.code, answer.remark) == (
        Response.FLUSH_DISK_TIMEOUT,
        "this host has it, and it was not safe in 5 s",
    )


def test_a_change_that_is_confirmed_when_its_time_is_over_is_done(confirming: Confirming) -> None:
    assert confirming.asks(Request.UPDATE_AND_CREATE_TOPIC, topic="orders") == []
    confirming.wakes()
    confirming.log.held_durable_end = confirming.log.end
    (answer,) = confirming.replies(confirming.broker.tick(60_000))
    assert (answer.code, answer.remark) == (Response.SUCCESS, None)


def test_who_has_waited_for_a_busy_log_for_a_short_time_goes_on_waiting(confirming: Confirming) -> None:
    confirming.log.error = BrokerBusy("the append lock is taken")
    assert confirming.asks(Request.UPDATE_AND_CREATE_TOPIC, topic="early") == []
    create = Command(code=Request.UPDATE_AND_CREATE_TOPIC, opaque=7, ext={"topic": "late"})
    assert confirming.replies(confirming.broker.handle(1, create, 4_900)) == []
    (answer,) = confirming.wakes(5_100)
    assert answer.remark is not None and answer.remark.startswith(ONLY_HERE) and answer.opaque != 7
    confirming.log.error = None
    assert confirming.wakes(5_200) == []
    assert [answer.opaque for answer in confirming.confirms()] == [7]


def test_what_was_done_of_a_request_that_fails_in_the_middle_is_marked(confirming: Confirming) -> None:
    confirming.tables.topic_max = len(confirming.tables.all_topics) + 1
    listed = b'{"topicConfigList":[{"topicName":"first"},{"topicName":"second"}]}'
    (refusal,) = confirming.asks(Request.UPDATE_AND_CREATE_TOPIC_LIST, listed)
    assert isinstance(error_of(refusal), SegmentFull)
    confirming.tables.topic_max += 10
    assert confirming.asks(Request.UPDATE_AND_CREATE_TOPIC, topic="third") == []
    confirming.wakes()
    assert [each.topicName for each in confirming.marks[0].topics] == ["first", "third"]


def test_what_a_client_that_is_gone_has_changed_is_marked_all_the_same(confirming: Confirming) -> None:
    assert confirming.asks(Request.UPDATE_AND_CREATE_TOPIC, topic="orders") == []
    confirming.broker.disconnected(1, 0)
    assert confirming.wakes() == []
    assert [each.topicName for each in confirming.marks[0].topics] == ["orders"]
    assert confirming.confirms() == []
