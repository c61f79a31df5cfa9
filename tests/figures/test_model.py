"""What figures come to: roles, names of numbers, offsets that were never set."""

from __future__ import annotations

from shmq.figures.model import QueueInfo, QueueLag, TopicInfo, flush_name, kind_name
from tests.tables.rows import every_row


@every_row(
    ("name", "perm", "role", "is_system", "is_hidden"),
    [
        ("orders", 6, "delay", False, False),
        ("%RETRY%g", 6, "retry", True, True),
        ("%DLQ%g", 2, "dlq", True, False),
        ("TBW102", 7, "system", True, True),
        ("SCHEDULE_TOPIC_XXXX", 6, "system", True, True),
    ],
)
def test_what_a_topic_is_for_follows_from_name_and_permission(
    name: str, perm: int, role: str, is_system: bool, is_hidden: bool
) -> None:
    topic = TopicInfo(name, "delay", (), 1, 1, perm)
    assert (topic.role, topic.is_system, topic.is_hidden) == (role, is_system, is_hidden)


def test_a_number_without_a_name_is_shown_as_it_is() -> None:
    assert [kind_name(number) for number in (0, 3, 4, -1)] == ["normal", "transaction", "kind 4", "kind -1"]
    assert [flush_name(number) for number in (0, 2, 3)] == ["broker", "sync", "flush 3"]


def test_the_flush_of_the_broker_is_none_of_its_own() -> None:
    flushes = [TopicInfo("orders", "normal", (), 1, 1, 6, flush).own_flush for flush in ("broker", "async", "sync")]
    assert flushes == [None, "async", "sync"]


def test_bounds_that_retention_moves_while_they_are_read_count_no_negative_messages() -> None:
    assert QueueInfo(0, 7, 5, 0).messages == 0


def test_a_group_that_never_committed_has_no_offset_and_everything_before_it() -> None:
    row = QueueLag("orders", 0, -1, 2, 7, -1, 0)
    assert (row.offset, row.behind, row.waiting) == (None, 5, 5)
    assert row._replace(committed=4).offset == 4
