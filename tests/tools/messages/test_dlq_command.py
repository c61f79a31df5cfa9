"""Dead letters are listed, shown, sent again, exported and deleted, through shared memory and over TCP."""

import json
from collections.abc import Iterator

import pytest

from shmq.testing import Broker
from tests.conformance.conftest import TRANSPORTS, url_of
from tests.tools.shell import Shell


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(tcp=True) as broker, broker.connect() as mq:
        for body in (b"first", b"second"):
            mq.send("orders", body, key=body.decode(), queue_id=0)
        with mq.subscribe("orders", group="billing") as subscription:
            for message in subscription.receive(10, wait=60):
                subscription.reject(message, f"no {message.key}")
        yield broker


@pytest.fixture(params=[TRANSPORTS[0], pytest.param(TRANSPORTS[1], marks=pytest.mark.slow)])
def shell(request: pytest.FixtureRequest, broker: Broker) -> Shell:
    return Shell(url_of(broker, request.param))


def test_dead_letters_are_found_and_told_why(shell: Shell) -> None:
    assert shell.json("dlq-list", "dlq", "list")["groups"] == [
        {"group": "billing", "topic": "%DLQ%billing", "messages": 2}
    ]
    letters = shell.json("dlq-letters", "dlq", "show", "billing")["letters"]
    assert [(each["body"], each["origin_topic"], each["reason"]) for each in letters] == [
        ("first", "orders", "no first"),
        ("second", "orders", "no second"),
    ]
    assert "no second" in shell.ok("dlq", "show", "billing").decode()
    lines = [json.loads(line) for line in shell.ok("dlq", "export", "billing").splitlines()]
    assert [line["body"] for line in lines] == ["first", "second"]
    assert shell.json("dlq-letters", "dlq", "export", "billing") == {"group": "billing", "letters": lines, "cut": False}
    for words in (("show",), ("export",), ("resend", "--dry-run")):
        assert shell.json("dlq-letters", "dlq", words[0], "billing", "-n", "1", *words[1:])["cut"]
        assert "there are more: -n" in shell.run("dlq", words[0], "billing", "-n", "1", *words[1:]).err


def test_only_a_yes_sends_or_deletes(shell: Shell, broker: Broker) -> None:
    assert shell.run("dlq", "resend", "billing").status == 64
    assert shell.run("dlq", "purge", "billing").status == 64
    assert not shell.json("dlq-purge", "dlq", "purge", "billing", "--dry-run")["changed"]
    assert [line["messages"] for line in shell.lines("dlq-purge", "dlq", "purge", "billing", "--dry-run")] == [2]
    with broker.connect() as mq:
        assert len(mq.browse("orders")) == 2
    (letter,) = shell.json("dlq-letters", "dlq", "resend", "billing", "--offset", "1", "--yes")["letters"]
    assert (letter["body"], letter["sent"]) == ("second", True)
    with broker.connect() as mq:
        assert [message.body for message in mq.browse("orders")] == [b"first", b"second", b"second"]
    assert shell.run("dlq", "resend", "billing", "--offset", "7", "--yes").status == 1
    assert shell.json("dlq-purge", "dlq", "purge", "billing", "--yes")["changed"]
    assert broker.dlq("billing") == []


def test_an_error_says_which_letters_are_sent(shell: Shell, broker: Broker) -> None:
    with broker.connect() as mq:
        mq.send("%DLQ%billing", b"of a stranger", queue_id=0)
    error = shell.fails(64, "dlq", "resend", "billing", "--yes")
    assert error["hint"].startswith("the letters before offset 2 are sent: name the others, --offset N")


def test_what_dies_after_a_purge_is_kept(shell: Shell, broker: Broker) -> None:
    shell.ok("dlq", "purge", "billing", "--yes")
    with broker.connect() as mq:
        mq.send("orders", b"third")
        with mq.subscribe("orders", group="billing") as subscription:
            (message,) = subscription.receive(1, wait=60)
            subscription.reject(message, "no")
    assert [letter.body for letter in broker.dlq("billing")] == [b"third"]
