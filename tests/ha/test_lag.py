"""The lag of a position in milliseconds, against a list of everything that happened."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shmq.daemon.ha import lag as lag_module
from shmq.daemon.ha.lag import SAMPLES_MAX, LagClock
from tests.interruption import met_everywhere


def test_a_position_lags_since_the_log_went_beyond_it() -> None:
    lag = LagClock()
    assert lag.lag_ms(0, 5) == 0
    lag.grown(100, 1_000)
    lag.grown(200, 2_000)
    lag.grown(200, 2_500)
    assert [lag.lag_ms(position, 3_000) for position in (0, 99, 100, 199, 200, 300)] == [2000, 2000, 1000, 1000, 0, 0]


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(0, 30)), min_size=1, max_size=60))
def test_a_lag_is_never_too_small_and_at_most_a_sample_too_large(steps: list[tuple[int, int]]) -> None:
    lag, end, now, seen = LagClock(), 0, 0, []
    for grown, passed in steps:
        end, now = end + grown, now + passed
        lag.grown(end, now)
        seen.append((end, now))
    for position in range(end + 1):
        exact = next((now - at for reached, at in seen if reached > position), 0)
        assert exact <= lag.lag_ms(position, now) <= exact + 20


def test_what_was_seen_long_ago_becomes_coarse_and_stays_bounded() -> None:
    lag = LagClock()
    for second in range(10 * SAMPLES_MAX):
        lag.grown(second + 1, second * 1_000)
    now = 10 * SAMPLES_MAX * 1_000
    assert len(lag._samples) <= SAMPLES_MAX + 1
    assert lag.lag_ms(10 * SAMPLES_MAX - 2, now) == 2_000
    lags = [lag.lag_ms(position, now) for position in range(0, 10 * SAMPLES_MAX, 97)]
    assert lags == sorted(lags, reverse=True)
    assert all(lag.lag_ms(position, now) >= now - position * 1_000 for position in range(0, 10 * SAMPLES_MAX, 97))


class GrowthMeetsLook:
    """A slave's thread sees the log grow while the event loop writes down how things are."""

    def __init__(self, samples: int) -> None:
        self.lag, self.end = LagClock(), samples
        for number in range(samples):
            self.lag.grown(number + 1, 1_000 * number)

    def action(self) -> None:
        self.lag.grown(self.end + 1, 1_000 * self.end)

    def other(self) -> None:
        for position in (0, self.end - 1, self.end):
            assert self.lag.lag_ms(position, 1_000 * self.end) >= 0

    def check(self) -> None:
        self.other()


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> int:
    """How many samples a clock keeps here: with as many as it has else, there are thousands of places to meet at."""
    monkeypatch.setattr(lag_module, "SAMPLES_MAX", 16)
    return 16


@pytest.mark.parametrize("missing", [0, 13])
def test_a_lag_can_be_asked_for_while_the_log_grows(few: int, missing: int) -> None:
    samples = few - missing
    assert met_everywhere(lambda: GrowthMeetsLook(samples), before="opcode") > 20


class LookMeetsGrowth(GrowthMeetsLook):
    """The event loop looks while a slave's thread sees the log grow, and old samples become coarse."""

    action, other = GrowthMeetsLook.other, GrowthMeetsLook.action


def test_the_log_may_grow_while_a_lag_is_asked_for(few: int) -> None:
    assert met_everywhere(lambda: LookMeetsGrowth(few), before="opcode") > 20
