"""What cannot be is refused with what to do instead, and changes nothing; the same on both transports."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

import shmq
from shmq.protocol.codes import Request
from shmq.protocol.system_topics.transaction import COMMIT, HALF_TOPIC
from shmq.testing import Broker
from tests.client.administration.groups import groups_of
from tests.conformance.conftest import Named
from tests.interop.peers.wire import Wire

CONTROL = [*map(chr, range(0x20)), *map(chr, range(0x7F, 0xA0))]
Ask = Callable[..., tuple[int, str]]


@pytest.fixture
def ask(broker: Broker, transport: str) -> Iterator[Ask]:
    """Send a request as it is, as no client of ours would; returns the code and the words of the answer."""
    if transport == "tcp":
        with Wire(broker.broker_address) as wire:

            def over_tcp(code: int, fields: Mapping[str, Any], body: bytes = b"") -> tuple[int, str]:
                reply = wire.ask(code, {name: str(value) for name, value in fields.items()}, body)
                assert reply is not None
                return reply.code, reply.remark or ""

            yield over_tcp
        return
    with broker.connect() as local:

        def over_the_socket(code: int, fields: Mapping[str, Any], body: bytes = b"") -> tuple[int, str]:
            ext = {name: str(value) for name, value in fields.items()}
            try:
                local._local().wire.control.request(Request(code), ext, body=body)
            except shmq.ShmqError as error:
                return error.code, str(error)
            return 0, ""

        yield over_the_socket


@pytest.mark.parametrize(
    "arguments",
    [
        {"tag": "a|b"},
        {"properties": {"a": "1\x02"}},
        {"properties": {"": "1"}},
        {"queue_id": 99},
        {"queue_id": -1},
        {"delay_level": -1},
        {"delay_level": "soon"},
        {"delay_level": 1.5},
        {"delay": -1},
        {"deliver_at": "tomorrow"},
    ],
    ids=str,
)
def test_a_message_that_cannot_be_is_refused_and_not_stored(
    mq: shmq.Connection, topic: str, arguments: dict[str, Any]
) -> None:
    with pytest.raises((shmq.ShmqError, ValueError)) as refused:
        mq.send(topic, b"x", **arguments)
    assert str(refused.value)
    assert mq.browse(topic) == []


def test_no_property_name_has_a_control_character(mq: shmq.Connection, topic: str) -> None:
    sends: list[Callable[..., Any]] = [
        mq.send,
        mq.send_oneway,
        lambda topic, body, **rest: mq.send_batch(topic, [body], **rest),
        lambda topic, body, **rest: mq.send(topic, body, delay_level=1, **rest),
        lambda topic, body, **rest: mq.request(topic, body, timeout=1.0, **rest),
        mq.producer(group="shop").transaction,
        mq.producer(compression="zlib").send,
    ]
    for send in sends:
        for character in CONTROL:
            with pytest.raises(shmq.UsageError):
                send(topic, b"x", properties={f"a{character}b": "1"})
        for character in "\x01\x02":  # they end a name and a value
            with pytest.raises(shmq.UsageError):
                send(topic, b"x", properties={"name": f"a{character}b"})
    assert mq.browse(topic) == []
    mq.send(topic, b"x", properties={"größe": "two\nlines", "a\u00a0b": "1"})
    assert mq.browse(topic)[0].properties["größe"] == "two\nlines", "a value may hold them"


@pytest.mark.parametrize("group", ["../billing", "..", "a/b", "a b", "", "a\x01b", "g" * 300])
def test_a_group_name_that_cannot_be_is_refused_and_makes_no_group(mq: shmq.Connection, topic: str, group: str) -> None:
    with pytest.raises(shmq.ShmqError) as refused:
        mq.subscribe(topic, group=group)
    assert refused.value.hint
    assert group not in list(mq.admin.groups)


LONG_GROUPS: dict[str, Callable[[shmq.Connection, str, str], object]] = {
    "subscribe": lambda mq, topic, group: mq.subscribe(topic, group=group),
    "broadcasting": lambda mq, topic, group: mq.subscribe(topic, group=group, model="broadcasting"),
    "listener": lambda mq, topic, group: mq.listener(topic, group=group)(print),
    "simple": lambda mq, topic, group: mq.simple_consumer(topic, group=group),
    "simple in the process": lambda mq, topic, group: mq.simple_consumer(topic, group=group, hidden_by="process"),
    "pull": lambda mq, topic, group: mq.pull_consumer(topic, group=group),
    "replier": lambda mq, topic, group: mq.replier(topic, group=group)(lambda message: b""),
    "clone": lambda mq, topic, group: mq.admin.groups["known"].clone(group),
}


def test_a_group_whose_retries_could_have_no_topic_is_refused_where_it_is_given(
    mq: shmq.Connection, topic: str, ask: Ask
) -> None:
    mq.send(topic, b"x")
    with mq.pull_consumer(topic, group="known") as pull:
        pull.poll(1, 10)
        pull.commit()
    before = groups_of(mq)
    for length in (121, 125, 255, 300):
        for name, give in LONG_GROUPS.items():
            with pytest.raises(shmq.InvalidName, match=f"has {length} characters, 120 are allowed") as refused:
                give(mq, topic, "g" * length)
            assert refused.value.hint, name
        for code, fields, body in (
            (Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, f'{{"groupName":"{"g" * length}"}}'),
            (Request.CLONE_GROUP_OFFSET, {"srcGroup": "known", "destGroup": "g" * length, "topic": topic}, ""),
        ):
            status, remark = ask(code, fields, body.encode())
            assert status and f"has {length} characters, 120 are allowed" in remark
    assert groups_of(mq) == before
    with mq.subscribe(topic, group="g" * 120) as subscription:
        assert [message.body for message in subscription.receive(1, 60)] == [b"x"]


def test_a_group_and_a_topic_whose_popped_messages_could_have_no_topic_are_refused_where_they_are_given(
    mq: shmq.Connection, named: Named, ask: Ask
) -> None:
    name, group = named("t" * 60).ljust(70, "t"), named("g" * 50).ljust(60, "g")
    mq.admin.create_topic(name, queues=1)
    mq.send(name, b"x")
    words = "have 130 characters, 119 are allowed"
    with pytest.raises(shmq.InvalidName, match=words) as refused:
        mq.simple_consumer(name, group=group)
    assert refused.value.hint
    wish = f'{{"topic":"{name}","consumerGroup":"{group}","mode":"POP","popShareQueueNum":0}}'
    code, remark = ask(Request.SET_MESSAGE_REQUEST_MODE, {}, wish.encode())
    assert code and words in remark
    assert group not in mq.admin.groups
    with mq.simple_consumer(name, group=group[:49]) as simple:
        assert [message.body for message in simple.receive(1, 60)] == [b"x"]
    with mq.simple_consumer(name, group=group, hidden_by="process") as simple:
        assert [message.body for message in simple.receive(1, 60)] == [b"x"]


@pytest.mark.parametrize("expression", ["region =", "AND", "a = 'x", "a BETWEEN 1", "(a = 1"])
def test_an_expression_that_is_none_is_refused_with_its_place(
    mq: shmq.Connection, topic: str, named: Named, expression: str
) -> None:
    with pytest.raises(shmq.FilterSyntaxError) as refused:
        mq.subscribe(topic, group=named("billing"), where=expression)
    assert refused.value.text is not None and refused.value.offset is not None


@pytest.mark.parametrize("offset", [-1, 1 << 40])
def test_an_offset_that_is_not_stored_is_refused_and_moves_nothing(
    mq: shmq.Connection, topic: str, offset: int, eventually: Callable[..., Any]
) -> None:
    mq.send(topic, b"x", queue_id=0)
    with mq.pull_consumer(topic) as consumer:
        before = consumer.positions()
        with pytest.raises(shmq.ShmqError) as refused:
            consumer.seek(0, offset=offset)
        assert refused.value.hint
        assert consumer.positions() == before


@pytest.mark.parametrize("offset", [-1, 2, 1 << 40])
def test_an_offset_that_is_not_stored_is_not_committed(
    mq: shmq.Connection, topic: str, named: Named, offset: int, ask: Ask
) -> None:
    group = named("billing")
    mq.send(topic, b"x", queue_id=0)
    with mq.pull_consumer(topic) as consumer:
        consumer.commit(group, offsets={0: 1})
        with pytest.raises(shmq.ShmqError) as refused:
            consumer.commit(group, offsets={0: offset})
        assert refused.value.hint and str(offset) in str(refused.value)
        fields = {"consumerGroup": group, "topic": topic, "queueId": 0, "commitOffset": offset}
        code, remark = ask(Request.UPDATE_CONSUMER_OFFSET, fields)
        assert code and str(offset) in remark
        assert consumer.committed(group) == {0: 1}


@pytest.mark.parametrize("offset", [1 << 40, -1, "x"])
def test_the_end_of_a_transaction_that_is_none_is_refused_and_open_ones_stay_open(
    mq: shmq.Connection, broker: Broker, topic: str, named: Named, offset: Any, ask: Ask
) -> None:
    group = named("shop")
    with mq.producer(group=group) as producer, broker.connect() as local:
        normal = mq.send(topic, b"normal")
        tx = producer.transaction(topic, b"open")
        half = local.browse(HALF_TOPIC)[-1]
        right = {"producerGroup": group, "tranStateTableOffset": half.offset, "commitLogOffset": half.log_position}
        right |= {"commitOrRollback": COMMIT, "msgId": tx.id}
        elsewhere = local.browse(topic)[0].log_position
        for wrong in (
            {"tranStateTableOffset": offset},
            {"commitLogOffset": offset},
            {"tranStateTableOffset": offset, "commitLogOffset": offset},
            {"commitLogOffset": elsewhere},
            {"producerGroup": named("other")},
        ):
            code, remark = ask(Request.END_TRANSACTION, {**right, **wrong})
            assert code and remark, wrong
        assert [message.message_id for message in mq.browse(topic)] == [normal.message_id]
        tx.commit()
    assert [message.body for message in mq.browse(topic)] == [b"normal", b"open"]


@pytest.mark.parametrize("name", ["..", "../x", "a/b", "a b", "a\tb", "ü"])
def test_a_request_with_a_name_that_cannot_be_is_refused_and_makes_nothing(
    mq: shmq.Connection, broker: Broker, topic: str, name: str, ask: Ask
) -> None:
    before = groups_of(mq), set(mq.admin.topics)
    commit = {"consumerGroup": name, "topic": topic, "queueId": 0, "commitOffset": 0}
    assert ask(Request.UPDATE_CONSUMER_OFFSET, commit)[0]
    beat = (
        f'{{"clientID":"c@1","producerDataSet":[],"consumerDataSet":[{{"groupName":"{name}","consumeType":'
        f'"CONSUME_PASSIVELY","messageModel":"CLUSTERING","consumeFromWhere":"CONSUME_FROM_FIRST_OFFSET",'
        f'"subscriptionDataSet":[{{"topic":"{topic}","subString":"*","subVersion":1}}]}}]}}'
    )
    assert ask(Request.HEART_BEAT, {}, beat.replace("\t", "\\t").encode())[0]
    assert ask(Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, f'{{"groupName":"{name}"}}'.encode())[0]
    new = {"topic": name, "defaultTopic": "TBW102", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
    new |= {"topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": "false"}
    assert ask(Request.UPDATE_AND_CREATE_TOPIC, new)[0]
    assert (groups_of(mq), set(mq.admin.topics)) == before
    assert not [path for path in broker.directory.rglob("*") if ".." in path.name or path.name == "x"]


def test_a_member_whose_expression_is_none_is_refused(mq: shmq.Connection, topic: str, named: Named, ask: Ask) -> None:
    fields = {"consumerGroup": named("billing"), "topic": topic, "queueId": 0, "queueOffset": 0, "maxMsgNums": 32}
    fields |= {"sysFlag": 4, "commitOffset": 0, "suspendTimeoutMillis": 0, "subVersion": 1, "expressionType": "SQL92"}
    code, remark = ask(Request.PULL_MESSAGE, {**fields, "subscription": "qty >"})
    assert code == 23 and remark


@pytest.mark.parametrize("level", ["soon", "1.5", "9" * 20])
def test_a_message_with_a_delay_level_that_is_none_is_refused_and_waits_nowhere(
    mq: shmq.Connection, broker: Broker, topic: str, level: str, ask: Ask
) -> None:
    fields = {"a": "shop", "b": topic, "c": "TBW102", "d": 8, "e": 0, "f": 0, "g": 1_700_000_000_000, "h": 0}
    fields |= {"i": f"DELAY\x01{level}\x02", "j": 0, "k": "false", "l": 0, "m": "false"}
    with broker.connect() as local:
        waiting = local.admin.topics["SCHEDULE_TOPIC_XXXX"].messages
        code, remark = ask(Request.SEND_MESSAGE_V2, fields, b"x")
        assert code and "a level is a number" in remark
        assert local.admin.topics["SCHEDULE_TOPIC_XXXX"].messages == waiting and mq.browse(topic) == []
