"""One state has one answer: what waits, what is in hand, what is lost, and how they add up."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as some

from shmq.progress import Backlog
from tests.tables.rows import every_row

OFFSETS = some.integers(0, 1 << 60)


@every_row(
    ("backlog", "waiting", "lag", "in_flight", "ready", "lost"),
    [
        (Backlog(40, 0, 100), 60, 60, 0, 60, 0),
        (Backlog(100, 0, 100), 0, 0, 0, 0, 0),
        (Backlog(0, 0, 0), 0, 0, 0, 0, 0),
        (Backlog(-1, 0, 100), 100, 100, 0, 100, 0),  # never committed
        (Backlog(-1, 50, 100), 50, 50, 0, 50, 50),
        (Backlog(10, 50, 100), 50, 50, 0, 50, 40),  # cleaned
        (Backlog(10, 50, 100, popped=3), 50, 53, 3, 50, 40),
        (Backlog(40, 0, 100, handed=45), 60, 60, 5, 55, 0),
        (Backlog(40, 0, 100, popped=3, handed=45), 60, 63, 8, 55, 0),
        (Backlog(10, 50, 100, handed=20), 50, 50, 0, 50, 40),  # what it was handed is gone
        (Backlog(120, 0, 100, handed=130), 0, 0, 0, 0, 0),  # of a queue that was made anew
    ],
)
def test_one_state_has_one_answer(
    backlog: Backlog, waiting: int, lag: int, in_flight: int, ready: int, lost: int
) -> None:
    found = (backlog.waiting, backlog.lag, backlog.in_flight, backlog.ready, backlog.lost)
    assert found == (waiting, lag, in_flight, ready, lost)


@given(some.integers(-1, 1 << 60), OFFSETS, OFFSETS, OFFSETS, OFFSETS)
def test_no_figure_is_negative_and_lag_is_in_flight_and_ready(
    committed: int, begin: int, end: int, popped: int, handed: int
) -> None:
    backlog = Backlog(committed, begin, end, popped, handed)
    assert min(backlog.waiting, backlog.lag, backlog.in_flight, backlog.ready, backlog.lost) >= 0
    assert backlog.lag == backlog.in_flight + backlog.ready == backlog.waiting + popped
