"""Delay levels: RocketMQ's table, its bounds, and the due time every unit of the schedule topic says."""

import pytest

from shmq.delay_levels import DelayLevels
from shmq.errors import UsageError
from tests.tables.rows import every_row


def test_the_default_levels_are_rocketmqs() -> None:
    levels = DelayLevels()
    assert levels.count == 18
    seconds = [levels.delay_ms(level) // 1000 for level in range(1, 19)]
    assert seconds == [1, 5, 10, 30, *range(60, 601, 60), 1200, 1800, 3600, 7200]


@every_row(("wanted", "level"), [(-1, 0), (0, 0), (1, 1), (18, 18), (19, 18), (1 << 31, 18)])
def test_a_wanted_level_is_bounded_by_those_there_are(wanted: int, level: int) -> None:
    assert DelayLevels().level_of(wanted) == level


def test_a_record_is_due_its_queues_delay_after_it_was_stored() -> None:
    levels = DelayLevels("2s 3m 1d")
    assert [levels.due_ms(queue_id, 1000) for queue_id in range(3)] == [3000, 181_000, 86_401_000]


def test_a_queue_beyond_the_levels_waits_a_second_as_in_rocketmq() -> None:
    assert DelayLevels("5s").due_ms(7, 1000) == 2000


@every_row("text", ["", "1", "s", "1x", "-1s", "1s 2", "1.5s", "\u0661s", "9999999999d", " ".join(["1s"] * 65)])
def test_a_text_that_names_no_delays_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        DelayLevels(text)
