"""When the supervisor starts a child again: what ended in order is no death, whatever else is."""

import pytest

from shmq.daemon.restarts import Restarts, restart_pause
from shmq.exit_code import ExitCode


@pytest.mark.parametrize(("deaths", "seconds"), [(0, 0.0), (1, 0.0), (2, 0.1), (3, 0.2), (7, 3.2), (8, 5.0)])
def test_the_pause_doubles_with_each_death_in_a_row(deaths: int, seconds: float) -> None:
    assert restart_pause(deaths) == pytest.approx(seconds)


@pytest.mark.parametrize("deaths", [100, 1026, 10**6])
def test_it_stays_at_five_seconds_however_often_a_child_dies(deaths: int) -> None:
    assert restart_pause(deaths) == 5.0


@pytest.mark.parametrize("status", [ExitCode.DONE, ExitCode.TEMPORARY])
@pytest.mark.parametrize(("age_seconds", "pause"), [(0.05, 0.1), (0.4, 0.1), (0.6, 0.0)])
def test_a_child_that_is_switched_however_often_comes_again_at_once(
    status: int, age_seconds: float, pause: float
) -> None:
    restarts = Restarts(["bridge"])
    for _ in range(20):
        assert restarts.pause("bridge", status, has_served=True, age_seconds=age_seconds) == pause


@pytest.mark.parametrize(("status", "has_served"), [(-9, True), (1, True), (75, False), (0, False)])
def test_any_other_end_is_a_death(status: int, has_served: bool) -> None:
    restarts = Restarts(["bridge", "keeper"])
    pauses = [restarts.pause("bridge", status, has_served=has_served, age_seconds=2.0) for _ in range(4)]
    assert pauses == pytest.approx([0.0, 0.1, 0.2, 0.4])
    assert restarts.pause("keeper", status, has_served=has_served, age_seconds=2.0) == 0.0, "its own deaths count"


def test_switches_between_deaths_change_nothing() -> None:
    restarts = Restarts(["bridge"])
    for expected in (0.0, 0.1, 0.2):
        assert restarts.pause("bridge", -9, has_served=True, age_seconds=2.0) == pytest.approx(expected)
        assert restarts.pause("bridge", 0, has_served=True, age_seconds=3.0) == 0.0


def test_ten_good_seconds_forgive() -> None:
    restarts = Restarts(["bridge"])
    for _ in range(5):
        restarts.pause("bridge", -9, has_served=True, age_seconds=2.0)
    assert restarts.pause("bridge", -9, has_served=True, age_seconds=10.5) == 0.0
