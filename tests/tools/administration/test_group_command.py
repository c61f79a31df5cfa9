"""Groups are shown with their members, their queues, and how far behind they are."""

import json

import pytest

from shmq.figures.observer import Observer
from shmq.testing import Broker, SharedBroker
from tests.tools.shell import Shell, interrupt, until


@pytest.fixture
def shell(shmq_shared_broker: SharedBroker) -> Shell:
    return Shell(shmq_shared_broker.url)


@pytest.fixture
def topic(shmq_shared_broker: SharedBroker) -> str:
    return shmq_shared_broker.named("orders")


@pytest.fixture
def group(shmq_shared_broker: SharedBroker) -> str:
    return shmq_shared_broker.named("billing")


def test_a_group_that_has_read_is_listed_with_its_lag(shell: Shell, topic: str, group: str) -> None:
    shell.ok("produce", topic, stdin=b"a\nb\nc\n")
    shell.ok("consume", topic, "-g", group, "-n", "1")
    [row] = [row for row in shell.json("group-list", "group", "list")["groups"] if row["group"] == group]
    assert (row["topics"], row["lag"], row["readers"]) == ([topic], 2, [])
    table = shell.ok("group", "list").decode().splitlines()
    assert table[0].split() == ["GROUP", "TOPICS", "READERS", "LAG", "LAST"]
    assert any(line.split()[:4] == [group, "1", "0", "2"] for line in table)
    assert group in [json.loads(line)["group"] for line in shell.ok("group", "list", "--jsonl").splitlines()]


def test_a_living_member_is_shown_with_what_it_reads(shell: Shell, topic: str, group: str) -> None:
    shell.ok("produce", topic, stdin=b"a\nb\nc\n")
    with shell.start("consume", topic, "-g", group, "-t", "x || y") as process:

        def reading() -> bool:
            result = shell.run("group", "show", group, "--json")
            return result.status == 0 and json.loads(result.out)["readers"] == [process.pid]

        until(reading, "the member to read")
        document = shell.json("group-show", "group", "show", group)
        text = shell.ok("group", "show", group).decode()
        assert interrupt(process).status == 130
    [member] = document["members"]
    assert (member["pid"], member["language"], member["transport"]) == (process.pid, "python", "shm")
    assert member["subscription"] == {topic: "x || y"}
    assert {entry["reader"] for entry in document["queues"]} == {process.pid}
    assert text.startswith(f"group {group}   1 member   lag ")
    assert "TOPIC" in text and "SUBSCRIPTION" in text and f"pid {process.pid}" in text
    until(lambda: shell.json("group-show", "group", "show", group)["members"] == [], "the member to be gone")


def test_a_missing_group_is_a_no_that_names_the_nearest(shell: Shell, group: str) -> None:
    shell.ok("group", "create", group)
    for words in (("show",), ("delete", "--yes")):
        error = shell.fails(1, "group", words[0], group + "x", *words[1:])
        assert error["code"] == 26 and error["hint"].startswith(f'did you mean "{group}"')


def test_a_group_is_created_once(shell: Shell, group: str) -> None:
    assert not shell.json("group-change", "group", "create", group, "--dry-run")["changed"]
    assert shell.json("group-change", "group", "create", group)["changed"]
    assert not shell.json("group-change", "group", "create", group, status=1)["changed"]
    document = shell.json("group-show", "group", "show", group)
    assert (document["queues"], document["lag"], document["members"]) == ([], 0, [])
    assert shell.fails(64, "group", "create", "bad name")["type"] == "InvalidName"


def test_deleting_needs_a_yes_and_forgets_the_progress(shell: Shell, topic: str, group: str) -> None:
    shell.ok("produce", topic, stdin=b"a\nb\n")
    shell.ok("consume", topic, "-g", group, "-e")
    result = shell.run("group", "delete", group)
    assert result.status == 64 and f'would delete group "{group}" and its progress in {topic}' in result.err
    assert not shell.json("group-change", "group", "delete", group, "--dry-run")["changed"]
    assert shell.json("group-change", "group", "delete", group, "--yes")["changed"]
    shell.fails(1, "group", "show", group)
    assert sorted(shell.ok("consume", topic, "-g", group, "-e").split()) == [b"a", b"b"]


def test_a_group_that_is_being_read_stays(shell: Shell, topic: str, group: str) -> None:
    shell.ok("produce", topic, "a")
    with shell.start("consume", topic, "-g", group) as process:
        assert process.stdout is not None and process.stdout.readline() == b"a\n"
        assert str(process.pid) in shell.fails(75, "group", "delete", group, "--yes")["error"]
        assert interrupt(process).status == 130


def test_what_memory_shows_is_shown_although_the_broker_is_dead(shmq_broker: Broker) -> None:
    shell = Shell(shmq_broker.url)
    shell.ok("produce", "orders", stdin=b"a\nb\n")
    shell.ok("consume", "orders", "-g", "billing", "-n", "1")
    with shmq_broker.connect():  # an attached process, or another broker may sweep the segments away
        shmq_broker.kill_daemon()
        assert shell.json("group-show", "group", "show", "billing")["members"] is None
        result = shell.run("group", "show", "billing")
        assert result.status == 0 and "members are unknown" in result.err and "lag 1" in result.out.decode()
        assert shell.json("topic-show", "topic", "show", "orders")["messages"] == 2
        assert shell.ok("consume", "orders", "-e") == b"a\nb\n"


def test_members_that_subscribe_differently_are_shown_with_what_each_side_wants(topic: str, group: str) -> None:
    """Stock members are not refused for it, so this is where an operator learns of it."""
    import shmq

    with Broker(tcp=True) as broker:
        shell, remote = Shell(broker.url), f"rocketmq://{broker.name_server}"
        with shmq.connect(remote) as one, shmq.connect(remote) as two:
            one.admin.create_topic(topic, queues=2)
            with one.subscribe(topic, group=group, tags="red"), two.subscribe(topic, group=group, tags="blue"):
                until(lambda: shell.json("group-show", "group", "show", group)["conflict"], "the conflict")
                document = shell.json("group-show", "group", "show", group)["conflict"]
                [at] = document["topics"]
                assert (at["topic"], [side["subscription"] for side in at["wanted"]]) == (topic, ["blue", "red"])
                assert document["seconds"] >= 0
                said = shell.run("group", "show", group).err
                assert "subscribe differently" in said and '"blue" (1) / "red" (1)' in said


def test_what_simple_consumers_have_in_hand_is_lag_and_in_flight_and_not_ready(
    shmq_shared_broker: SharedBroker, shell: Shell, topic: str, group: str
) -> None:
    with shmq_shared_broker.connect() as mq, mq.simple_consumer(topic, group=group, invisible=300) as consumer:
        mq.send_batch(topic, [b"x"] * 5)
        messages = consumer.receive(max=3, wait=60)
        assert len(messages) == 3

        def numbers() -> tuple[int, int]:
            document = shell.json("group-show", "group", "show", group)
            return document["lag"], document["in_flight"]

        until(lambda: numbers() == (5, 3), "the broker to say what is in hand")
        assert "lag 5   in flight 3   last " in shell.ok("group", "show", group).decode()
        lag = mq.admin.groups[group].lag
        assert (lag.total, sum(entry.in_flight for entry in lag.offsets)) == (5, 3)
        with Observer(shmq_shared_broker.url) as observer:
            [seen] = [entry for entry in observer.snapshot("usual").groups if entry.name == group]
        assert (seen.lag, seen.ready, seen.in_flight) == (5, 2, 3)
        messages[0].ack()
        messages[1].nack(after=60)
        until(lambda: numbers() == (4, 2), "the broker to say what is left")


def test_groups_of_the_broker_itself_are_listed_only_when_asked(shell: Shell, shmq_shared_broker: SharedBroker) -> None:
    own = "CID_RMQ_SYS_SCHEDULE"
    with shmq_shared_broker.connect() as mq:
        mq.send(shmq_shared_broker.named("orders"), b"x", delay_level=1)
    until(lambda: own in [row["group"] for row in shell.json("group-list", "group", "list", "-a")["groups"]])
    rows = shell.json("group-list", "group", "list")
    assert own not in [row["group"] for row in rows["groups"]] and rows["hidden"] >= 1
    assert "system group" in shell.run("group", "list").err
    everything = shell.json("group-list", "group", "list", "-a")
    assert own in [row["group"] for row in everything["groups"]] and everything["hidden"] == 0
