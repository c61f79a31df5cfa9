"""Open transactions are listed as the broker knows them, and settled only with a yes."""

import pytest

import shmq
from shmq.testing import SharedBroker
from tests.tools.shell import Shell


@pytest.fixture
def shell(shmq_shared_broker: SharedBroker) -> Shell:
    return Shell(shmq_shared_broker.url)


@pytest.fixture
def topic(shmq_shared_broker: SharedBroker) -> str:
    return shmq_shared_broker.named("orders")


@pytest.fixture
def group(shmq_shared_broker: SharedBroker) -> str:
    return shmq_shared_broker.named("shop")


@pytest.fixture
def left(shmq_shared_broker: SharedBroker, topic: str, group: str) -> str:
    """The id of a transaction whose producer is gone."""
    with shmq_shared_broker.connect() as mq:
        return mq.producer(group=group).transaction(topic, b"42 apples", key="o-42").id


def bodies(shmq_shared_broker: SharedBroker, topic: str) -> list[bytes]:
    with shmq_shared_broker.connect() as mq:
        return [message.body for message in mq.browse(topic)]


def ids(shell: Shell, group: str) -> list[str]:
    return [entry["id"] for entry in shell.json("tx-list", "tx", "list", "-g", group)["transactions"]]


def test_an_open_transaction_is_listed_with_what_people_know_it_by(
    shell: Shell, left: str, topic: str, group: str
) -> None:
    (entry,) = shell.json("tx-list", "tx", "list", "-g", group)["transactions"]
    assert (entry["id"], entry["topic"], entry["group"], entry["key"]) == (left, topic, group, "o-42")
    assert (entry["checks"], entry["body_bytes"], entry["local"]) == (0, 9, True)
    assert left in shell.ok("tx", "list").decode()
    assert ids(shell, group + "x") == []


@pytest.mark.parametrize(("verb", "found"), [("commit", [b"42 apples"]), ("rollback", [])])
def test_a_yes_settles_it_once(
    shmq_shared_broker: SharedBroker, shell: Shell, left: str, topic: str, group: str, verb: str, found: list[bytes]
) -> None:
    assert shell.run("tx", verb, left).status == 64
    assert shell.json("tx-change", "tx", verb, left, "--dry-run")["changed"] is False
    assert [line["id"] for line in shell.lines("tx-change", "tx", verb, left, "--dry-run")] == [left]
    assert ids(shell, group) == [left]
    assert shell.json("tx-change", "tx", verb, left, "--yes")["changed"] is True
    assert ids(shell, group) == [] and bodies(shmq_shared_broker, topic) == found
    shell.fails(1, "tx", verb, left, "--yes")


def test_a_check_asks_a_member_of_the_group_at_once(
    shmq_shared_broker: SharedBroker, shell: Shell, left: str, topic: str, group: str
) -> None:
    shell.fails(1, "tx", "check", left)  # no member answers
    with shmq_shared_broker.connect() as mq:
        mq.transaction_checker(group)(lambda message: shmq.COMMIT)
        subscription = mq.subscribe(topic, group="readers", start="first")
        assert shell.json("tx-change", "tx", "check", left)["asked"] is True
        (message,) = subscription.receive(1, 20.0)
        assert (message.body, message.message_id) == (b"42 apples", left)
    assert ids(shell, group) == []


def test_what_is_not_open_is_not_found(shell: Shell) -> None:
    for verb in ("check", "commit", "rollback"):
        assert shell.fails(1, "tx", verb, "nothing", *([] if verb == "check" else ["--yes"]))["hint"]
