"""One queue of one reader: what may be committed, when pulling pauses, and what is out of date."""

from collections.abc import Callable
from typing import Any

import pytest

from shmq.client.options import HELD_BYTES_MAX, HELD_COUNT_MAX, HELD_SPAN_MAX
from shmq.client.remote.reader import ProcessQueue
from shmq.protocol.dialect import MessageQueue

QUEUE = MessageQueue("a", 0, "T")


class Record:
    """The two numbers of a message that a process queue looks at."""

    def __init__(self, offset: int, record_bytes: int = 100) -> None:
        self.offset = offset
        self.record_bytes = record_bytes


@pytest.fixture
def filled() -> Callable[..., ProcessQueue]:
    def make(*offsets: int, settles: bool = True, size: int = 100, ordered: bool = False) -> ProcessQueue:
        queue = ProcessQueue(QUEUE, 0, 0, settles=settles, ordered=ordered)
        records: list[Any] = [Record(offset, size) for offset in offsets]
        assert queue.arrive(records, max(offsets, default=-1) + 1, 10_000, 0)
        return queue

    return make


def test_the_committed_offset_never_passes_a_message_that_is_not_settled(filled: Callable[..., ProcessQueue]) -> None:
    queue = filled(0, 1, 2)
    assert queue.committed == 0
    queue.settle(1)
    assert queue.committed == 0
    queue.settle(0)
    assert queue.committed == 2
    queue.settle(2)
    assert queue.committed == 3


def test_offsets_that_the_filter_left_out_do_not_hold_the_commit_up(filled: Callable[..., ProcessQueue]) -> None:
    queue = filled(5, 9)
    assert queue.committed == 5
    queue.settle(5)
    assert queue.committed == 9
    queue.settle(9)
    assert queue.committed == 10


def test_settling_twice_counts_once(filled: Callable[..., ProcessQueue]) -> None:
    queue = filled(0, 1)
    assert queue.settle(0) and not queue.settle(0)
    assert (queue.cached_count, queue.cached_bytes) == (1, 100)


def test_what_arrives_twice_is_taken_once(filled: Callable[..., ProcessQueue]) -> None:
    queue = filled(0, 1)
    again: list[Any] = [Record(1), Record(2)]
    queue.arrive(again, 3, 3, 0)
    assert [message.offset for message in queue.waiting] == [0, 1, 2]


@pytest.mark.parametrize("count", [HELD_COUNT_MAX - 1, HELD_COUNT_MAX])
def test_pulling_pauses_at_a_thousand_messages(filled: Callable[..., ProcessQueue], count: int) -> None:
    assert filled(*range(count)).is_full() is (count == HELD_COUNT_MAX)


def test_pulling_pauses_at_a_hundred_mebibytes(filled: Callable[..., ProcessQueue]) -> None:
    assert not filled(0, size=HELD_BYTES_MAX - 1).is_full()
    assert filled(0, size=HELD_BYTES_MAX).is_full()


def test_one_message_that_is_never_settled_stops_pulling_unless_order_matters(
    filled: Callable[..., ProcessQueue],
) -> None:
    assert not filled(0, HELD_SPAN_MAX).is_full()
    assert filled(0, HELD_SPAN_MAX + 1).is_full()
    assert not filled(0, HELD_SPAN_MAX + 1, ordered=True).is_full()


def test_after_a_restart_the_old_generation_is_nothing(filled: Callable[..., ProcessQueue]) -> None:
    queue = filled(0, 1)
    queue.restart(50)
    late: list[Any] = [Record(2)]
    assert not queue.arrive(late, 3, 3, 0)
    assert (queue.committed, queue.next_offset, queue.cached_count) == (50, 50, 0)
    assert not queue.settle(0)


def test_a_dropped_queue_keeps_its_committed_offset_and_delivers_nothing(filled: Callable[..., ProcessQueue]) -> None:
    queue = filled(0, 1, 2)
    queue.settle(0)
    queue.drop()
    late: list[Any] = [Record(3)]
    assert queue.committed == 1 and queue.take() is None
    assert not queue.arrive(late, 4, 4, queue.generation)


def test_a_paused_queue_delivers_nothing_and_loses_nothing(filled: Callable[..., ProcessQueue]) -> None:
    queue = filled(0)
    queue.paused = True
    assert queue.take() is None
    queue.paused = False
    taken = queue.take()
    assert taken is not None and taken.offset == 0


def test_without_acknowledgements_delivering_settles(filled: Callable[..., ProcessQueue]) -> None:
    queue = filled(0, 1, settles=False)
    queue.take()
    assert (queue.committed, queue.cached_count) == (1, 1)


def test_the_figures_for_operators_are_those_of_the_window(filled: Callable[..., ProcessQueue]) -> None:
    info = filled(3, 7).info()
    assert (info["cachedMsgMinOffset"], info["cachedMsgMaxOffset"], info["cachedMsgCount"]) == (3, 7, 2)
    assert info["commitOffset"] == 3 and info["droped"] is False


def test_a_reader_that_is_sent_back_delivers_what_waits_before_that_place(filled: Callable[..., ProcessQueue]) -> None:
    queue = filled(0, 1, 2, 3, settles=False)
    assert queue.take() is not None
    queue.begin_anew(2, keeps_waiting=True)
    late: list[Any] = [Record(2)]
    assert not queue.arrive(late, 3, 3, 0), "it may be of another log"
    assert queue.arrive(late, 3, 3, queue.generation)
    taken = [queue.take(), queue.take(), queue.take()]
    assert [message and message.offset for message in taken] == [1, 2, None]
    assert (queue.cached_count, queue.cached_bytes, queue.next_offset) == (0, 0, 3)
    given_back = filled(0, 1, 2, 3)
    taken_first = given_back.take()
    given_back.handed.add(0)
    given_back.begin_anew(2, keeps_waiting=True)
    assert taken_first is not None and given_back.handed == {0} and given_back.settle(0)
    assert (given_back.cached_count, given_back.cached_bytes, given_back.committed) == (1, 100, 1)


def test_a_member_that_is_sent_back_gets_what_it_held_from_the_broker(filled: Callable[..., ProcessQueue]) -> None:
    queue = filled(0, 1, 2, 3)
    queue.begin_anew(2)
    assert queue.take() is None and (queue.cached_count, queue.committed) == (0, 2)
