"""The background thread of a connection."""

import logging
import threading
from collections.abc import Iterator

import pytest

from shmq.client.coordinator import Clock, Coordinator
from shmq.errors import UsageError


@pytest.fixture
def coordinator() -> Iterator[Coordinator]:
    made = Coordinator(Clock())
    yield made
    made.stop(5.0)


def test_without_a_job_there_is_no_thread() -> None:
    before = threading.active_count()
    Coordinator(Clock())
    assert threading.active_count() == before


def test_jobs_run_by_time_and_then_by_order(coordinator: Coordinator) -> None:
    seen: list[str] = []
    done = threading.Event()
    start = coordinator.clock.now() + 0.05
    coordinator.call_at(start + 0.02, done.set)
    coordinator.call_at(start + 0.01, lambda: seen.append("third"))
    coordinator.call_at(start, lambda: seen.append("first"))
    coordinator.call_at(start, lambda: seen.append("second"))
    assert done.wait(60)
    assert seen == ["first", "second", "third"]


def test_moving_the_clock_makes_a_far_job_due(coordinator: Coordinator) -> None:
    done = threading.Event()
    coordinator.call_after(3600, done.set)
    coordinator.clock.advance(3600)
    coordinator.clock_moved()
    assert done.wait(60)


def test_a_failing_job_is_reported_and_the_next_one_runs(
    coordinator: Coordinator, caplog: pytest.LogCaptureFixture
) -> None:
    done = threading.Event()

    def fail() -> None:
        raise ZeroDivisionError("on purpose")

    with caplog.at_level(logging.ERROR, "shmq"):
        coordinator.call_soon(fail)
        coordinator.call_soon(done.set)
        assert done.wait(60)
    assert "on purpose" in caplog.text


def test_after_stop_nothing_runs(coordinator: Coordinator) -> None:
    seen: list[int] = []
    coordinator.call_after(3600, lambda: seen.append(1))
    assert coordinator.stop(10)
    coordinator.call_soon(lambda: seen.append(2))
    coordinator.clock.advance(7200)
    coordinator.clock_moved()
    assert seen == []


def test_stop_returns_in_time_while_a_job_hangs(coordinator: Coordinator) -> None:
    entered, leave = threading.Event(), threading.Event()

    def hang() -> None:
        entered.set()
        leave.wait(60)

    coordinator.call_soon(hang)
    assert entered.wait(60)
    assert not coordinator.stop(0.0)
    leave.set()
    assert coordinator.stop(10)


def test_a_job_may_stop_its_own_thread(coordinator: Coordinator) -> None:
    answers: list[bool] = []
    done = threading.Event()

    def stop() -> None:
        answers.append(coordinator.stop(10))
        done.set()

    coordinator.call_soon(stop)
    assert done.wait(60)
    assert answers == [False]


def test_a_clock_does_not_go_back() -> None:
    with pytest.raises(UsageError):
        Clock().advance(-1)
