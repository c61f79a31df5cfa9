"""Progress is changed as it was shown, never under a reader, never without a yes."""

import pytest

from shmq.testing import Broker, SharedBroker
from tests.tools.shell import Shell, interrupt


@pytest.fixture
def shell(shmq_shared_broker: SharedBroker) -> Shell:
    return Shell(shmq_shared_broker.url)


@pytest.fixture
def topic(shmq_shared_broker: SharedBroker) -> str:
    return shmq_shared_broker.named("orders")


@pytest.fixture
def group(shell: Shell, topic: str, shmq_shared_broker: SharedBroker) -> str:
    """A group that has read 40 messages, 5 in each of 8 queues."""
    group = shmq_shared_broker.named("billing")
    with shmq_shared_broker.connect() as mq:
        for number in range(40):
            mq.send(topic, b"%d" % number)
    assert len(shell.ok("consume", topic, "-g", group, "-e").split()) == 40
    return group


def offsets(shell: Shell, group: str, topic: str) -> list[int]:
    return [entry["offset"] for entry in shell.json("offset-show", "offset", "show", group, topic)["queues"]]


def test_progress_is_shown_queue_by_queue(shell: Shell, group: str, topic: str) -> None:
    assert offsets(shell, group, topic) == [5] * 8
    assert shell.ok("offset", "show", group).decode().splitlines()[1].split()[:6] == [topic, "0", "0", "5", "5", "0"]
    shell.fails(1, "offset", "show", group, topic + "x")
    shell.fails(1, "offset", "show", group + "x")


@pytest.mark.parametrize(
    ("where", "offset", "again"),
    [("begin", 0, 40), ("end", 5, 0), ("2", 2, 24), ("-1", 4, 8), ("-1h", 0, 40), ("2999-01-01", 5, 0), ("99", 5, 0)],
)
def test_a_reset_does_what_it_shows(shell: Shell, group: str, topic: str, where: str, offset: int, again: int) -> None:
    plan = shell.json("offset-change", "offset", "reset", group, topic, "--to", where, "--dry-run")
    assert (plan["changed"], plan["again"], plan["left_out"]) == (False, again, 0)
    assert offsets(shell, group, topic) == [5] * 8
    done = shell.json("offset-change", "offset", "reset", group, topic, "--to", where, "--yes")
    assert done == {**plan, "changed": True}
    assert offsets(shell, group, topic) == [offset] * 8
    assert len(shell.ok("consume", topic, "-g", group, "-e").split()) == again


def test_without_a_yes_it_tells_and_ends_with_64(shell: Shell, group: str, topic: str) -> None:
    result = shell.run("offset", "reset", group, topic, "--to", "begin")
    assert result.status == 64
    assert result.out.decode().splitlines()[1].split() == ["0", "5", "0", "5"]
    assert "would deliver 40 messages again" in result.err and "run it again with --yes" in result.err
    assert offsets(shell, group, topic) == [5] * 8


def test_single_queues_can_be_reset(shell: Shell, group: str, topic: str) -> None:
    shell.ok("offset", "reset", group, topic, "--to", "begin", "--queue", "1", "--queue", "3", "--yes")
    assert offsets(shell, group, topic) == [5, 0, 5, 0, 5, 5, 5, 5]
    assert shell.fails(64, "offset", "reset", group, topic, "--to", "0", "--queue", "8", "--yes")["hint"]


def test_without_a_topic_all_topics_of_the_group_are_meant(
    shell: Shell, group: str, topic: str, shmq_shared_broker: SharedBroker
) -> None:
    other = shmq_shared_broker.named("other")
    shell.ok("produce", other, "x")
    shell.ok("consume", other, "-g", group, "-e")
    shell.ok("offset", "reset", group, "--to", "begin", "--yes")
    assert offsets(shell, group, topic) == [0] * 8 and offsets(shell, group, other) == [0] * 8


def test_a_skip_leaves_out_what_was_not_consumed(shell: Shell, group: str, topic: str) -> None:
    shell.ok("offset", "reset", group, topic, "--to", "1", "--yes")
    done = shell.json("offset-change", "offset", "skip", group, topic, "--yes")
    assert (done["left_out"], done["again"]) == (32, 0)
    assert shell.ok("consume", topic, "-g", group, "-e") == b""


def test_a_clone_gives_another_group_the_same_progress(
    shell: Shell, group: str, topic: str, shmq_shared_broker: SharedBroker
) -> None:
    clone = shmq_shared_broker.named("audit")
    shell.ok("offset", "reset", group, topic, "--to", "2", "--yes")
    done = shell.json("offset-change", "offset", "clone", group, clone, "--yes")
    assert {entry["offset"] for entry in done["queues"]} == {None}
    assert offsets(shell, clone, topic) == [2] * 8
    assert len(shell.ok("consume", topic, "-g", clone, "-e").split()) == 24
    assert offsets(shell, group, topic) == [2] * 8
    shell.fails(64, "offset", "clone", group, group, "--yes")
    shell.fails(1, "offset", "clone", group + "x", clone, "--yes")


def test_a_group_that_is_being_read_is_not_moved(shell: Shell, group: str, topic: str) -> None:
    shell.ok("produce", topic, "new")
    with shell.start("consume", topic, "-g", group) as process:
        assert process.stdout is not None and process.stdout.readline() == b"new\n"
        for words in (("reset", group, topic, "--to", "begin"), ("skip", group, topic)):
            error = shell.fails(75, "offset", *words, "--yes")
            assert str(process.pid) in error["error"] and error["hint"]
        assert interrupt(process).status == 130
    assert 0 not in offsets(shell, group, topic)


def test_a_slip_in_the_name_of_a_group_makes_no_group(shell: Shell, group: str, topic: str) -> None:
    for words in (("reset", group + "x", topic, "--to", "begin"), ("skip", group + "x", topic)):
        error = shell.fails(1, "offset", *words, "--yes")
        assert error["type"] == "GroupNotFound" and error["hint"].startswith(f'did you mean "{group}"')
    shell.fails(1, "group", "show", group + "x")


@pytest.mark.slow
def test_here_and_over_tcp_a_group_with_members_is_neither_moved_nor_deleted() -> None:
    with Broker(tcp=True) as broker, broker.connect() as mq:
        mq.send("orders", b"a")
        with mq.subscribe("orders", group="billing") as messages:
            [message] = messages.receive(1, wait=60)
            message.ack()
            for url in (broker.url, f"rocketmq://{broker.name_server}"):
                shell = Shell(url)
                for words in (("reset", "billing", "orders", "--to", "begin"), ("skip", "billing")):
                    for sure in ("--dry-run", "--yes"):
                        error = shell.fails(75, "offset", *words, sure)
                        assert 'group "billing" is being read by' in error["error"] and error["hint"]
                error = shell.fails(75, "group", "delete", "billing", "--yes")
                assert mq.client_id in error["error"] and error["hint"] == "stop its members, then run it again"
        shell.ok("group", "delete", "billing", "--yes")


def test_a_group_that_never_read_a_topic_can_be_placed_on_it(
    shell: Shell, topic: str, shmq_shared_broker: SharedBroker
) -> None:
    group = shmq_shared_broker.named("new")
    shell.ok("produce", topic, stdin=b"a\nb\n")
    for words in ((group, topic), (group,)):
        error = shell.fails(1, "offset", "reset", *words, "--to", "end", "--yes")
        assert error["code"] == 26
    shell.ok("group", "create", group)
    done = shell.json("offset-change", "offset", "reset", group, topic, "--to", "end", "--yes")
    assert done["left_out"] == 2
    assert shell.ok("consume", topic, "-g", group, "-e") == b""


def test_a_place_is_needed_and_must_be_one(shell: Shell, group: str, topic: str) -> None:
    shell.fails(64, "offset", "reset", group, topic, "--yes")
    shell.fails(64, "offset", "reset", group, topic, "--to", "nowhere", "--yes")
