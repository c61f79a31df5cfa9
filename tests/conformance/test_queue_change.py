"""A topic that gets fewer queues hides no message by that."""

from collections.abc import Callable
from typing import Any

import pytest

import shmq
from shmq.client.administration.interface import QueueChange, TopicQueues, change_queues
from tests.tables.rows import every_row

EIGHT = TopicQueues(8, 8, {0: 5, 3: 2, 6: 1})


@every_row(
    ("now", "wish", "change"),
    [
        (EIGHT, {"queues": 2}, QueueChange(7, 2, kept=3)),
        (EIGHT, {"queues": 4}, QueueChange(7, 4, kept=1)),
        (EIGHT, {"queues": 7}, QueueChange(7, 7)),
        (EIGHT, {"queues": 9}, QueueChange(9, 9)),
        (EIGHT, {"queues": 2, "read_queues": 2}, QueueChange(2, 2, hidden=3)),
        (EIGHT, {"queues": 2, "read_queues": 4}, QueueChange(4, 2, kept=2, hidden=1)),
        (EIGHT, {}, QueueChange(8, 8)),
        (TopicQueues(7, 2, {0: 5, 3: 2, 6: 1}), {"queues": 2}, QueueChange(7, 2, kept=3)),
        (TopicQueues(7, 2, {0: 5}), {"queues": 2}, QueueChange(2, 2)),
        (TopicQueues(7, 2, {0: 5, 6: 1}), {"read_queues": 2}, QueueChange(2, 2, hidden=1)),
        (TopicQueues(2, 2, {0: 5, 6: 1}), {"queues": 1}, QueueChange(1, 1)),
    ],
)
def test_a_number_of_queues_never_hides_a_message(now: TopicQueues, wish: dict[str, int], change: QueueChange) -> None:
    assert change_queues(now, **wish) == change


@pytest.mark.parametrize("wish", [{"queues": 0}, {"queues": 1025}, {"read_queues": 7}, {"queues": 4, "read_queues": 3}])
def test_numbers_that_cannot_be_are_refused(wish: dict[str, int]) -> None:
    with pytest.raises(shmq.UsageError):
        change_queues(EIGHT, **wish)


def test_messages_stay_readable_until_read_queues_says_otherwise(mq: shmq.Connection, topic: str) -> None:
    for number in range(12):
        mq.send(topic, b"%d" % number, queue_id=number % 4)
    info = mq.admin.update_topic(topic, queues=1)
    assert (info.read_queues, info.write_queues, info.messages) == (4, 1, 12)
    again = mq.admin.update_topic(topic, queues=1)
    assert (again.read_queues, again.write_queues, again.messages) == (4, 1, 12)
    with mq.pull_consumer(topic) as consumer:
        bodies: list[bytes] = []
        while len(bodies) < 12:
            bodies += [message.body for message in consumer.poll(12, wait=60)]
    assert sorted(map(int, bodies)) == list(range(12))
    hidden = mq.admin.update_topic(topic, read_queues=1)
    assert (hidden.read_queues, hidden.write_queues, hidden.messages) == (1, 1, 3)


def test_changing_a_topic_changes_nothing_that_was_not_named(
    mq: shmq.Connection, named: Callable[[str], str], broker: Any
) -> None:
    name = named("ledger")
    mq.admin.create_topic(name, queues=2, kind="fifo")
    with shmq.connect(broker.url) as local:
        local._local().wire.control.create_topic(name, queues=2, perm=4, kind="fifo", flush="sync")
    info = mq.admin.update_topic(name, queues=3)
    assert (info.kind, info.perm, info.write_queues) == ("fifo", 4, 3)


def test_the_kind_is_changed_and_changed_back(mq: shmq.Connection, topic: str) -> None:
    for kind in ("fifo", "normal", "delay"):
        info = mq.admin.update_topic(topic, kind=kind)
        assert info.kind == kind


def test_the_flush_of_a_topic_is_given_shown_and_changed(mq: shmq.Connection, named: Callable[[str], str]) -> None:
    name = named("ledger")
    assert mq.admin.create_topic(name, queues=1, flush="sync").flush == "sync"
    assert mq.admin.create_topic(name, flush="sync") == mq.admin.topics[name]
    with pytest.raises(shmq.TopicExists, match="flush is sync, not async") as refused:
        mq.admin.create_topic(name, flush="async")
    assert f"shmq topic update {name} --flush async" in refused.value.hint
    assert mq.admin.update_topic(name, queues=2).flush == "sync"
    assert [mq.admin.update_topic(name, flush=flush).flush for flush in ("async", "broker")] == ["async", "broker"]
    with pytest.raises(shmq.UsageError, match="flush='now' does not exist"):
        mq.admin.update_topic(name, flush="now")  # type: ignore[arg-type]
