"""Rules of shmq.measurement.measure: roles, bodies, percentiles."""

from __future__ import annotations

import multiprocessing
import operator
import os
from collections import deque

import pytest

from shmq.measurement.measure import (
    Meet,
    Role,
    check_body,
    half_trips_us,
    median,
    messages_per_second,
    numbered_body,
    percentile,
    ping,
    plain_body,
    pong,
    receive_all,
    run_roles,
    send_all,
)
from tests.tables.rows import every_row


def test_every_role_runs_in_a_process_of_its_own_and_answers_in_order() -> None:
    answers = run_roles([Role(isinstance, (Meet,)), Role(isinstance, (int,))])
    assert answers == [True, False]


def test_roles_meet_each_other() -> None:
    meet = operator.methodcaller("__call__")
    assert run_roles([Role(meet), Role(meet), Role(meet)]) == [None, None, None]


def test_the_first_failure_is_reported_not_its_echo_in_the_roles_that_waited() -> None:
    with pytest.raises(RuntimeError, match="cannot be interpreted as an integer"):
        run_roles([Role(operator.methodcaller("__call__")), Role(operator.index)])


def test_a_role_whose_process_dies_without_a_word_is_reported() -> None:
    with pytest.raises(RuntimeError, match="died without an answer"):
        run_roles([Role(isinstance, (_EndsItsUnpickler(),))])


class _EndsItsUnpickler:
    def __reduce__(self) -> tuple[object, tuple[int]]:
        return os._exit, (7,)


def test_roles_that_do_not_answer_in_time_are_ended() -> None:
    with pytest.raises(TimeoutError, match="2 of 2 roles"):
        run_roles([Role(isinstance, (Meet,)), Role(isinstance, (Meet,))], seconds_max=0.0)
    assert not multiprocessing.active_children()


@every_row(("share", "expected"), [(0.0, 1), (0.01, 1), (0.5, 50), (0.501, 51), (0.99, 99), (0.999, 100), (1.0, 100)])
def test_a_percentile_is_the_nearest_rank(share: float, expected: int) -> None:
    assert percentile(range(1, 101), share) == expected


def test_a_percentile_of_one_value_is_that_value() -> None:
    assert [percentile([7], share) for share in (0.0, 0.5, 0.999, 1.0)] == [7, 7, 7, 7]


def test_there_is_no_percentile_and_no_median_of_nothing() -> None:
    with pytest.raises(ValueError, match="no measurements"):
        percentile([], 0.5)
    with pytest.raises(ValueError, match="no measurements"):
        median([])


def test_a_median_was_really_measured() -> None:
    assert median([3.0, 1.0, 2.0]) == 2.0
    assert median([4.0, 1.0, 3.0, 2.0]) == 2.0


def test_half_trips_sort_the_round_trips_and_halve_them_into_microseconds() -> None:
    times = half_trips_us([4000, 2000, 8000, 6000])
    assert times == {"p50": 2.0, "p90": 4.0, "p99": 4.0, "p99.9": 4.0, "max": 4.0}


def test_a_rate_counts_from_the_first_send_of_any_producer() -> None:
    assert messages_per_second(10, [2_000_000_000, 1_000_000_000], 3_000_000_000) == 5.0


def test_send_all_and_receive_all_carry_a_numbered_first_and_last_body() -> None:
    queue: deque[bytes] = deque()
    started = send_all(queue.append, 5, 32)
    assert len(queue) == 5
    assert list(queue)[1:4] == [plain_body(32)] * 3
    ended, first, last = receive_all(queue.popleft, 5)
    assert (first, last) == (numbered_body(0, 32), numbered_body(4, 32))
    assert started <= ended


def test_ping_records_one_time_per_trip_and_pong_answers_each() -> None:
    queue: deque[bytes] = deque()
    times = ping(queue.append, queue.popleft, b"x", 10)
    assert len(times) == 10
    assert all(time >= 0 for time in times)
    queue.extend([b"a", b"b"])
    pong(queue.append, queue.popleft, b"answer", 2)
    assert list(queue) == [b"answer", b"answer"]


def test_bodies_have_the_size_asked_for_and_differ_by_number() -> None:
    assert len(numbered_body(3, 256)) == len(plain_body(256)) == 256
    assert numbered_body(3, 256) != numbered_body(4, 256) != plain_body(256)


def test_a_body_that_was_not_sent_is_an_error() -> None:
    check_body(memoryview(b"right"), [b"wrong", b"right"])
    with pytest.raises(ValueError, match="not sent"):
        check_body(b"other", [b"right"])
