"""Questions that are passed on to clients: who is asked, what comes back, and what happens when nothing does."""

from typing import Any

import pytest

from shmq.daemon.broker.broker import Broker
from shmq.daemon.broker.settings import BrokerSettings
from shmq.daemon.logic.effects import Effect, Reply
from shmq.protocol.codes import Request, Response
from shmq.protocol.dialect import MessageQueue, loads
from tests.broker.admin_client import RemoteAdmin, told
from tests.broker.memory_log import MemoryLog


class OneRecord(MemoryLog):
    """A log with one record."""

    def record_at(self, log_position: int) -> bytes | None:
        return b"record" if log_position == 0x100 else None


@pytest.fixture
def broker(tables: Any, settings: BrokerSettings) -> Broker:
    return Broker(tables, settings, now_ms=0, log=OneRecord(tables))


@pytest.fixture
def admin(broker: Broker) -> RemoteAdmin:
    return RemoteAdmin(broker, 1)


@pytest.fixture
def member(broker: Broker) -> RemoteAdmin:
    member = RemoteAdmin(broker, 2)
    member.consume("billing", "orders")
    return member


def replies(effects: list[Effect]) -> list[tuple[int, int, bytes]]:
    return [
        (effect.connection_id, effect.command.code, effect.command.body)
        for effect in effects
        if isinstance(effect, Reply)
    ]


def test_the_answer_of_the_member_is_the_administrators(admin: RemoteAdmin, member: RemoteAdmin) -> None:
    ext = {"consumerGroup": "billing", "clientId": member.client_id, "jstackEnable": "true"}
    effects = admin.effects(307, **ext)
    assert replies(effects) == [], "held until the member has answered"
    ((connection_id, question),) = told(effects, 307)
    assert connection_id == 2 and question.ext == ext and not question.is_oneway
    assert replies(member.answer(question, body=b"{running}")) == [(1, 0, b"{running}")]
    assert member.answer(question, body=b"twice") == []


def test_a_member_that_is_not_there_is_an_error(admin: RemoteAdmin, member: RemoteAdmin) -> None:
    refused = admin.fail(307, consumerGroup="billing", clientId="absent")
    assert refused.code == 1 and str(refused).endswith("The Consumer <billing> <absent> not online")
    assert admin.fail(309, consumerGroup="none", clientId="", msgId="0" * 32).code == 1


def test_a_member_that_does_not_answer_in_time_costs_this_question_only(
    broker: Broker, admin: RemoteAdmin, member: RemoteAdmin
) -> None:
    admin.effects(307, consumerGroup="billing", clientId=member.client_id)
    assert broker.tick(9_999) == []
    ((connection_id, code, _),) = replies(broker.tick(10_001))
    assert (connection_id, code) == (1, Response.CONSUME_MSG_TIMEOUT)


def test_a_member_that_leaves_ends_the_question(broker: Broker, admin: RemoteAdmin, member: RemoteAdmin) -> None:
    admin.effects(307, consumerGroup="billing", clientId=member.client_id)
    ((connection_id, code, _),) = replies(broker.disconnected(2, 1))
    assert (connection_id, code) == (1, Response.CONSUME_MSG_TIMEOUT)


def test_a_message_is_sent_to_one_member_as_it_is_in_the_log(admin: RemoteAdmin, member: RemoteAdmin) -> None:
    message_id = "7F00000100002A9F" + f"{0x100:016X}"
    ext = {"consumerGroup": "billing", "clientId": "", "msgId": message_id}
    ((connection_id, question),) = told(admin.effects(309, **ext), 309)
    assert connection_id == 2 and question.body == b"record"
    assert question.ext == {**ext, "brokerName": "default"}
    result = b'{"consumeResult":"CR_SUCCESS"}'
    assert replies(member.answer(question, body=result)) == [(1, 0, result)]


@pytest.mark.parametrize("message_id", ["x", "7F00000100002A9F", "0" * 31, "Z" * 32, "7F00000100002A9F" + "0" * 16])
def test_an_id_that_names_no_record_asks_no_member(admin: RemoteAdmin, member: RemoteAdmin, message_id: str) -> None:
    effects = admin.effects(309, consumerGroup="billing", clientId="", msgId=message_id)
    assert told(effects, 309) == []
    ((_, code, _),) = replies(effects)
    assert code == Response.SYSTEM_ERROR


def test_where_all_members_stand_is_put_together(broker: Broker, admin: RemoteAdmin, member: RemoteAdmin) -> None:
    other = RemoteAdmin(broker, 3)
    other.consume("billing", "orders")
    effects = admin.effects(223, topic="orders", group="billing", clientAddr="")
    questions = dict(told(effects, Request.GET_CONSUMER_STATUS_FROM_CLIENT))
    assert sorted(questions) == [2, 3] and replies(effects) == []
    queue = b'{"messageQueueTable":{{"brokerName":"default","queueId":0,"topic":"orders"}:7}}'
    assert member.answer(questions[2], body=queue) == []
    ((connection_id, code, body),) = replies(other.answer(questions[3], body=b"{nonsense"))
    assert (connection_id, code) == (1, 0)
    assert loads(body)["consumerTable"] == {
        member.client_id: {MessageQueue("default", 0, "orders"): 7},
        other.client_id: {},
    }
    refused = admin.fail(223, topic="orders", group="none", clientAddr="")
    assert refused.code == 1 and "none" in str(refused)


def test_one_member_may_be_asked_alone(broker: Broker, admin: RemoteAdmin, member: RemoteAdmin) -> None:
    other = RemoteAdmin(broker, 3)
    other.consume("billing", "orders")
    effects = admin.effects(223, topic="orders", group="billing", clientAddr=other.client_id)
    assert [connection for connection, _ in told(effects, Request.GET_CONSUMER_STATUS_FROM_CLIENT)] == [3]
