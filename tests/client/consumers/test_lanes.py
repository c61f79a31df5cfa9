"""Which message a listener's worker takes next."""

from collections.abc import Callable
from typing import Any

from shmq.client import options
from shmq.client.consumers.lanes import Lanes

Make = Callable[..., Any]


def test_without_order_every_message_may_be_taken_at_once(message: Make) -> None:
    lanes = Lanes(ordered=False)
    first, second = message(0, 0), message(0, 1)
    lanes.offer(first)
    lanes.offer(second)
    assert [lanes.take(), lanes.take(), lanes.take()] == [first, second, None]


def test_ordered_one_message_of_a_queue_is_in_flight(message: Make) -> None:
    lanes = Lanes(ordered=True)
    first, second, other = message(0, 0), message(0, 1), message(1, 0)
    for each in (first, second, other):
        lanes.offer(each)
    assert [lanes.take(), lanes.take(), lanes.take()] == [first, other, None]
    assert lanes.finish(first, consumed=True)
    assert lanes.take() is second


def test_messages_behind_one_that_runs_are_nothing_that_a_free_worker_could_take(message: Make) -> None:
    lanes = Lanes(ordered=True)
    first = message(0, 0)
    for each in (first, *(message(0, offset) for offset in range(1, 100))):
        lanes.offer(each)
    assert lanes.waiting_count == 100
    assert lanes.take() is first
    assert lanes.waiting_count == 0
    lanes.offer(message(1, 0))
    assert lanes.waiting_count == 1
    lanes.finish(first, consumed=True)
    assert lanes.waiting_count == 100


def test_a_message_given_back_blocks_its_queue_until_it_returns(message: Make) -> None:
    lanes = Lanes(ordered=True)
    first, second = message(0, 0), message(0, 1)
    lanes.offer(first)
    lanes.offer(second)
    assert lanes.take() is first
    assert not lanes.finish(first, consumed=False)
    third = message(0, 2)
    assert not lanes.offer(third)
    assert lanes.take() is None
    assert lanes.waiting_count == 0
    assert lanes.offer(first)
    assert lanes.take() is first
    lanes.finish(first, consumed=True)
    assert lanes.take() is second
    lanes.finish(second, consumed=True)
    assert lanes.take() is third


def test_a_forgotten_queue_leaves_nothing_and_is_not_confused_with_its_return(message: Make) -> None:
    lanes = Lanes(ordered=True)
    first, second = message(0, 0), message(0, 1)
    lanes.offer(first)
    lanes.offer(second)
    lanes.take()
    lanes.forget(0)
    assert lanes.take() is None
    assert not lanes.finish(first, consumed=True)
    again = message(0, 0)
    assert lanes.offer(again)
    assert lanes.take() is again


def test_forgetting_without_order_drops_what_waits(message: Make) -> None:
    lanes = Lanes(ordered=False)
    ours, theirs = message(0, 0), message(1, 0)
    lanes.offer(theirs)
    lanes.offer(ours)
    lanes.forget(1)
    assert [lanes.take(), lanes.take()] == [ours, None]


def test_a_crowded_queue_pauses_and_goes_on_when_it_has_emptied(message: Make) -> None:
    lanes = Lanes(ordered=True)
    crowd = [message(0, offset) for offset in range(options.LISTENER_BACKLOG + 2)]
    for each in crowd:
        lanes.offer(each)
    assert lanes.relieve({0}, {}) == {0: True}
    assert lanes.relieve((), {}) == {}
    while lanes.waiting_in(0) > options.LISTENER_BACKLOG // 2:
        assert lanes.relieve((), {}) == {}
        taken = lanes.take()
        assert taken is not None
        lanes.finish(taken, consumed=True)
    assert lanes.relieve((), {}) == {0: False}
    assert lanes.relieve({0}, {}) == {}


def test_without_order_a_queue_stops_at_a_thousand_messages_and_goes_on_below(message: Make) -> None:
    lanes = Lanes(ordered=False)
    taken = [message(0, offset) for offset in range(options.HELD_COUNT_MAX)]
    for each in taken[:-1]:
        lanes.offer(each)
    assert lanes.relieve({0}, {}) == {}
    lanes.offer(taken[-1])
    assert lanes.relieve({0}, {}) == {0: True} and lanes.is_awaited(0)
    assert lanes.take() is taken[0]
    assert lanes.relieve((), {}) == {}, "taken is not settled"
    lanes.finish(taken[0], consumed=True)
    assert lanes.relieve((), {}) == {0: False} and not lanes.is_awaited(0)


def test_without_order_a_queue_stops_while_one_message_holds_up_two_thousand(message: Make) -> None:
    lanes = Lanes(ordered=False)
    lanes.offer(message(0, 0))
    assert lanes.relieve({0}, {0: options.HELD_SPAN_MAX}) == {}
    assert lanes.relieve({0}, {0: options.HELD_SPAN_MAX + 1}) == {0: True}
    assert lanes.relieve((), {0: 0}) == {0: False}


def test_bytes_count_as_messages_do() -> None:
    assert options.is_full(1, options.HELD_BYTES_MAX, 0) and not options.is_full(1, options.HELD_BYTES_MAX - 1, 0)
