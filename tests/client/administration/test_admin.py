"""Topics, groups, offsets, dead letters and health from Python."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import shmq
from shmq.shm.core import KeeperStore
from shmq.testing import Broker, SharedBroker

Eventually = Callable[..., Any]


@pytest.fixture
def mq(shmq_shared_broker: SharedBroker) -> Iterator[shmq.Connection]:
    with shmq_shared_broker.connect() as connection:
        yield connection


@pytest.fixture
def topic(shmq_shared_broker: SharedBroker) -> str:
    return shmq_shared_broker.named("orders")


@pytest.fixture
def group(shmq_shared_broker: SharedBroker) -> str:
    return shmq_shared_broker.named("billing")


def consume(mq: shmq.Connection, topic: str, group: str, count: int) -> None:
    with mq.subscribe(topic, group=group) as subscription:
        while count:
            for message in subscription.receive(count, wait=60):
                message.ack()
                count -= 1


def test_a_topic_is_what_it_was_created_as(mq: shmq.Connection, topic: str) -> None:
    info = mq.admin.create_topic(topic, queues=3, kind="fifo")
    assert (info.name, info.kind, info.read_queues, info.write_queues, info.messages) == (topic, "fifo", 3, 3, 0)
    mq.send(topic, b"x", queue_id=2)
    info = mq.admin.topics[topic]
    assert [queue.offset_max for queue in info.queues] == [0, 0, 1]
    assert info.messages == 1
    assert info.size_bytes > 0
    assert not info.is_system


def test_a_topic_that_exists_as_asked_is_returned_and_any_other_is_refused(mq: shmq.Connection, topic: str) -> None:
    made = mq.admin.create_topic(topic, queues=2, kind="fifo")
    for same in ({}, {"queues": 2}, {"kind": "fifo", "read_queues": 2}):
        assert mq.admin.create_topic(topic, **same) == made
    with pytest.raises(shmq.TopicExists, match="queues is 2, not 5, kind is fifo, not normal") as caught:
        mq.admin.create_topic(topic, queues=5, kind="normal")
    assert f"shmq topic update {topic} --queues 5 --kind normal" in caught.value.hint
    assert mq.admin.topics[topic] == made


def test_a_topic_is_changed_by_update_and_only_if_it_exists(mq: shmq.Connection, topic: str) -> None:
    with pytest.raises(shmq.TopicNotFound):
        mq.admin.update_topic(topic, queues=5)
    mq.admin.create_topic(topic, queues=2)
    assert mq.admin.update_topic(topic, queues=5).read_queues == 5
    assert mq.admin.update_topic(topic, kind="fifo")[:2] == (topic, "fifo")
    with pytest.raises(shmq.UsageError, match="nothing to change"):
        mq.admin.update_topic(topic)


def test_without_a_number_a_topic_gets_the_brokers_default(mq: shmq.Connection, topic: str) -> None:
    assert mq.admin.create_topic(topic).read_queues == 8


@pytest.mark.parametrize("arguments", [{"queues": 0}, {"queues": -1}, {"kind": "lifo"}])
def test_impossible_topics_are_refused(mq: shmq.Connection, topic: str, arguments: dict[str, Any]) -> None:
    with pytest.raises(shmq.UsageError):
        mq.admin.create_topic(topic, **arguments)
    assert topic not in mq.admin.topics


def test_a_deleted_topic_is_gone_and_may_be_made_anew(mq: shmq.Connection, topic: str) -> None:
    mq.send(topic, b"old")
    mq.admin.delete_topic(topic)
    assert topic not in mq.admin.topics
    with pytest.raises(shmq.TopicNotFound):
        mq.admin.delete_topic(topic)
    mq.send(topic, b"new")
    with mq.pull_consumer(topic) as consumer:
        assert [message.body for message in consumer.poll(10, wait=60)] == [b"new"]


def test_a_group_shows_its_lag_queue_by_queue_and_its_oldest_message(
    mq: shmq.Connection, topic: str, group: str
) -> None:
    for number in range(5):
        mq.send(topic, b"%d" % number, queue_id=1)
    consume(mq, topic, group, 2)
    lag = mq.admin.groups[group].lag
    assert (lag.total, int(lag)) == (3, 3)
    (busy,) = [entry for entry in lag.offsets if entry.behind]
    assert (busy.topic, busy.queue_id, busy.committed, busy.offset_max, busy.owner) == (topic, 1, 2, 5, -1)
    assert 0 <= lag.oldest_age < 60
    consume(mq, topic, group, 3)
    assert mq.admin.groups[group].lag[::2] == (0, 0.0)


def test_groups_are_a_mapping(mq: shmq.Connection, topic: str, group: str) -> None:
    assert group not in mq.admin.groups
    with pytest.raises(KeyError, match=group):
        mq.admin.groups[group]
    with mq.subscribe(topic, group=group) as subscription:
        assert group in mq.admin.groups
        assert group in list(mq.admin.groups)
        assert mq.admin.groups[group].members == [mq.client_id]
        subscription.close()
    assert mq.admin.groups[group].members == []


@pytest.mark.parametrize(("to", "new"), [("begin", 0), ("end", 10), (4, 4), ("-1h", 0), ("2000-01-01T00:00:00Z", 0)])
def test_a_reset_moves_the_group_and_says_what_that_means(
    mq: shmq.Connection, topic: str, group: str, to: Any, new: int
) -> None:
    for number in range(10):
        mq.send(topic, b"%d" % number, queue_id=0)
    consume(mq, topic, group, 6)
    steps = mq.admin.groups[group].reset(topic, to=to, dry_run=True)
    assert (steps[0].queue_id, steps[0].now, steps[0].new) == (0, 6, new)
    assert (steps[0].again, steps[0].skipped) == (max(0, 6 - new), max(0, new - 6))
    assert mq.admin.groups[group].lag.total == 4
    assert mq.admin.groups[group].reset(topic, to=to) == steps
    assert mq.admin.groups[group].lag.total == 10 - new
    with mq.subscribe(topic, group=group) as subscription:
        assert [int(message.body) for message in subscription.receive(100, wait=0.2)] == list(range(new, 10))


def test_a_reset_is_refused_while_a_member_reads(
    shmq_shared_broker: SharedBroker, mq: shmq.Connection, topic: str, group: str
) -> None:
    mq.send(topic, b"x", queue_id=0)
    consume(mq, topic, group, 1)
    with shmq_shared_broker.connect() as other, other.subscribe(topic, group=group) as subscription:
        assert subscription.queues
        with pytest.raises(shmq.ConsumeError) as caught:
            mq.admin.groups[group].reset(topic, to="begin")
        assert "stop its members" in caught.value.hint
    assert mq.admin.groups[group].lag.total == 0
    mq.admin.groups[group].reset(topic, to="begin")
    assert mq.admin.groups[group].lag.total == 1


def test_a_reset_is_refused_while_the_same_process_reads(mq: shmq.Connection, topic: str, group: str) -> None:
    """Its next acknowledgement would undo the reset, and its queues would be given away."""
    mq.send(topic, b"x", queue_id=0)
    with mq.subscribe(topic, group=group) as subscription:
        for message in subscription.receive(1, wait=60):
            message.ack()
        owners = [entry.owner for entry in mq.admin.groups[group].offsets]
        with pytest.raises(shmq.ConsumeError, match="a consumer of this process"):
            mq.admin.groups[group].reset(topic, to="begin")
        assert [entry.owner for entry in mq.admin.groups[group].offsets] == owners
        assert mq.admin.groups[group].lag.total == 0


def test_a_dry_run_changes_nothing(
    shmq_shared_broker: SharedBroker, mq: shmq.Connection, topic: str, group: str
) -> None:
    """A group that never read a topic does not come to have offsets there by being asked what a reset would do."""
    never_read = shmq_shared_broker.named("unread")
    mq.send(never_read, b"x", queue_id=0)
    mq.send(topic, b"x", queue_id=0)
    consume(mq, topic, group, 1)
    steps = mq.admin.groups[group].reset(never_read, to="end", dry_run=True)
    assert (steps[0].now, steps[0].new) == (-1, 1) and len(steps) == 8
    assert {entry.topic for entry in mq.admin.groups[group].offsets if not entry.topic.startswith("%")} == {topic}


def test_a_reset_of_a_topic_that_does_not_exist_names_the_nearest(mq: shmq.Connection, topic: str, group: str) -> None:
    mq.send(topic, b"x")
    consume(mq, topic, group, 1)
    with pytest.raises(shmq.TopicNotFound) as caught:
        mq.admin.groups[group].reset(topic + "s", to="begin")
    assert topic in caught.value.hint


def test_a_group_is_deleted_with_its_offsets_but_not_while_it_has_members(
    mq: shmq.Connection, topic: str, group: str
) -> None:
    mq.send(topic, b"x")
    with mq.subscribe(topic, group=group), pytest.raises(shmq.ConsumeError, match="1 members"):
        mq.admin.groups[group].delete()
    found = mq.admin.groups[group]
    found.delete()
    assert group not in mq.admin.groups
    assert found.offsets == []


def test_there_are_no_dead_letters_of_a_group_that_gave_nothing_up(mq: shmq.Connection, group: str) -> None:
    assert mq.admin.dlq(group) == []
    with pytest.raises(shmq.UsageError):
        mq.admin.dlq(group, limit=0)


def test_dead_letters_come_oldest_first_up_to_the_limit(mq: shmq.Connection, topic: str, group: str) -> None:
    with mq.subscribe(topic, group=group) as subscription:
        for number in range(4):
            mq.send(topic, b"%d" % number, queue_id=0)
            subscription.reject(subscription.receive(1, wait=60)[0], f"reason {number}")
    assert [letter.body for letter in mq.admin.dlq(group)] == [b"0", b"1", b"2", b"3"]
    assert [letter.reason for letter in mq.admin.dlq(group, limit=2)] == ["reason 0", "reason 1"]


def test_a_strangers_dead_letter_cannot_be_resent_without_a_topic(mq: shmq.Connection, group: str) -> None:
    mq.send(f"%DLQ%{group}", b"by hand")
    (letter,) = mq.admin.dlq(group)
    assert (letter.origin_topic, letter.origin_message_id, letter.reason) == ("", "", "")
    with pytest.raises(shmq.UsageError):
        letter.resend()


def test_a_living_broker_is_well(mq: shmq.Connection, eventually: Eventually) -> None:
    def bad() -> list[str]:
        return [str(check) for check in mq.admin.health().checks if check.verdict != "OK"]

    # A keeper that has no time just now, or is held by a debugger, is not well, and is again when it goes on.
    eventually(lambda: not bad(), lambda: "; ".join(bad()))
    health = mq.admin.health()
    names = {check["name"].split()[0] for check in health.as_dict()["checks"]}
    assert {"control", "daemon", "store", "disk", "log", "recovery"} <= names


def test_a_broker_without_its_daemon_or_without_a_writable_store_is_not(eventually: Eventually) -> None:
    with Broker() as broker, broker.connect() as mq:
        (broker.store / "checkpoint").unlink()
        eventually(
            lambda: [check.verdict for check in mq.admin.health().checks if "files" in check.name] == ["WARNING"]
        )
        KeeperStore(mq._live().wire.store).set_read_only(5)
        store = next(check for check in mq.admin.health().checks if check.name == "store")
        assert (store.verdict, store.figures) == ("CRITICAL", {"read_only": 5})
        with pytest.raises(shmq.ReadOnlyStore):
            mq.send("orders", b"x")
        broker.kill_daemon()
        eventually(lambda: mq.admin.health().verdict == "CRITICAL")


def test_the_status_names_the_broker_and_its_clients(mq: shmq.Connection, shmq_shared_broker: SharedBroker) -> None:
    status = mq.admin.status()
    assert status["broker"]["name"] == shmq_shared_broker.broker.name
    assert mq.client_id in {entry["clientId"] for entry in status["connections"]}
