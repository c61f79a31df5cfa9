"""A message that waited is copied exactly once, whichever store of delivery was the last one of a process or a host."""

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from shmq.daemon.broker.log import NewRecord
from shmq.daemon.broker.settings import BrokerSettings
from shmq.daemon.broker.tables import committed_of
from shmq.daemon.broker.timers import timers
from shmq.daemon.broker.timers.copies import Copies
from shmq.delay_levels import SCHEDULE_COPIES_GROUP, SCHEDULE_GROUP, SCHEDULE_TOPIC
from shmq.errors import SegmentFull
from shmq.timing import TIMER_COPIES_GROUP, TIMER_GROUPS, TIMER_TOPIC
from tests.broker.timers.test_delay import Delaying
from tests.broker.timers.test_timers import DAY, HOUR, Timing

Scene = Timing | Delaying


class Killed(BaseException):
    """The process ends here."""


@pytest.fixture
def timing(tables: Any, settings: BrokerSettings) -> Timing:
    return Timing(tables, settings)


@pytest.fixture
def delaying(tables: Any) -> Delaying:
    return Delaying(tables)


def test_copies_begin_only_when_the_place_they_are_looked_for_from_is_written_down(timing: Timing) -> None:
    queue = timing.tables.topic(TIMER_TOPIC).queues[0]
    copies = Copies(timing.tables, timing.log, (TIMER_TOPIC, queue, "marks"), has_words=True, is_covered=lambda _: True)
    timing.send(b"x", timing.clock() + 1000)  # the log is not empty
    timing.tables.group_max = len(timing.tables.all_groups)
    for _ in range(2):
        with pytest.raises(SegmentFull):
            copies.begin()
    timing.tables.group_max += 1
    copies.begin()
    assert committed_of(timing.tables, "marks", queue) == timing.log.end


def run_killed(scene: Scene, milliseconds: int, steps: int) -> bool:
    """Run until so many writes, to the log or to a word of progress, were done, and start anew; whether that was so."""
    append, commit = scene.log.append, scene.tables.set_committed
    left = steps

    def step(action: Callable[..., Any]) -> Callable[..., Any]:
        def taken(*values: Any) -> Any:
            nonlocal left
            if left == 0:
                raise Killed
            left -= 1
            return action(*values)

        return taken

    scene.log.append, scene.tables.set_committed = step(append), step(commit)  # type: ignore[method-assign]
    try:
        scene.run(scene.now_ms + milliseconds)
    except Killed:
        return True
    finally:
        scene.log.append, scene.tables.set_committed = append, commit  # type: ignore[method-assign]
        scene.start()
    return False


def set_clock(scene: Scene, ahead_ms: int) -> None:
    scene.skew_ms += ahead_ms
    scene.at(scene.now_ms)


def words(scene: Scene, topic: str, groups: Sequence[str], mark_group: str) -> dict[int, int]:
    """What the keeper writes down: the log's end where no mark stands, and the words."""
    tables = scene.tables
    found = tables.topic(topic)
    assert found is not None
    slots = [tables.offset_put(tables.group_put(group), queue) for group in groups for queue in found.queues]
    mark = tables.offset_put(tables.group_put(mark_group), found.queues[0])
    return {mark: max(0, tables.committed(mark)) or scene.log.end} | {slot: tables.committed(slot) for slot in slots}


def test_a_copy_whose_word_was_not_moved_any_more_is_not_made_again(timing: Timing) -> None:
    timing.run(timing.now_ms + 10)
    timing.send(b"x", timing.clock() + 100)
    steps = 0
    while run_killed(timing, 200, steps):
        timing.run(timing.now_ms + 200)
        assert timing.delivered() == [b"x"] * len(timing.delivered())
        steps += 1
        timing.send(b"x", timing.clock() + 100)
    assert steps > 3
    assert timing.delivered() == [b"x"] * (steps + 1)


def test_a_delayed_copy_whose_offset_was_not_moved_any_more_is_not_made_again(delaying: Delaying) -> None:
    for steps in range(6):
        delaying.send(b"%d" % steps, 1)
        run_killed(delaying, 1500, steps)
        delaying.run(delaying.now_ms + 2000)
    assert delaying.delivered() == [b"%d" % steps for steps in range(6)]


@pytest.mark.parametrize("seed", range(20))
def test_kills_and_a_clock_that_jumps_bring_no_timed_message_twice(timing: Timing, seed: int) -> None:
    dice = random.Random(seed)
    expected: list[bytes] = []
    kills = 0
    for turn in range(50):
        if turn % 9 == 4:
            set_clock(timing, dice.choice((-HOUR, -5000, -300, 300, 5000)))
        for _ in range(dice.randrange(4)):
            expected.append(b"%d" % len(expected))
            timing.send(expected[-1], timing.clock() + 1 + dice.choice((0, 0, 3, 40, 700, 9000)))
        kills += run_killed(timing, dice.choice((1, 50, 900)), dice.randrange(8))
    set_clock(timing, 10 * HOUR)
    timing.run(timing.now_ms + 3000)
    assert sorted(timing.delivered()) == sorted(expected)
    assert kills > 5


@pytest.mark.parametrize("seed", range(12))
def test_kills_and_a_clock_that_jumps_bring_no_delayed_message_twice(delaying: Delaying, seed: int) -> None:
    dice = random.Random(seed)
    expected: list[bytes] = []
    kills = 0
    for turn in range(40):
        if turn % 9 == 4:
            set_clock(delaying, dice.choice((-HOUR, -5000, 5000)))
        for _ in range(dice.randrange(4)):
            expected.append(b"%d" % len(expected))
            delaying.send(expected[-1], dice.choice((1, 1, 2, 3)))
        kills += run_killed(delaying, dice.choice((1, 1100, 2500)), dice.randrange(9))
    delaying.run(delaying.now_ms + 60_000)
    assert sorted(delaying.delivered()) == sorted(expected)
    assert kills > 3


def test_a_clock_set_back_and_two_kills_bring_nothing_twice(timing: Timing) -> None:
    timing.send(b"before", timing.clock() + 100)
    timing.run(timing.now_ms + 1000)
    set_clock(timing, -HOUR)
    timing.send(b"held", timing.clock() + 30 * 60_000)
    for number in range(5):
        timing.send(b"%d" % number, timing.clock() + 1000 + 100 * number)
    for _ in range(2):
        timing.run(timing.now_ms + 3000)
        timing.start()
    set_clock(timing, -HOUR)
    timing.start()
    timing.run(timing.now_ms + 1000)
    set_clock(timing, 3 * HOUR)
    timing.run(timing.now_ms + 1000)
    assert timing.delivered() == [b"before", b"0", b"1", b"2", b"3", b"4", b"held"]


def test_a_message_that_was_stored_anew_when_the_process_was_killed_is_not_stored_anew_again(timing: Timing) -> None:
    timing.send(b"x", timing.clock() + 5 * DAY)
    kills = 0
    for _ in range(6 * 24):
        timing.at(timing.now_ms + HOUR)
        kills += run_killed(timing, 50, 2)  # the mark, and the copy
        timing.run(timing.now_ms + 10)
    assert kills > 1
    assert timing.delivered() == [b"x"]


def test_words_that_a_host_took_back_lead_to_the_copies_that_are_in_the_log(timing: Timing) -> None:
    for number in range(30):
        timing.send(b"%d" % number, timing.clock() + 100 + 50 * number)
    timing.run(timing.now_ms + 500)
    kept = words(timing, TIMER_TOPIC, TIMER_GROUPS, TIMER_COPIES_GROUP)
    timing.run(timing.now_ms + 500)
    assert len(timing.delivered()) > 15
    timing.tables.progress.update(kept)
    timing.start()
    timing.run(timing.now_ms + 3000)
    assert timing.delivered() == [b"%d" % number for number in range(30)]


def test_offsets_of_levels_that_a_host_took_back_lead_to_the_copies_that_are_in_the_log(delaying: Delaying) -> None:
    for number in range(10):
        delaying.send(b"%d" % number, 1 + number % 2)
    kept = words(delaying, SCHEDULE_TOPIC, [SCHEDULE_GROUP], SCHEDULE_COPIES_GROUP)
    delaying.run(delaying.now_ms + 2000)
    assert len(delaying.delivered()) == 5
    delaying.tables.progress.update(kept)
    delaying.start()
    delaying.run(delaying.now_ms + 8000)
    assert sorted(delaying.delivered()) == [b"%d" % number for number in range(10)]


def without_words(scene: Scene, topic: str, groups: Sequence[str], mark: str) -> None:
    """The log came from another host, whose words did not."""
    for key in words(scene, topic, groups, mark):
        scene.tables.progress.pop(key, None)
    scene.start()


def test_without_any_words_the_copies_of_timed_messages_are_found_behind_the_oldest(timing: Timing) -> None:
    for number in range(30):
        timing.send(b"%d" % number, timing.clock() + 100 + 50 * number)
    timing.run(timing.now_ms + 800)
    assert len(timing.delivered()) > 10
    without_words(timing, TIMER_TOPIC, TIMER_GROUPS, TIMER_COPIES_GROUP)
    timing.run(timing.now_ms + 3000)
    assert timing.delivered() == [b"%d" % number for number in range(30)]


def test_without_any_words_the_copies_of_delayed_messages_are_found_behind_the_oldest(delaying: Delaying) -> None:
    for number in range(10):
        delaying.send(b"%d" % number, 1 + number % 2)
    delaying.run(delaying.now_ms + 2000)
    assert len(delaying.delivered()) == 5
    without_words(delaying, SCHEDULE_TOPIC, [SCHEDULE_GROUP], SCHEDULE_COPIES_GROUP)
    delaying.run(delaying.now_ms + 8000)
    assert sorted(delaying.delivered()) == [b"%d" % number for number in range(10)]


def test_a_log_without_copies_is_read_once_for_them(delaying: Delaying) -> None:
    delaying.send(b"waits", 2)
    for _ in range(50):
        delaying.log.append(delaying.topic("orders"), 0, NewRecord(b"other"))
    delaying.start()
    delaying.run(delaying.now_ms + 20)
    walked = delaying.log.walked
    delaying.start()
    delaying.run(delaying.now_ms + 20)
    assert delaying.log.walked == walked


def test_a_start_with_nothing_in_doubt_reads_nothing_of_the_log(timing: Timing) -> None:
    for number in range(20):
        timing.send(b"%d" % number, timing.clock() + 100 + 50 * number)
        timing.run(timing.now_ms + 70)
        timing.start()
    timing.run(timing.now_ms + 3000)
    assert timing.log.walked == 0
    kept = words(timing, TIMER_TOPIC, TIMER_GROUPS, TIMER_COPIES_GROUP)
    timing.tables.progress.update(kept)  # an orderly stop of the host: the mark is the log's end
    timing.start()
    timing.run(timing.now_ms + 3000)
    assert timing.log.walked == 0


@pytest.mark.parametrize("body", [b"x", b"other"])
def test_only_the_same_message_counts_as_a_copy_and_only_where_its_queue_holds_it(timing: Timing, body: bytes) -> None:
    timing.send(b"x", timing.clock() + 1000)
    timing.run(timing.now_ms + 10)
    waiting = int.from_bytes(timing.log.records[timing.queue][0][0][28:36], "big")
    mark = words(timing, TIMER_TOPIC, (), TIMER_COPIES_GROUP)
    queue = timing.topic("orders").queues[2]
    timing.log.append(timing.topic("orders"), 2, NewRecord(body, prepared_position=waiting + 1))
    if body == b"x":  # as if found inside of a body
        units = timing.tables.units
        timing.tables.units = lambda index, first, count: [] if index == queue else units(index, first, count)
    timing.tables.progress.update(mark)
    timing.start()
    timing.run(timing.now_ms + 2000)
    assert timing.log.walked > 0
    assert [record.body for record in timing.log.stored(timing.topic("orders"), 1)] == [b"x"]


def test_the_mark_moves_on_while_late_messages_hold_the_progress(
    timing: Timing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timers, "_NOTES_MAX", 4)
    timing.send(b"before", timing.clock() + 100)
    timing.run(timing.now_ms + 1000)
    set_clock(timing, -HOUR)
    marks = []
    expected = [b"before"]
    for number in range(60):
        expected.append(b"%d" % number)
        timing.send(expected[-1], timing.clock() + 500)
        timing.run(timing.now_ms + 120)
        if number % 20 == 10:
            timing.start()
        slot = timing.tables.offset_put(timing.tables.group_put(TIMER_COPIES_GROUP), timing.queue)
        marks.append(timing.tables.committed(slot))
    assert all(marks[20:])
    assert marks == sorted(marks) and len(set(marks)) > 10
    timing.run(timing.now_ms + 1000)
    assert timing.delivered() == expected
    assert timing.tables.committed(slot) == 0
