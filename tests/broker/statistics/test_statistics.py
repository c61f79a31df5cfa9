"""Windows of counters: what they hold after so much time, and that they end."""

from shmq.daemon.broker.statistics.statistics import COUNTERS_MAX, Rates, Statistics
from shmq.protocol.admin_body import StatsSnapshot

SECOND = 1000
NOTHING = StatsSnapshot(0, 0.0, 0.0)


def run(statistics: Statistics, seconds: range, *, value: int = 0, times: int = 1) -> None:
    """Count `value` each second, and tick."""
    for second in seconds:
        if value:
            statistics.add("N", "key", value, second * SECOND, times=times)
        statistics.tick(second * SECOND)


def test_what_was_never_counted_is_not_there() -> None:
    statistics = Statistics()
    assert statistics.data("N", "key") is None and statistics.tps("N", "key") == 0.0


def test_a_minute_holds_the_last_sixty_seconds() -> None:
    statistics = Statistics()
    run(statistics, range(1, 122), value=10)
    data = statistics.data("N", "key")
    assert data is not None
    assert data.statsMinute == StatsSnapshot(600, 10.0, 10.0)
    assert data.statsHour == NOTHING, "no snapshot of the hour was due yet"
    run(statistics, range(122, 200))
    data = statistics.data("N", "key")
    assert data is not None and data.statsMinute == NOTHING


def test_an_hour_and_a_day_follow_their_own_snapshots() -> None:
    statistics = Statistics()
    for minute in range(0, 26 * 60):
        statistics.add("N", "key", 60, minute * 60 * SECOND, times=6)
        statistics.tick(minute * 60 * SECOND)
    data = statistics.data("N", "key")
    assert data is not None
    assert data.statsHour == StatsSnapshot(3600, 1.0, 10.0)
    assert data.statsDay == StatsSnapshot(24 * 3600, 1.0, 10.0)


def test_a_counter_that_is_silent_for_a_day_is_forgotten() -> None:
    statistics = Statistics()
    statistics.add("N", "key", 1, 0)
    statistics.tick(86_400_000)
    assert statistics.data("N", "key") is not None
    statistics.tick(86_400_000 + 10 * SECOND)
    assert statistics.data("N", "key") is None


def test_there_are_never_more_counters_than_allowed() -> None:
    statistics = Statistics()
    for number in range(COUNTERS_MAX + 5):
        statistics.add("N", str(number), 1, 0)
    assert statistics.data("N", str(COUNTERS_MAX - 1)) is not None
    assert statistics.data("N", str(COUNTERS_MAX)) is None
    statistics.add("N", "0", 1, 0)
    assert statistics.total("N", "0") == 2, "those that are there go on counting"


def test_rates_are_those_of_ten_sixty_and_six_hundred_seconds() -> None:
    rates = Rates()
    assert str(rates) == "0.0 0.0 0.0"
    total = 0
    for second in range(700):
        rates.sample(second * SECOND, total)
        total += 100 if second >= 690 else 0
    assert (rates.rate(10), rates.rate(60), rates.rate(600)) == (90.0, 15.0, 1.5)


def test_a_clock_that_jumps_gives_no_negative_rate() -> None:
    rates = Rates()
    rates.sample(0, 500)
    rates.sample(5 * SECOND, 0)  # the segments were made anew
    assert rates.rate(10) == 0.0
