"""The background thread of a connection."""

import logging
import threading
from collections.abc import Iterator

import pytest

from shmq.client.timetable import Clock, Timetable
from shmq.errors import UsageError


@pytest.fixture
def timetable() -> Iterator[Timetable]:
    made = Timetable(Clock())
    yield made
    made.stop(5.0)


def test_without_a_job_there_is_no_thread() -> None:
    Timetable(Clock(), name="that-of-this-test")
    assert "that-of-this-test" not in {thread.name for thread in threading.enumerate()}


def test_jobs_run_by_time_and_then_by_order(timetable: Timetable) -> None:
    seen: list[str] = []
    done = threading.Event()
    start = timetable.clock.now() + 0.05
    timetable.call_at(start + 0.02, done.set)
    timetable.call_at(start + 0.01, lambda: seen.append("third"))
    timetable.call_at(start, lambda: seen.append("first"))
    timetable.call_at(start, lambda: seen.append("second"))
    assert done.wait(60)
    assert seen == ["first", "second", "third"]


def test_moving_the_clock_makes_a_far_job_due(timetable: Timetable) -> None:
    done = threading.Event()
    timetable.call_after(3600, done.set)
    timetable.clock.advance(3600)
    timetable.clock_moved()
    assert done.wait(60)


def test_a_failing_job_is_reported_and_the_next_one_runs(
    timetable: Timetable, caplog: pytest.LogCaptureFixture
) -> None:
    done = threading.Event()

    def fail() -> None:
        raise ZeroDivisionError("on purpose")

    with caplog.at_level(logging.ERROR, "shmq"):
        timetable.call_soon(fail)
        timetable.call_soon(done.set)
        assert done.wait(60)
    assert "on purpose" in caplog.text


def test_after_stop_nothing_runs(timetable: Timetable) -> None:
    seen: list[int] = []
    timetable.call_after(3600, lambda: seen.append(1))
    assert timetable.stop(10)
    timetable.call_soon(lambda: seen.append(2))
    timetable.clock.advance(7200)
    timetable.clock_moved()
    assert seen == []


def test_stop_returns_in_time_while_a_job_hangs(timetable: Timetable) -> None:
    entered, leave = threading.Event(), threading.Event()

    def hang() -> None:
        entered.set()
        leave.wait(60)

    timetable.call_soon(hang)
    assert entered.wait(60)
    assert not timetable.stop(0.0)
    leave.set()
    assert timetable.stop(10)


def test_a_job_may_stop_its_own_thread(timetable: Timetable) -> None:
    answers: list[bool] = []
    done = threading.Event()

    def stop() -> None:
        answers.append(timetable.stop(10))
        done.set()

    timetable.call_soon(stop)
    assert done.wait(60)
    assert answers == [False]


def test_a_clock_does_not_go_back() -> None:
    with pytest.raises(UsageError):
        Clock().advance(-1)
