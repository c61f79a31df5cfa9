"""What is served is in the table, what is refused is unknown, and fields are judged before a handler runs."""

from typing import Any

import pytest

from shmq.addresses import Address
from shmq.daemon.broker.broker import Broker
from shmq.daemon.broker.settings import BrokerSettings
from shmq.daemon.logic.access.admission import Admission
from shmq.daemon.logic.access.rules import AccessRules
from shmq.daemon.logic.effects import Reply
from shmq.daemon.logic.requests import Peer
from shmq.protocol.codes import Request, Response
from shmq.protocol.command import FLAG_ONEWAY, Command
from shmq.protocol.request_table import REQUESTS, RequestClass
from tests.broker.memory_log import MemoryLog
from tests.tables.rows import every_row

LOCAL, REMOTE = 1, 2
REFUSED = [code for code, spec in REQUESTS.items() if spec.request_class is RequestClass.REFUSED]


@pytest.fixture
def broker(tables: Any, settings: BrokerSettings) -> Broker:
    broker = Broker(tables, settings, now_ms=0, log=MemoryLog(tables))
    broker.connected(LOCAL, Peer(pid=1, uid=1, gid=1, start=1, pid_namespace=settings.pid_namespace), 0)
    broker.connected(REMOTE, None, 0)
    return broker


def answer(broker: Broker, connection_id: int, code: int, ext: dict[str, str] | None = None) -> Command:
    (effect, *_) = broker.handle(connection_id, Command(code=code, opaque=3, ext=ext or {}), 0)
    assert isinstance(effect, Reply)
    return effect.command


def test_everything_that_is_served_is_in_the_table_and_not_refused(broker: Broker) -> None:
    assert broker.served_codes <= set(REQUESTS)
    for code in broker.served_codes:
        assert REQUESTS[code].request_class is not RequestClass.REFUSED, code
        assert REQUESTS[code].answers == "broker", code


@every_row(
    "code",
    [code for code, spec in REQUESTS.items() if spec.request_class is RequestClass.REFUSED] + [9999, -1, 1 << 30],
)
def test_a_refused_or_unknown_code_is_answered_as_rocketmq_answers_one_it_does_not_know(
    broker: Broker, code: int
) -> None:
    for connection_id in (LOCAL, REMOTE):
        reply = answer(broker, connection_id, code)
        assert (reply.code, reply.remark) == (
            Response.REQUEST_CODE_NOT_SUPPORTED,
            f" request type {code} not supported",
        )
        assert broker.handle(connection_id, Command(code=code, flag=FLAG_ONEWAY), 0) == []


def test_our_own_codes_exist_on_the_local_socket_only(broker: Broker) -> None:
    assert answer(broker, LOCAL, Request.STATUS).code == Response.SUCCESS
    for code in (Request.ATTACH, Request.STATUS, Request.OFFSET_SLOTS):
        assert answer(broker, REMOTE, code, {"clientId": "c"}).code == Response.REQUEST_CODE_NOT_SUPPORTED


def test_a_missing_field_over_tcp_is_rocketmqs_error_and_changes_nothing(broker: Broker, tables: Any) -> None:
    fields = {
        "topic": "t", "defaultTopic": "TBW102", "readQueueNums": "4", "writeQueueNums": "4", "perm": "6",
        "topicFilterType": "SINGLE_TAG", "order": "false",
    }  # fmt: skip
    for name in fields:
        reply = answer(broker, REMOTE, Request.UPDATE_AND_CREATE_TOPIC, {k: v for k, v in fields.items() if k != name})
        assert (reply.code, reply.remark) == (Response.SYSTEM_ERROR, f"the custom field <{name}> is null")
    wrong = answer(broker, REMOTE, Request.UPDATE_AND_CREATE_TOPIC, fields | {"perm": "six"})
    assert wrong.code == Response.SYSTEM_ERROR and "perm" in (wrong.remark or "")
    assert tables.topic("t") is None
    assert answer(broker, REMOTE, Request.UPDATE_AND_CREATE_TOPIC, fields).code == Response.SUCCESS
    assert tables.topic("t") is not None


def test_a_local_client_may_leave_out_what_has_a_default(broker: Broker, tables: Any) -> None:
    assert answer(broker, LOCAL, Request.UPDATE_AND_CREATE_TOPIC, {"topic": "t"}).code == Response.SUCCESS
    assert tables.topic("t") is not None


def test_rules_hold_for_tcp_only_and_new_ones_count_at_once(tables: Any, settings: BrokerSettings) -> None:
    admission = Admission(AccessRules([]))
    broker = Broker(tables, settings, now_ms=0, log=MemoryLog(tables), admission=admission)
    broker.connected(LOCAL, Peer(pid=1, uid=1, gid=1, start=1, pid_namespace=settings.pid_namespace), 0)
    broker.connected(REMOTE, None, 0, remote=Address("10.0.0.7", 4711))
    list_topics = Request.GET_ALL_TOPIC_CONFIG
    assert answer(broker, LOCAL, list_topics).code == Response.SUCCESS
    refused = answer(broker, REMOTE, list_topics)
    assert (refused.code, refused.remark) == (Response.SYSTEM_ERROR, "No accessKey is configured")
    admission.rules = AccessRules([], ["10.0.0.*"])
    assert answer(broker, REMOTE, list_topics).code == Response.SUCCESS


def test_with_rules_and_no_account_no_served_code_answers_anything_else(tables: Any, settings: BrokerSettings) -> None:
    broker = Broker(tables, settings, now_ms=0, log=MemoryLog(tables), admission=Admission(AccessRules([])))
    broker.connected(REMOTE, None, 0, remote=Address("10.0.0.7", 4711))
    for code in [*REQUESTS, 9999]:
        reply = answer(broker, REMOTE, code)
        refused = reply.remark == "No accessKey is configured"
        assert refused or reply.code == Response.REQUEST_CODE_NOT_SUPPORTED, code
