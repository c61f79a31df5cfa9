"""How long the supervisor waits before it starts a child again."""

import pytest

from shmq.daemon.supervisor import restart_pause


@pytest.mark.parametrize(("deaths", "seconds"), [(0, 0.0), (1, 0.0), (2, 0.1), (3, 0.2), (7, 3.2), (8, 5.0)])
def test_the_pause_doubles_with_each_death_in_a_row(deaths: int, seconds: float) -> None:
    assert restart_pause(deaths) == pytest.approx(seconds)


@pytest.mark.parametrize("deaths", [100, 1026, 10**6])
def test_it_stays_at_five_seconds_however_often_a_child_dies(deaths: int) -> None:
    assert restart_pause(deaths) == 5.0
