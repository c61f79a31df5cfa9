"""Topics are listed, shown and changed as the broker has them."""

import json
import time
from datetime import datetime

import pytest

from shmq.testing import Broker, SharedBroker
from tests.tools.shell import Shell


@pytest.fixture
def shell(shmq_shared_broker: SharedBroker) -> Shell:
    return Shell(shmq_shared_broker.url)


@pytest.fixture
def topic(shmq_shared_broker: SharedBroker) -> str:
    return shmq_shared_broker.named("orders")


def test_a_new_broker_lists_nothing_and_says_so(shmq_broker: Broker) -> None:
    shell = Shell(shmq_broker.url)
    assert shell.json("topic-list", "topic", "list")["topics"] == []
    result = shell.run("topic", "list")
    assert (result.status, result.out) == (0, b"")
    assert result.err.startswith("0 topics")


def test_the_list_tells_what_topics_hold(shell: Shell, topic: str, shmq_shared_broker: SharedBroker) -> None:
    began = time.time()
    with shmq_shared_broker.connect() as mq:
        for _ in range(20):
            mq.send(topic, b"x" * 1000)
    group = shmq_shared_broker.named("billing")
    shell.ok("consume", topic, "-g", group, "-n", "1")
    [row] = [row for row in shell.json("topic-list", "topic", "list")["topics"] if row["topic"] == topic]
    assert (row["kind"], row["permission"], row["queues"], row["messages"]) == ("normal", "rw", 8, 20)
    assert row["size_bytes"] > 20_000 and row["groups"] == [group] and not row["system"]
    assert began - 1 <= datetime.fromisoformat(row["oldest"]).timestamp() <= time.time()
    assert topic in [json.loads(line)["topic"] for line in shell.ok("topic", "list", "--jsonl").splitlines()]
    table = shell.ok("topic", "list").decode().splitlines()
    assert table[0].split() == ["TOPIC", "KIND", "QUEUES", "MESSAGES", "SIZE", "GROUPS", "OLDEST"]
    assert [line.split()[:4] for line in table if line.startswith(topic + " ")] == [[topic, "normal", "8", "20"]]


def test_what_a_broker_made_for_itself_is_hidden_and_what_belongs_to_a_group_is_marked() -> None:
    kinds = {"orders": "normal", "%RETRY%billing": "retry", "%DLQ%billing": "dlq"}
    with Broker(tcp=True) as broker, broker.connect() as mq:
        shell = Shell(broker.url)
        for name in kinds:
            mq.admin.create_topic(name, queues=1)
        rows = shell.json("topic-list", "topic", "list")
        assert {row["topic"]: row["kind"] for row in rows["topics"]} == {"orders": "normal", "%DLQ%billing": "dlq"}
        everything = shell.json("topic-list", "topic", "list", "--all")["topics"]
    assert {row["topic"]: row["kind"] for row in everything if row["topic"] in kinds} == kinds
    hidden = {row["topic"]: row for row in everything if row["topic"] not in kinds}
    assert len(hidden) + 1 == rows["hidden"] and {"DefaultCluster", "TBW102", "SCHEDULE_TOPIC_XXXX"} <= set(hidden)
    assert all(row["system"] and row["kind"] == "system" for row in hidden.values())


def test_rates_are_measured_when_asked(shell: Shell, topic: str) -> None:
    shell.ok("topic", "create", topic)
    [row] = [row for row in shell.json("topic-list", "topic", "list", "--rates")["topics"] if row["topic"] == topic]
    assert (row["in_per_second"], row["out_per_second"]) == (0, 0)
    assert "IN/S" in shell.ok("topic", "list", "--rates").decode()


def test_one_topic_is_shown_queue_by_queue(shell: Shell, topic: str, shmq_shared_broker: SharedBroker) -> None:
    shell.ok("topic", "create", topic, "--queues", "3", "--kind", "fifo", "--permission", "rw")
    with shmq_shared_broker.connect() as mq:
        for queue_id in (0, 2, 2):
            mq.send(topic, b"x", queue_id=queue_id)
    group = shmq_shared_broker.named("billing")
    shell.ok("consume", topic, "-g", group, "-e")
    shell.ok("produce", topic, "y", "--queue", "1")
    document = shell.json("topic-show", "topic", "show", topic)
    assert (document["kind"], document["queues"], document["messages"]) == ("fifo", 3, 4)
    assert [queue["offset_max"] for queue in document["queue_list"]] == [1, 1, 2]
    assert document["groups"] == [{"group": group, "lag": 1}]
    text = shell.ok("topic", "show", topic).decode()
    assert text.startswith(f"topic {topic}   fifo   permission rw   3 queues   4 messages   ")


def test_a_missing_topic_is_a_no_that_names_the_nearest(shell: Shell, topic: str) -> None:
    shell.ok("topic", "create", topic)
    for words in (("show",), ("update", "--queues", "9"), ("delete", "--yes")):
        error = shell.fails(1, "topic", words[0], topic + "x", *words[1:])
        assert error["type"] == "TopicNotFound" and error["hint"].startswith(f'did you mean "{topic}"')


def test_creating_what_exists_is_a_no_unless_it_is_as_asked(shell: Shell, topic: str) -> None:
    made = shell.json("topic-change", "topic", "create", topic, "--queues", "5")
    assert (made["action"], made["changed"], made["queues"], made["kind"]) == ("create", True, 5, "normal")
    for words in ((), ("--queues", "5"), ("--queues", "7", "--if-missing"), ("--kind", "normal", "--permission", "rw")):
        assert not shell.json("topic-change", "topic", "create", topic, *words)["changed"]
    again = shell.fails(1, "topic", "create", topic, "--queues", "7", "--kind", "fifo", "--flush", "sync")
    assert "queues is 5, not 7, kind is normal, not fifo, flush is broker, not sync" in again["error"]
    cure = f"shmq topic update {topic} --queues 7 --kind fifo --flush sync"
    assert (again["type"], cure in again["hint"]) == ("TopicExists", True)
    assert shell.json("topic-show", "topic", "show", topic)["queues"] == 5
    shell.ok(*cure.split()[1:])
    assert not shell.json("topic-change", "topic", "create", topic, *cure.split()[4:])["changed"]


def test_a_dry_run_changes_nothing(shell: Shell, topic: str) -> None:
    assert not shell.json("topic-change", "topic", "create", topic, "--dry-run")["changed"]
    shell.fails(1, "topic", "show", topic)
    shell.ok("topic", "create", topic, "--queues", "2")
    assert not shell.json("topic-change", "topic", "update", topic, "--queues", "4", "--dry-run")["changed"]
    assert not shell.json("topic-change", "topic", "delete", topic, "--dry-run")["changed"]
    assert shell.json("topic-show", "topic", "show", topic)["queues"] == 2


def test_more_queues_come_at_once_and_fewer_need_a_yes(shell: Shell, topic: str) -> None:
    shell.ok("topic", "create", topic, "--queues", "4", "--kind", "fifo")
    assert shell.json("topic-change", "topic", "update", topic, "--queues", "6")["changed"]
    assert shell.fails(64, "topic", "update", topic, "--queues", "2")["hint"] == "run it again with --yes"
    assert shell.fails(64, "topic", "update", topic, "--permission", "r")["type"] == "UsageError"
    document = shell.json("topic-show", "topic", "show", topic)
    assert (document["queues"], document["permission"], document["kind"]) == (6, "rw", "fifo")
    changed = shell.json("topic-change", "topic", "update", topic, "--queues", "2", "--permission", "r", "--yes")
    assert (changed["queues"], changed["permission"]) == (2, "r")
    document = shell.json("topic-show", "topic", "show", topic)
    assert (document["queues"], document["permission"], document["kind"]) == (2, "r", "fifo")
    assert shell.fails(64, "topic", "update", topic)["type"] == "UsageError"


def test_deleting_tells_what_goes_and_needs_a_yes(shell: Shell, topic: str) -> None:
    shell.ok("produce", topic, stdin=b"a\nb\n")
    result = shell.run("topic", "delete", topic)
    assert result.status == 64
    assert f'would delete topic "{topic}" with 2 messages (' in result.err
    assert shell.json("topic-change", "topic", "delete", topic, "--yes")["changed"]
    shell.fails(1, "topic", "show", topic)


def test_a_topic_made_again_under_its_name_is_empty(shell: Shell, topic: str, shmq_shared_broker: SharedBroker) -> None:
    group = shmq_shared_broker.named("billing")
    shell.ok("produce", topic, stdin=b"a\nb\n")
    shell.ok("consume", topic, "-g", group, "-e")
    shell.ok("topic", "delete", topic, "--yes")
    shell.ok("produce", topic, "c")
    document = shell.json("topic-show", "topic", "show", topic)
    assert (document["messages"], document["groups"]) == (1, [])
    assert shell.ok("consume", topic, "-e") == b"c\n"
    assert shell.ok("consume", topic, "-g", group, "-e") == b"c\n"


@pytest.mark.parametrize("name", ["bad name", "", "ä", "x" * 128])
def test_a_name_no_topic_can_have_is_refused(shell: Shell, name: str) -> None:
    assert shell.fails(64, "topic", "create", name)["type"] == "InvalidName"


def test_the_broker_keeps_its_own_topics(shell: Shell) -> None:
    for words in (("create",), ("update", "--queues", "2"), ("delete", "--yes"), ("delete", "--dry-run")):
        assert "the broker's own" in shell.fails(64, "topic", words[0], "SCHEDULE_TOPIC_XXXX", *words[1:])["error"]


def test_a_topic_is_given_a_flush_of_its_own_and_loses_it_again(
    shell: Shell, topic: str, shmq_shared_broker: SharedBroker
) -> None:
    def flush() -> int:
        with shmq_shared_broker.connect() as mq:
            store = mq._local().wire.store
            return int(store.topic(store.topic_find(topic))["flush"])

    assert shell.json("topic-change", "topic", "create", topic, "--queues", "2", "--flush", "sync")["changed"]
    assert flush() == 2
    shell.ok("topic", "update", topic, "--queues", "3")
    assert flush() == 2
    assert shell.json("topic-show", "topic", "show", topic)["flush"] == "sync"
    assert "   flush sync   " in shell.ok("topic", "show", topic).decode().replace("\n", "   ")
    assert shell.ok("topic", "update", topic, "--flush", "async") == b"" and flush() == 1
    assert "flush async → broker" in shell.run("topic", "update", topic, "--flush", "broker").err and flush() == 0
    assert shell.json("topic-show", "topic", "show", topic)["flush"] == "broker"


def test_queues_that_hold_messages_stay_readable(shell: Shell, topic: str, shmq_shared_broker: SharedBroker) -> None:
    group = shmq_shared_broker.named("billing")
    shell.ok("topic", "create", topic, "--queues", "8")
    with shmq_shared_broker.connect() as mq:
        for number in range(40):
            mq.send(topic, str(number).encode(), queue_id=number % 8)
    shell.ok("consume", topic, "-g", group, "-n", "8")
    plan = shell.run("topic", "update", topic, "--queues", "2", "--dry-run").err
    assert "8 queues → 8 to read and 2 to write" in plan
    assert "queues 2 to 7 hold 30 messages" in plan and f"by {group}; they stay readable" in plan
    assert f"shmq topic update {topic} --read-queues 2 --yes" in plan
    changed = shell.json("topic-change", "topic", "update", topic, "--queues", "2", "--yes")
    assert (changed["queues"], changed["read_queues"]) == (2, 8)
    assert (changed["kept_messages"], changed["hidden_messages"]) == (30, 0)
    assert len(shell.ok("consume", topic, "-g", group, "-e").splitlines()) == 32
    with shmq_shared_broker.connect() as mq:
        assert {mq.send(topic, b"new").queue_id for _ in range(8)} == {0, 1}
    assert shell.json("topic-show", "topic", "show", topic)["messages"] == 48


def test_messages_are_hidden_only_by_name_and_are_counted(
    shell: Shell, topic: str, shmq_shared_broker: SharedBroker
) -> None:
    shell.ok("topic", "create", topic, "--queues", "4")
    with shmq_shared_broker.connect() as mq:
        for number in range(20):
            mq.send(topic, b"x", queue_id=number % 4)
    error = shell.fails(64, "topic", "update", topic, "--read-queues", "2")
    assert "4 that are written" in error["error"] and "--queues 2" in error["hint"]
    result = shell.run("topic", "update", topic, "--queues", "2", "--read-queues", "2")
    assert result.status == 64 and "no group can read the 10 messages in queues 2 to 3 any more" in result.err
    changed = shell.json("topic-change", "topic", "update", topic, "--queues", "2", "--read-queues", "2", "--yes")
    assert (changed["queues"], changed["read_queues"], changed["hidden_messages"]) == (2, 2, 10)
    assert len(shell.ok("consume", topic, "-e").splitlines()) == 10
    shell.ok("topic", "update", topic, "--queues", "4")  # and they come back
    assert len(shell.ok("consume", topic, "-e").splitlines()) == 20


def test_empty_queues_go_at_once(shell: Shell, topic: str, shmq_shared_broker: SharedBroker) -> None:
    shell.ok("topic", "create", topic, "--queues", "8")
    with shmq_shared_broker.connect() as mq:
        mq.send(topic, b"x", queue_id=4)
    changed = shell.json("topic-change", "topic", "update", topic, "--queues", "2", "--yes")
    assert (changed["queues"], changed["read_queues"], changed["kept_messages"]) == (2, 5, 1)
