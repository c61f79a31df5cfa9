"""Single messages are shown, found, sent again and verified, by ids and keys, through shared memory and over TCP."""

from collections.abc import Iterator

import pytest

import shmq
from shmq.testing import Broker
from tests.conformance.conftest import TRANSPORTS, url_of
from tests.conformance.foreign import store_foreign
from tests.tools.shell import Shell, until


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(tcp=True) as broker, broker.connect() as mq:
        mq.admin.create_topic("orders", queues=1)
        mq.send("orders", b"42 apples", key="o-42", tag="fruit", properties={"region": "eu"})
        mq.send("orders", b"7 beets", key="o-7", tag="veg", properties={"region": "us"})
        yield broker


@pytest.fixture(params=[TRANSPORTS[0], pytest.param(TRANSPORTS[1], marks=pytest.mark.slow)])
def shell(request: pytest.FixtureRequest, broker: Broker) -> Shell:
    return Shell(url_of(broker, request.param))


def test_a_message_is_shown_by_its_id(shell: Shell, broker: Broker) -> None:
    with broker.connect() as mq:
        stored = mq.browse("orders")[0]
    document = shell.json("message-show", "message", "show", "orders", stored.offset_message_id)
    assert (document["body"], document["log_position"], document["intact"]) == (
        "42 apples",
        stored.log_position,
        True,
    )
    assert b"42 apples" in shell.ok("message", "show", "orders", stored.offset_message_id)
    assert shell.fails(1, "message", "show", "orders", "0" * 28 + "0FFF")["code"] == 22


def test_messages_are_found_by_key_time_tag_offset_and_expression(shell: Shell) -> None:
    def found(*words: str) -> list[str]:
        document = shell.json("message-find", "message", "find", "orders", *words)
        return [each["body"] for each in document["messages"]]

    until(lambda: shell.run("message", "find", "orders", "-k", "o-42").status == 0, "the index to have the key")
    assert found("-k", "o-42")[0] == "42 apples"
    assert found("--since", "-1h")[:2] == ["42 apples", "7 beets"]
    assert found("-t", "veg") == ["7 beets"]
    assert found("--queue", "0", "--offset", "1")[0] == "7 beets"
    assert found("--where", "region = 'us'") == ["7 beets"]
    assert found("-n", "1") == ["42 apples"]
    assert shell.json("message-find", "message", "find", "orders", "-n", "1")["cut"]
    assert not shell.json("message-find", "message", "find", "orders", "-t", "veg")["cut"]
    assert "1 message; there are more: -n" in shell.run("message", "find", "orders", "-n", "1").err
    assert shell.run("message", "find", "orders", "-k", "none").status == 1
    assert shell.fails(64, "message", "find", "orders", "--since", "soon")["hint"]


def test_a_message_is_sent_again_after_a_yes(shell: Shell, broker: Broker) -> None:
    with broker.connect() as mq:
        stored = mq.browse("orders")
    id_ = stored[0].offset_message_id
    assert shell.run("message", "resend", "orders", id_).status == 64
    assert shell.json("message-resend", "message", "resend", "orders", id_, "--dry-run")["message_id_new"] is None
    assert shell.json("message-resend", "message", "resend", "orders", id_, "--yes")["message_id_new"]
    with broker.connect() as mq:
        again = mq.browse("orders")[len(stored)]
    assert (again.body, again.key, again.tag, again.properties["region"]) == (b"42 apples", "o-42", "fruit", "eu")


def test_a_message_of_any_words_is_sent_again_with_escapes_for_what_may_not_be(shell: Shell, broker: Broker) -> None:
    with broker.connect() as mq:
        mq.admin.create_topic("strange", queues=1)
        store_foreign(mq, "strange", "TAGS\x01 a\0\x02KEYS\x01k\x7f\u3000 l\x02p\x03\x01\x01v\x02q\x01\x02")
        known = mq.browse("strange")[0]
    shell.json("message-resend", "message", "resend", "strange", known.offset_message_id, "--yes")
    with broker.connect() as mq:
        again = mq.browse("strange")[-1]
    assert again.offset > known.offset and again.tag == "\\x20a\\x00"
    assert again.keys == ["k\\x7f\u3000", "l"] and again.properties["p\\x03"] == "\\x01v"


def test_whole_records_verify(shell: Shell) -> None:
    document = shell.json("message-verify", "message", "verify", "orders")
    assert document["verified"] >= 2 and document["damaged"] == []


def test_what_a_client_traced_is_shown(shell: Shell, broker: Broker) -> None:
    with shmq.connect(shell.environment["SHMQ_URL"], trace=True) as mq:
        receipt = mq.send("orders", b"watched", tag="traced")
    until(lambda: shell.run("message", "trace", receipt.message_id).status == 0, "the trace to be stored and indexed")
    document = shell.json("message-trace", "message", "trace", receipt.message_id)
    [event] = document["traces"]
    assert document["message_id"] == event["message_id"] == receipt.message_id
    assert (event["kind"], event["topic"], event["succeeded"]) == ("Pub", "orders", True)
    assert b"succeeded" in shell.ok("message", "trace", receipt.message_id)


def test_an_untraced_message_is_a_no(shell: Shell) -> None:
    assert shell.run("message", "trace", "never-traced").status == 1


def test_an_id_alone_is_looked_for_in_all_topics(shell: Shell, broker: Broker) -> None:
    with broker.connect() as mq:
        mq.admin.create_topic("a-letters", queues=1)
        stored = mq.browse("orders")[1]
    with shmq.connect(f"rocketmq://{broker.name_server}") as remote:  # whose messages have unique keys
        sent = remote.send("a-letters", b"alone", key="k")
    for id_, body in ((stored.offset_message_id, "7 beets"), (sent.message_id, "alone")):
        assert shell.json("message-show", "message", "show", id_)["body"] == body
    document = shell.json("message-verify", "message", "verify", sent.message_id)
    assert (document["topic"], document["verified"], document["damaged"]) == ("a-letters", 1, [])
    assert shell.json("message-resend", "message", "resend", sent.message_id, "--dry-run")["topic"] == "a-letters"
    for unknown in ("0" * 32, "F" * 32, "no-id"):
        assert shell.fails(1, "message", "show", unknown)["code"] == 22
    assert shell.fails(64, "message", "show", "orders", "a", "b")["hint"]
