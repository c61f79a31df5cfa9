"""The lag of a position in milliseconds, against a list of everything that happened."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shmq.daemon.ha.lag import SAMPLES_MAX, LagClock


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
    assert len(lag._ends) <= SAMPLES_MAX + 1
    assert lag.lag_ms(10 * SAMPLES_MAX - 2, now) == 2_000
    lags = [lag.lag_ms(position, now) for position in range(0, 10 * SAMPLES_MAX, 97)]
    assert lags == sorted(lags, reverse=True)
    assert all(lag.lag_ms(position, now) >= now - position * 1_000 for position in range(0, 10 * SAMPLES_MAX, 97))
