"""The loop stays awake while requests come close together, and no longer than that."""

import asyncio

import pytest

from shmq.daemon.bridge import busy_poll
from shmq.daemon.bridge.busy_poll import GAP_MAX, SPIN, BusyPoll


class Clock:
    """Seconds that pass when the test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(busy_poll.time, "perf_counter", lambda: self.now)


def turns_after(gaps: list[float], clock: Clock, *, step: float = SPIN / 4) -> int:
    """How often the loop looks again after requests with these gaps before them."""

    async def scene() -> int:
        poll, turns = BusyPoll(), 0
        for gap in gaps:
            clock.now += gap
            poll.arrived()
        while poll.is_polling:
            clock.now += step
            turns += 1
            await asyncio.sleep(0)
        return turns

    return asyncio.run(scene())


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    monkeypatch.setattr(busy_poll.os, "sched_getaffinity", lambda _: {0, 1})
    return Clock(monkeypatch)


def test_after_requests_that_come_close_together_it_looks_again_for_a_moment(clock: Clock) -> None:
    assert 1 < turns_after([GAP_MAX / 4] * 50, clock) < 10


def test_a_single_request_or_rare_ones_let_it_sleep_at_once(clock: Clock) -> None:
    assert turns_after([5.0], clock) == 0
    assert turns_after([2 * GAP_MAX] * 100, clock) == 0


def test_a_pause_is_forgotten_after_a_few_requests(clock: Clock) -> None:
    assert turns_after([GAP_MAX / 4] * 50 + [3600.0] + [GAP_MAX / 4] * 10, clock) > 1


def test_with_one_processor_it_never_keeps_the_client_from_running(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(busy_poll.os, "sched_getaffinity", lambda _: {0})
    assert turns_after([GAP_MAX / 4] * 50, clock) == 0


def test_while_answers_wait_for_the_disk_it_sleeps(clock: Clock) -> None:
    async def scene() -> list[bool]:
        poll, seen = BusyPoll(), []
        for _ in range(50):
            clock.now += GAP_MAX / 4
            poll.arrived()
        poll.rest()
        await asyncio.sleep(0)
        seen.append(poll.is_polling)
        poll.arrived()
        seen.append(poll.is_polling)
        return seen

    assert asyncio.run(scene()) == [False, True]
