"""Requests and their replies between processes of this host, TCP clients, and both, over one bridge and over three."""

import asyncio
import os
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

import shmq
import shmq.aio
from shmq.client.refusals import may_be_taken_elsewhere
from shmq.client.requests.replier import Replier, is_expired
from shmq.client.requests.requester import request_text
from shmq.errors import BrokerNotRunning, RequestTimeout, TopicNotFound, UsageError
from shmq.properties import parse_properties
from shmq.protocol.request_reply import SharedAddress, reply_topic
from shmq.testing import Broker

Eventually = Callable[..., Any]
WAYS = ["local", "tcp"]


@pytest.fixture(scope="module", params=[1, 3], ids=["one bridge", "three bridges"])
def broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    with Broker(tcp=True, bridges=request.param) as broker:
        yield broker


@pytest.fixture
def topic(broker: Broker, request: pytest.FixtureRequest) -> str:
    name = "prices-" + "".join(letter if letter.isalnum() else "-" for letter in request.node.name)[-80:]
    with broker.connect() as mq:
        mq.admin.create_topic(name, queues=2)
    return name


def connection(broker: Broker, way: str) -> shmq.Connection:
    return broker.connect() if way == "local" else shmq.connect(f"rocketmq://{broker.name_server}")


@pytest.fixture
def replier(broker: Broker, topic: str) -> Iterator[Callable[[str], shmq.Connection]]:
    made: list[shmq.Connection] = []

    def start(way: str, function: Callable[[Any], Any] = lambda message: b"re:" + message.body) -> shmq.Connection:
        mq = connection(broker, way)
        made.append(mq)
        mq.replier(topic, group=f"g-{topic}", threads=4)(function)
        mq.start()
        return mq

    yield start
    for mq in made:
        mq.close()


@pytest.mark.parametrize("replier_way", WAYS)
@pytest.mark.parametrize("requester_way", WAYS)
def test_a_request_gets_the_reply_to_it_over_each_pair_of_ways(
    broker: Broker, topic: str, replier: Callable[..., Any], requester_way: str, replier_way: str
) -> None:
    replier(replier_way)
    with connection(broker, requester_way) as mq:
        first = mq.request(topic, b"apple", tag="fruit", key="k-1", properties={"region": "eu"}, timeout=60)
        assert first.body == b"re:apple" and first.topic == reply_topic("DefaultCluster")
        assert first.properties["MSG_TYPE"] == "reply"
        bodies = [b"%d" % number for number in range(20)]
        assert [mq.request(topic, body, timeout=60).body for body in bodies] == [b"re:" + body for body in bodies]


@pytest.mark.parametrize("way", WAYS)
def test_threads_that_share_a_connection_get_their_own_replies(
    broker: Broker, topic: str, replier: Callable[..., Any], way: str
) -> None:
    replier("local")
    answers: dict[bytes, bytes] = {}
    with connection(broker, way) as mq:

        def ask(name: int) -> None:
            for number in range(25):
                body = b"%d-%d" % (name, number)
                answers[body] = mq.request(topic, body, timeout=60).body

        threads = [threading.Thread(target=ask, args=(name,)) for name in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert len(answers) == 100 and all(reply == b"re:" + body for body, reply in answers.items())


@pytest.mark.parametrize("way", WAYS)
def test_without_a_reply_the_timeout_says_what_was_waited_for(broker: Broker, topic: str, way: str) -> None:
    with connection(broker, way) as mq, pytest.raises(RequestTimeout, match=rf'"{topic}" within 0\.3 s') as raised:
        mq.request(topic, b"unanswered", timeout=0.3)
    assert raised.value.hint


@pytest.mark.parametrize("way", WAYS)
def test_a_reply_that_comes_too_late_is_dropped(
    broker: Broker, topic: str, replier: Callable[..., Any], eventually: Eventually, way: str
) -> None:
    go, done = threading.Event(), threading.Event()

    def slowly(message: shmq.Message) -> bytes:
        if message.body == b"slow":
            go.wait(60)
            done.set()
        return message.body

    replier(way, slowly)
    with connection(broker, way) as mq:
        assert mq.request(topic, b"warm", timeout=60).body == b"warm"
        with pytest.raises(RequestTimeout):
            mq.request(topic, b"slow", timeout=0.2)
        go.set()
        eventually(done.is_set)
        assert mq.request(topic, b"next", timeout=60).body == b"next"


def test_a_replier_may_return_nothing_and_sees_plain_messages_too(
    broker: Broker, topic: str, replier: Callable[..., Any], eventually: Eventually
) -> None:
    seen: list[bytes] = []
    replier("local", lambda message: seen.append(message.body))
    with broker.connect() as mq:
        mq.send(topic, b"plain")
        with pytest.raises(RequestTimeout):
            mq.request(topic, b"asked", timeout=0.3)
    eventually(lambda: set(seen) == {b"plain", b"asked"})


def test_a_request_whose_requester_gave_up_is_not_handled(
    broker: Broker, topic: str, replier: Callable[..., Any]
) -> None:
    seen: list[bytes] = []
    with broker.connect() as mq:
        with pytest.raises(RequestTimeout):
            mq.request(topic, b"old", timeout=0.05, queue_id=0)
        replier("local", lambda message: seen.append(message.body) or b"")
        mq.request(topic, b"new", timeout=60, queue_id=0)
    assert seen == [b"new"]


def test_a_forked_child_asks_for_itself(broker: Broker, topic: str, replier: Callable[..., Any]) -> None:
    replier("local")
    with broker.connect() as mq:
        assert mq.request(topic, b"parent", timeout=60).body == b"re:parent"
        child = os.fork()
        if child == 0:
            code = 1
            try:
                code = 0 if mq.request(topic, b"child", timeout=60).body == b"re:child" else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert mq.request(topic, b"again", timeout=60).body == b"re:again"


def test_closing_ends_a_request_of_another_thread(broker: Broker, topic: str, eventually: Eventually) -> None:
    mq = broker.connect()
    raised: list[BaseException] = []

    def ask() -> None:
        try:
            mq.request(topic, b"x", timeout=30)
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    eventually(lambda: mq._session is not None and not mq._session.requests.is_idle)  # type: ignore[attr-defined]
    mq.close()
    thread.join(60)
    assert not thread.is_alive() and isinstance(raised[0], UsageError)


def test_a_broker_that_restarts_serves_requests_again(eventually: Eventually) -> None:
    with Broker() as broker, broker.connect() as mq, broker.connect() as other:
        other.replier("prices", group="pricing")(lambda message: message.body)
        other.start()
        assert mq.request("prices", b"1", timeout=60).body == b"1"
        broker.restart()

        def asked() -> bool:
            try:
                return mq.request("prices", b"2", timeout=2).body == b"2"
            except shmq.ShmqError:
                return False

        eventually(asked, timeout=60)


@pytest.mark.parametrize("way", WAYS)
def test_asyncio_twins_ask_and_answer_many_at_once(broker: Broker, topic: str, way: str) -> None:
    url = broker.url if way == "local" else f"rocketmq://{broker.name_server}"

    async def main() -> None:
        async with shmq.aio.connect(url) as mq, shmq.aio.connect(url) as other:

            @other.replier(topic, group=f"g-{topic}", threads=8)
            async def price(message: shmq.aio.Message) -> bytes:
                return b"re:" + message.body

            await other.start()
            replies = await asyncio.gather(*(mq.request(topic, b"%d" % number, timeout=60) for number in range(30)))
            assert [reply.body for reply in replies] == [b"re:%d" % number for number in range(30)]
            await other.stop()
            with pytest.raises(RequestTimeout):
                await mq.request(topic, b"unanswered", timeout=0.2)

    asyncio.run(asyncio.wait_for(main(), 60))


def test_an_address_in_shared_memory_is_no_client_id() -> None:
    assert SharedAddress.parse(str(SharedAddress(7, "host@1#2"))) == SharedAddress(7, "host@1#2")
    for text in ("10.0.0.7@221", "shm:", "shm:x:y", "shm:-1:y", "shm:00001:y", "shm:1:"):
        assert SharedAddress.parse(text) is None


def test_request_properties_may_not_be_the_callers() -> None:
    assert parse_properties(request_text({"a": "b"}, "id", 0.5)) == {"CORRELATION_ID": "id", "TTL": "500", "a": "b"}
    for name in ("CORRELATION_ID", "REPLY_TO_CLIENT", "TTL"):
        with pytest.raises(UsageError, match="reserved"):
            request_text({name: "x"}, "id", 1.0)


def test_a_reply_whose_brokers_have_left_the_name_servers_may_be_sent_again() -> None:
    def write_queues(topic: str, *, with_master: bool) -> list[int]:
        raise TopicNotFound(f'topic "{topic}" does not exist')

    queues: Any = SimpleNamespace(write_queues=write_queues)
    properties = {"REPLY_TO_CLIENT": "a", "CORRELATION_ID": "b", "CLUSTER": "c"}
    request: Any = SimpleNamespace(properties=properties, topic="prices", queue_id=0)
    wire: Any = None
    with pytest.raises(BrokerNotRunning, match="c_REPLY_TOPIC") as raised:
        Replier(wire, queues).reply(request, b"reply")
    assert may_be_taken_elsewhere(raised.value)


def test_clocks_of_two_hosts_may_differ_by_a_minute() -> None:
    properties = {"REPLY_TO_CLIENT": "a", "CORRELATION_ID": "b", "TTL": "1000"}
    message: Any = SimpleNamespace(properties=properties, store_ms=0)
    assert is_expired(message, 10_000, same_clock=True) and not is_expired(message, 10_000, same_clock=False)
    assert is_expired(message, 70_000, same_clock=False)
    message.properties = {**message.properties, "TTL": "soon"}
    assert not is_expired(message, 10_000, same_clock=True)
