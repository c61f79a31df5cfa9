"""Progress of groups, looked at and changed: reset, skip and clone do the same on both transports."""

from collections.abc import Callable

import pytest

import shmq

Named = Callable[[str], str]


@pytest.fixture
def filled(mq: shmq.Connection, topic: str) -> str:
    """A topic with four queues of ten messages each."""
    for queue_id in range(4):
        mq.send_batch(topic, [b"%d" % number for number in range(10)], queue_id=queue_id)
    return topic


@pytest.fixture
def group(mq: shmq.Connection, filled: str, named: Named) -> str:
    """A group that is at offset 4 of every queue."""
    name = named("billing")
    with mq.pull_consumer(filled) as consumer:
        consumer.commit(name, offsets=dict.fromkeys(range(4), 4))
    return name


def at(mq: shmq.Connection, group: str) -> list[int]:
    return [entry.committed for entry in mq.admin.groups[group].offsets]


@pytest.mark.parametrize(
    ("to", "new"), [("begin", 0), ("end", 10), (7, 7), ("7", 7), (10**12, 10), ("-1h", 0), ("2999-01-01T00:00:00Z", 10)]
)
def test_a_reset_goes_to_the_place_that_is_named(
    mq: shmq.Connection, filled: str, group: str, to: str | int, new: int
) -> None:
    steps = mq.admin.groups[group].reset(filled, to=to, dry_run=True)
    assert [(step.queue_id, step.now, step.new) for step in steps] == [(queue_id, 4, new) for queue_id in range(4)]
    assert at(mq, group) == [4] * 4
    assert mq.admin.groups[group].reset(filled, to=to) == steps
    assert at(mq, group) == [new] * 4


def test_a_skip_leaves_out_what_was_not_consumed(mq: shmq.Connection, filled: str, group: str) -> None:
    assert [step.skipped for step in mq.admin.groups[group].skip(filled, dry_run=True)] == [6] * 4
    assert at(mq, group) == [4] * 4
    mq.admin.groups[group].skip(filled)
    assert at(mq, group) == [10] * 4


def test_a_clone_gives_another_group_the_same_progress(
    mq: shmq.Connection, filled: str, group: str, named: Named
) -> None:
    other = named("audit")
    planned = mq.admin.groups[group].clone(other, dry_run=True)
    assert [(step.now, step.new) for step in planned[filled]] == [(-1, 4)] * 4
    assert other not in mq.admin.groups
    mq.admin.groups[group].clone(other, topic=filled)
    assert at(mq, other) == at(mq, group) == [4] * 4


def test_where_members_read_nothing_is_moved(
    mq: shmq.Connection, connect: Callable[..., shmq.Connection], filled: str, group: str, named: Named
) -> None:
    with connect().subscribe(filled, group=group) as consumer:
        assert consumer.receive(1, 20.0)
        before = at(mq, group)
        for change in (
            lambda: mq.admin.groups[group].reset(filled, to="begin"),
            lambda: mq.admin.groups[group].skip(filled),
        ):
            with pytest.raises(shmq.ConsumeError, match=f"group .{group}. (reads|has)"):
                change()
        assert at(mq, group) == before


BAD_PLACES = ["", "soon", "-2", -1, "-5y", True, 1.5]


@pytest.mark.parametrize("to", BAD_PLACES)
def test_a_place_that_is_none_is_refused_and_nothing_changes(
    mq: shmq.Connection, filled: str, group: str, to: object
) -> None:
    with pytest.raises(shmq.UsageError):
        mq.admin.groups[group].reset(filled, to=to)  # type: ignore[arg-type]
    assert at(mq, group) == [4] * 4


@pytest.mark.parametrize("name", ["..", "../x", "a b", "", "g" * 300, "a\0", "\ud800", "\u3000"])
def test_a_group_that_cannot_be_is_refused(mq: shmq.Connection, filled: str, group: str, name: str) -> None:
    with pytest.raises(shmq.InvalidName):
        mq.admin.groups[group].clone(name)
    with pytest.raises(KeyError):
        mq.admin.groups[name]
    assert at(mq, group) == [4] * 4


def test_a_topic_that_does_not_exist_is_named(mq: shmq.Connection, group: str, named: Named) -> None:
    with pytest.raises(shmq.TopicNotFound):
        mq.admin.groups[group].reset(named("nosuch"), to="end")
    with pytest.raises(shmq.TopicNotFound):
        mq.admin.groups[group].clone("other", topic=named("nosuch"))
    with pytest.raises(shmq.UsageError, match="itself"):
        mq.admin.groups[group].clone(group)
