"""What an administrator asks a member through the broker: it answers over TCP, from one bridge and from three."""

import json
from asyncio import CancelledError
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import shmq
from shmq.protocol.codes import Request, Response
from shmq.protocol.command import Command
from shmq.testing import Broker
from tests.bridge.live_bridge import RawPeer

SEND = dict(zip("abcdefghi", ("p", "orders", "TBW102", "4", "0", "0", "0", "0", ""), strict=True))


class Listening:
    """A member of group billing, and an administrator that speaks RocketMQ's bytes."""

    def __init__(self, broker: Broker) -> None:
        host, port = broker.broker_address.split(":")
        self.admin = RawPeer((host, int(port)))
        self.mq = shmq.connect(f"rocketmq://{broker.name_server}")
        self.calls: list[bytes] = []
        self.failure: BaseException | None = None
        self.mq.listener("orders", group="billing")(self.handle)
        self.mq.start()

    def handle(self, message: shmq.Message) -> None:
        self.calls.append(message.body)
        if self.failure is not None:
            raise self.failure

    def send(self, body: bytes) -> str:
        """Store a message; return its offset id."""
        reply = self.admin.ask(Request.SEND_MESSAGE_V2, SEND, body)
        assert reply.code == Response.SUCCESS
        return reply.ext["msgId"]

    def consume(self, message_id: str, *, group: str = "billing", client_id: str = "") -> Command:
        """Have a member consume a message now."""
        ext = {"consumerGroup": group, "clientId": client_id, "msgId": message_id}
        return self.admin.ask(Request.CONSUME_MESSAGE_DIRECTLY, ext)

    def close(self) -> None:
        self.mq.close()
        self.admin.close()


@pytest.fixture(scope="module", params=[1, 3], ids=["one bridge", "three bridges"])
def broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    with Broker(tcp=True, bridges=request.param) as broker, broker.connect() as mq:
        mq.admin.create_topic("orders", queues=1)
        yield broker


@pytest.fixture
def member(broker: Broker, eventually: Callable[..., Any]) -> Iterator[Listening]:
    member = Listening(broker)
    first = member.send(b"first")
    eventually(lambda: b"first" in member.calls)
    assert len(first) == 32
    member.calls.clear()
    yield member
    member.close()


def result_of(reply: Command) -> dict[str, Any]:
    assert reply.code == Response.SUCCESS, reply.remark
    found: dict[str, Any] = json.loads(reply.body)
    return found


def test_a_listener_consumes_a_message_now_and_tells_how_it_ended(
    member: Listening, eventually: Callable[..., Any]
) -> None:
    message_id = member.send(b"again")
    eventually(lambda: member.calls == [b"again"])
    for client_id in ("", member.mq.client_id):
        result = result_of(member.consume(message_id, client_id=client_id))
        assert (result["consumeResult"], result["remark"], result["order"]) == ("CR_SUCCESS", None, False)
        assert result["spentTimeMills"] >= 0
    assert member.calls == [b"again"] * 3


@pytest.mark.parametrize(
    ("failure", "result", "remark"),
    [
        (shmq.Retry("not yet"), "CR_LATER", "not yet"),
        (shmq.Reject("never"), "CR_ROLLBACK", "never"),
        (ValueError("no such order"), "CR_THROW_EXCEPTION", "ValueError: no such order"),
        (CancelledError("late"), "CR_THROW_EXCEPTION", "CancelledError: late"),
        (SystemExit(3), "CR_THROW_EXCEPTION", "SystemExit: 3"),
    ],
)
def test_what_the_listener_raises_is_the_administrators_answer(
    member: Listening, eventually: Callable[..., Any], failure: BaseException, result: str, remark: str
) -> None:
    message_id = member.send(b"bad")
    eventually(lambda: member.calls == [b"bad"])
    member.failure = failure
    found = result_of(member.consume(message_id))
    assert found["consumeResult"] == result and remark in found["remark"]


def test_a_member_without_a_listener_says_so_and_one_that_is_not_there_is_missed(
    broker: Broker, member: Listening
) -> None:
    message_id = member.send(b"x")
    with shmq.connect(f"rocketmq://{broker.name_server}") as mq, mq.subscribe("orders", group="silent"):
        found = result_of(member.consume(message_id, group="silent"))
        assert (found["consumeResult"], found["remark"]) == ("CR_LATER", "this consumer has no listener")
    missing = member.consume(message_id, client_id="another-client")
    assert missing.code == Response.SYSTEM_ERROR and "not online" in str(missing.remark)
    beyond = member.consume(message_id[:16] + "00000000FFFFFFFF")
    assert beyond.code == Response.SYSTEM_ERROR and "no message" in str(beyond.remark)


def test_the_running_info_names_the_client_and_its_queues(member: Listening) -> None:
    ext = {"consumerGroup": "billing", "clientId": member.mq.client_id, "jstackEnable": "false"}
    reply = member.admin.ask(Request.GET_CONSUMER_RUNNING_INFO, ext)
    assert reply.code == Response.SUCCESS
    assert b"shmq" in reply.body and b'"topic":"orders"' in reply.body
