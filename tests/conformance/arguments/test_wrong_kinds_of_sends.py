"""A send with an argument of a wrong kind says which, what it is and what to type: on this host and over TCP alike."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import shmq
from shmq.properties import RESERVED_PROPERTIES
from shmq.testing import Broker
from tests.tables.rows import every_row

NO_TEXT = (3, 1.5, b"b", [], {}, object(), True, 2**70, float("nan"))
NO_TEXTS = (3, 1.5, b"b", b"", "text", "", [1], ["a", None], {1: "a"}, object(), True, float("nan"))
NO_PAIRS = (3, 1.5, "text", [], [("a", "b")], {"a": 1}, {1: "a"}, object(), True, float("nan"))
NO_NUMBER = (1.5, "1", b"b", [], {}, object(), float("nan"), float("inf"))
NO_SECONDS = ("x", b"b", [], {}, object(), float("nan"), -1, -0.5)
NO_FLAG = (*NO_NUMBER,)
GAPS = memoryview(b"abcdef")[::2]
NO_BODY = (None, 3, 1.5, [], {}, "text", object())
NO_BODIES = (None, 3, 1.5, b"b", "text", object(), [3], ["text"], [None])
NO_NAME = (None, *NO_TEXT)
NO_COUNT = ("8", b"b", [], {}, 1.5, True, 0, -1, 2**70, float("nan"), float("inf"), object())

WRONG: dict[str, tuple[Any, ...]] = {
    "tag": NO_TEXT,
    "key": NO_TEXT,
    "keys": NO_TEXTS,
    "properties": (*NO_PAIRS, b"", b"a\x01b\x02"),
    "message_group": NO_TEXT,
    "queue_id": NO_NUMBER,
    "flag": (*NO_FLAG, 2**70, 2**32, -(2**31) - 1),
    "timeout": NO_SECONDS,
}
OF_BATCHES = ("tag", "keys", "properties", "message_group", "queue_id", "timeout")
OF_SLOTS = ("tag", "key", "properties", "message_group", "queue_id", "timeout")
TYPED = {
    "tag": 'tag="fruit"',
    "key": 'key="order-42"',
    "properties": 'properties={"region": "eu"}',
    "message_group": 'message_group="customer-7"',
    "queue_id": "queue_id=0",
    "flag": "flag=1",
    "timeout": "timeout=0.5",
}


def write(mq: shmq.Connection, topic: Any, size: Any, **arguments: Any) -> None:
    with mq.reserve(topic, size, **arguments) as slot:
        slot.view[:] = bytes(len(slot.view))


@pytest.fixture(scope="module")
def connections() -> Iterator[tuple[shmq.Connection, shmq.Connection]]:
    with (
        Broker(tcp=True) as broker,
        broker.connect() as local,
        shmq.connect(f"rocketmq://{broker.name_server}") as remote,
    ):
        local.admin.create_topic("orders", queues=1)
        yield local, remote


Pair = tuple[shmq.Connection, shmq.Connection]


def said(connections: Pair, call: Callable[..., object], *given: Any) -> shmq.UsageError:
    """Return the error that both ways raise, in the same words."""
    errors = []
    for mq in connections:
        with pytest.raises(shmq.UsageError) as caught:
            call(mq, *given)
        errors.append(caught.value)
    local, remote = errors
    assert (type(local), str(local), local.hint) == (type(remote), str(remote), remote.hint)
    return local


def stored(mq: shmq.Connection) -> int:
    return sum(queue.offset_max for queue in mq.admin.topics["orders"].queues)


# What is of the right kind and no message can have, and what is said of it.
IMPOSSIBLE: tuple[tuple[dict[str, Any], str], ...] = (
    ({"tag": ""}, "tag is empty"),
    ({"tag": "a||b"}, "tag 'a||b' holds '|', which separates tags"),
    ({"tag": "a\n"}, "tag 'a\\n' holds the control character '\\n'"),
    ({"tag": "\ud800"}, "tag holds '\\ud800', which UTF-8 cannot carry"),
    ({"tag": "*"}, "tag '*' means every tag in a subscription"),
    ({"tag": " a"}, "tag ' a' has a blank around it"),
    ({"tag": "a "}, "tag 'a ' has a blank around it"),
    ({"tag": "a\x00b"}, "tag 'a\\x00b' holds the control character '\\x00'"),
    ({"tag": "a\x7f"}, "tag 'a\\x7f' holds the control character '\\x7f'"),
    ({"tag": "a\x85"}, "tag 'a\\x85' holds the control character '\\x85'"),
    ({"key": ""}, "key is empty"),
    ({"key": "a b"}, "key 'a b' holds a blank, which separates keys"),
    ({"keys": ["a", "b c"]}, "key 'b c' holds a blank, which separates keys"),
    ({"keys": [""]}, "key is empty"),
    ({"key": "\x01"}, "key '\\x01' holds the control character '\\x01'"),
    ({"key": "\ud800"}, "key holds '\\ud800', which UTF-8 cannot carry"),
    ({"message_group": ""}, "message_group is empty"),
    ({"message_group": "a\x02"}, "message_group 'a\\x02' holds the control character '\\x02'"),
    ({"message_group": "\ud800"}, "message_group holds '\\ud800', which UTF-8 cannot carry"),
    *(({"properties": {name: "x"}}, f"the property {name} is reserved") for name in sorted(RESERVED_PROPERTIES)),
    ({"properties": {"": "x"}}, "the property '' has an empty key"),
    ({"properties": {"a": ""}}, "the property 'a' has an empty value"),
    ({"properties": {"a\x01": "x"}}, "the property 'a\\x01' holds '\\x01', which separates properties"),
    ({"properties": {"a\x03": "x"}}, "the property name 'a\\x03' holds the control character '\\x03'"),
    ({"properties": {"a": "x\x02"}}, "the property 'a' holds '\\x02', which separates properties"),
    ({"properties": {"a": "\ud800"}}, "the properties hold '\\ud800', which UTF-8 cannot carry"),
)

CALLS: dict[str, tuple[Callable[..., object], tuple[str, ...]]] = {
    "send": (lambda mq, **named: mq.send("orders", b"x", **named), tuple(WRONG)),
    "send_oneway": (lambda mq, **named: mq.send_oneway("orders", b"x", **named), tuple(WRONG)),
    "send_delayed": (
        lambda mq, **named: mq.send("orders", b"x", delay=60, **named),
        ("tag", "key", "keys", "properties", "message_group"),
    ),
    "send_batch": (lambda mq, **named: mq.send_batch("orders", [b"x"], **named), OF_BATCHES),
    "reserve": (lambda mq, **named: write(mq, "orders", 3, **named), OF_SLOTS),
    "send_nowait": (lambda mq, **named: _sent_later(mq, **named), tuple(WRONG)),
    "request": (
        lambda mq, **named: mq.request("orders", b"x", **{"timeout": 0.05} | named),
        ("tag", "key", "keys", "properties", "message_group", "queue_id"),
    ),
    "transaction": (lambda mq, **named: _began(mq, **named), tuple(WRONG)),
    "packed": (lambda mq, **named: _sent_packed(mq, **named), tuple(WRONG)),
}


def _sent_later(mq: shmq.Connection, **named: Any) -> None:
    with mq.producer() as producer:
        producer.send_nowait("orders", b"x", **named).result(60)


def _began(mq: shmq.Connection, **named: Any) -> None:
    with mq.producer(group="shop") as producer:
        producer.transaction("orders", b"x", **named)


def _sent_packed(mq: shmq.Connection, **named: Any) -> None:
    with mq.producer(compression="zlib") as producer:
        producer.send("orders", bytes(8192), **named)


@every_row("call", CALLS)
def test_a_keyword_of_a_wrong_kind_is_named_with_what_was_given_and_what_to_type(connections: Pair, call: str) -> None:
    make, names = CALLS[call]
    before = stored(connections[0])
    for name in names:
        for bad in WRONG[name]:
            if call == "send_batch" and bad == ["a", None]:
                continue  # a body without a key
            error = said(connections, lambda mq, named: make(mq, **named), {name: bad})
            assert str(error).startswith(f"{name} is ") and f"{bad!r:.80}" in str(error), (name, bad, str(error))
            assert TYPED.get(name, "") in error.hint and error.hint, (name, bad)
            assert isinstance(error, TypeError), (name, bad)  # as Python's own functions raise
    assert stored(connections[0]) == before


@every_row("call", CALLS)
def test_what_no_message_can_have_is_refused_in_the_same_words(connections: Pair, call: str) -> None:
    make, names = CALLS[call]
    before = stored(connections[0])
    for named, text in IMPOSSIBLE:
        if set(named) <= set(names) and not (call == "send_batch" and "keys" in named and len(named["keys"]) != 1):
            error = said(connections, lambda mq, named: make(mq, **named), named)
            assert text in str(error) and error.hint, (named, str(error))
    assert stored(connections[0]) == before


def test_a_key_that_no_message_can_have_and_an_iterator_gives_is_named(connections: Pair) -> None:
    for bad, text in (("b c", "key 'b c' holds a blank, which separates keys"), ("", "key is empty")):
        error = said(connections, lambda mq, bad: mq.send("orders", b"x", keys=iter(["a", bad])), bad)
        assert str(error) == text and error.hint


def test_bodies_and_topics_that_cannot_be_are_refused_in_the_same_words(connections: Pair) -> None:
    for body, text in ((GAPS, "a body is bytes in one piece"), (bytes(5 << 20), "a body of 5242880 bytes is longer")):
        errors = []
        for mq in connections:
            with pytest.raises(shmq.ShmqError, match=text) as caught:
                mq.send("orders", body)
            errors.append((type(caught.value), str(caught.value), caught.value.hint))
        assert errors[0] == errors[1] and errors[0][2]
    for name in ("", "a b", "x" * 128):
        assert type(said(connections, lambda mq, name: mq.send(name, b"x"), name)) is shmq.InvalidName
    error = said(connections, lambda mq: mq.send_batch("orders", iter([b"a", 3])))  # type: ignore[arg-type]
    assert "a body is bytes, not int" in str(error)


def test_a_property_of_rocketmq_names_the_argument_to_use(connections: Pair) -> None:
    for name, argument in (("TAGS", "tag="), ("KEYS", "keys="), ("DELAY", "delay_level="), ("TTL", "request()")):
        error = said(connections, lambda mq, name: mq.send("orders", b"x", properties={name: "x"}), name)
        assert argument in error.hint


def test_what_both_ways_take(connections: Pair) -> None:
    """A blank inside a tag, and a flag of 32 bits with or without a sign, are RocketMQ's own."""
    wide = {"tag": "\u3000fruit\u2003", "key": "\u3000", "message_group": "\u00a0", "properties": {" ": "a\0\n"}}
    for mq in connections:
        mq.send("orders", b"taken", tag="sour fruit", flag=2**31, key="a\u00a0b")
        mq.send("orders", b"wide", **wide)
    for mq in connections:
        found = mq.browse("orders", tags=" \u3000fruit\u2003 ")
        assert [(m.tag, m.key, m.message_group, m.properties[" "]) for m in found] == [
            ("\u3000fruit\u2003", "\u3000", "\u00a0", "a\0\n")
        ] * 2
    with connections[0].subscribe("orders", group="takers", tags="sour fruit", start="begin") as subscription:
        found = subscription.receive(2, 10.0)
        found += subscription.receive(2 - len(found), 10.0) if len(found) < 2 else []
        assert [(m.tag, m.flag, m.key) for m in found] == [("sour fruit", 2**31, "a\u00a0b")] * 2
        for message in found:
            message.ack()


def test_topics_bodies_and_sizes_of_a_wrong_kind_are_named(connections: Pair) -> None:
    for bad in NO_NAME:
        for call in (
            lambda mq, bad: mq.send(bad, b"x"),
            lambda mq, bad: mq.send_oneway(bad, b"x"),
            lambda mq, bad: mq.send_batch(bad, [b"x"]),
            lambda mq, bad: write(mq, bad, 3),
            lambda mq, bad: mq.request(bad, b"x", timeout=0.05),
        ):
            assert "a topic name is a str, not" in str(said(connections, call, bad)), bad
    for bad in NO_BODY:
        assert "a body is bytes, not" in str(said(connections, lambda mq, bad: mq.send("orders", bad), bad))
    for bad in NO_BODIES:
        text = str(said(connections, lambda mq, bad: mq.send_batch("orders", bad), bad))
        assert "a body is bytes, not" in text or "bodies is a sequence of bodies, not" in text
    for bad in (None, 1.5, "3", b"3", [], object(), -1):
        text = str(said(connections, lambda mq, bad: mq.reserve("orders", bad), bad))
        assert text.startswith("size is a number of bytes, 0 or more, not")


def test_what_was_right_is_taken_as_before_and_both_ways_take_iterators(connections: Pair) -> None:
    for mq in connections:
        assert len(mq.send_batch("orders", (body for body in (b"a", b"b")), keys=iter(["k1", None]))) == 2  # type: ignore[arg-type]
        mq.send("orders", bytearray(b"x"), tag=None, keys=iter(["k1", "k2"]), flag=-1, queue_id=0, timeout=1)
        mq.send("orders", memoryview(b"x"), timeout=2**70)
        mq.send("orders", b"x", timeout=float("inf"))


def test_an_error_of_the_callers_own_code_stays_what_it_is(connections: Pair) -> None:
    def keys() -> Iterator[str]:
        yield "k1"
        raise TypeError("from the caller's own generator")

    for mq in connections:
        with pytest.raises(TypeError, match="the caller's own generator") as caught:
            mq.send("orders", b"x", keys=keys())
        assert not isinstance(caught.value, shmq.ShmqError)


def test_a_key_of_a_wrong_kind_that_an_iterator_gives_is_named(connections: Pair) -> None:
    arguments: tuple[dict[str, Any], ...] = ({}, {"tag": "fruit"}, {"delay": 60}, {"delay_level": 3})
    for more in arguments:
        for name in ("send", "send_oneway"):

            def send(mq: shmq.Connection, name: str = name, more: dict[str, Any] = more) -> None:
                getattr(mq, name)("orders", b"x", keys=iter(["a", 3]), **more)

            error = said(connections, send)
            assert str(error) == "key is a str, not 3 (int)" and error.hint == 'key="order-42"'
            assert isinstance(error, TypeError)
    error = said(connections, lambda mq: mq.request("orders", b"x", timeout=1.0, keys=iter(["a", b"b"])))
    assert str(error) == "key is a str, not b'b' (bytes)"


def test_a_time_that_no_broker_waits_for_is_refused_alike(connections: Pair) -> None:
    for delay in (2**40 // 1000, 2**30, 259_202):
        error = said(connections, lambda mq, delay=delay: mq.send("orders", b"x", delay=delay))
        assert str(error) == "the message would wait longer than the 259200 s that the broker allows"
        assert error.hint == "shmq serve --timer-max-delay SECONDS"
    for bad in (2**70, 2**31, -1, "3", 1.5, True):
        error = said(connections, lambda mq, bad=bad: mq.send("orders", b"x", delay_level=bad))
        assert str(error).startswith("delay_level=") and error.hint


@pytest.mark.parametrize("end", ["stop", "close", "run", "producer.close"])
def test_a_time_to_end_in_is_a_time(connections: Pair, end: str) -> None:
    for bad in (None, "3", b"3", [], -1, float("nan"), object()):
        made = [shmq.connect(mq.url) for mq in connections]
        for mq in made:
            mq.listener("orders", group="ends")(print)
        if end == "producer.close":
            error = said((made[0], made[1]), lambda mq, bad: mq.producer().close(bad), bad)
        else:
            error = said((made[0], made[1]), lambda mq, bad: getattr(mq, end)(bad), bad)
        assert str(error).startswith("timeout is seconds, 0 or more, not") and error.hint == "timeout=5.0"
        for mq in made:
            mq.close(2**70)  # nothing to wait for


def test_a_type_that_nothing_can_be_read_into_is_refused(connections: Pair) -> None:
    for bad in (3, "Order", [], print):
        error = said(connections, lambda mq, bad: mq.topic("orders", bad), bad)
        assert str(error).startswith("type is what values can be read into") and "mq.topic(" in error.hint


def test_a_watched_producer_refuses_in_the_same_words(connections: Pair) -> None:
    urls = [mq.url for mq in connections]
    watched = {"trace": True, "spans": True}
    with shmq.connect(urls[0], **watched) as local, shmq.connect(urls[1], **watched) as remote:
        for name in ("tag", "key", "keys", "properties", "queue_id", "timeout"):
            bad = object()
            text = str(said((local, remote), lambda mq, named: mq.send("orders", b"x", **named), {name: bad}))
            assert text.startswith(f"{name} is ")
            if name != "key":
                said((local, remote), lambda mq, named: mq.send_batch("orders", [b"x"], **named), {name: bad})
        for bodies in NO_BODIES:
            said((local, remote), lambda mq, bad: mq.send_batch("orders", bad), bodies)
        for mq in (local, remote):
            assert len(mq.send_batch("orders", iter([b"a", b"b"]), keys=iter(["k1", "k2"]))) == 2  # type: ignore[arg-type]


ADMIN: dict[str, tuple[Callable[[shmq.Connection, Any], object], tuple[Any, ...]]] = {
    "a topic name": (lambda mq, bad: mq.admin.create_topic(bad), NO_NAME),
    "queues": (lambda mq, bad: mq.admin.create_topic("new", queues=bad), NO_COUNT),
    "read_queues": (lambda mq, bad: mq.admin.create_topic("new", read_queues=bad), NO_COUNT),
    "kind": (lambda mq, bad: mq.admin.create_topic("new", kind=bad), ("text", *NO_TEXT)),
    "a topic name is": (lambda mq, bad: mq.admin.delete_topic(bad), NO_NAME),
    "a group name": (lambda mq, bad: mq.admin.groups[bad], NO_NAME),
    "a group name is": (lambda mq, bad: mq.admin.dlq(bad), NO_NAME),
    "limit": (lambda mq, bad: mq.admin.dlq("g", limit=bad), (None, *NO_COUNT)),
    "threads": (lambda mq, bad: mq.listener("orders", group="g", threads=bad)(print), (None, *NO_COUNT)),
    "attempts_max": (lambda mq, bad: mq.subscribe("orders", group="g", attempts_max=bad), ("3", b"b", [], 1.5, True)),
    "timeout": (lambda mq, bad: mq.producer(timeout=bad), NO_SECONDS),
}


@every_row("name", ADMIN)
def test_administration_and_what_is_made_once_name_what_is_wrong(connections: Pair, name: str) -> None:
    call, wrong = ADMIN[name]
    for bad in wrong:
        error = said(connections, call, bad)
        assert name in str(error) and error.hint, bad
    assert "new" not in connections[0].admin.topics


def test_a_connection_cannot_be_asked_for_what_no_socket_can_wait_for(connections: Pair) -> None:
    for bad in (2**70, float("inf"), 1e10, float("nan"), 0, -1, "5", None, [], b"5"):
        assert "is no time to wait" in str(said(connections, lambda mq, bad: shmq.connect(mq.url, timeout=bad), bad))
    for bad in (1, 1.5, "text", [], object()):
        error = said(connections, lambda mq, bad: shmq.connect(mq.url, spans=bad), bad)
        assert str(error).startswith("spans is True, False, or a tracer provider") and error.hint == "spans=True"
        error = said(connections, lambda mq, bad: shmq.connect(mq.url, trace=bad), bad)
        assert str(error).startswith("trace is True or False, not") and error.hint == "trace=True"


def test_a_crash_shows_the_call_and_the_cure_and_no_way_inside(connections: Pair) -> None:
    for mq in connections:
        with pytest.raises(shmq.UsageError) as caught:
            mq.send("orders", b"x", tag=3)  # type: ignore[arg-type]
        frames = [entry.name for entry in caught.traceback]
        assert len(frames) <= 2 and caught.value.__suppress_context__ | (caught.value.__context__ is None)
        assert 'hint: tag="fruit"' in caught.value.__notes__
