"""One alarm serves every part that has to do something before the next tick."""

import pytest

from shmq.daemon.logic.alarm import Alarm
from shmq.daemon.logic.effects import Effect, Report, Wake


def act(now_ms: int) -> list[Effect]:
    return [Report(f"at {now_ms}")]


def test_an_alarm_that_was_never_set_does_nothing() -> None:
    assert Alarm().ring(1000, act) == ()


@pytest.mark.parametrize(
    ("now_ms", "effects"), [(1000, [Wake(5)]), (1004, [Wake(1)]), (1005, act(1005)), (9000, act(9000))]
)
def test_it_acts_when_its_time_has_come_and_asks_again_before(now_ms: int, effects: list[Effect]) -> None:
    alarm = Alarm()
    assert alarm.set(1000, 5) == Wake(5)
    assert list(alarm.ring(now_ms, act)) == effects


def test_it_rings_once() -> None:
    alarm = Alarm()
    alarm.set(1000, 5)
    alarm.ring(1005, act)
    assert alarm.ring(1006, act) == ()


def test_one_that_is_stopped_does_not_ring() -> None:
    alarm = Alarm()
    alarm.set(1000, 5)
    alarm.stop()
    assert alarm.ring(1005, act) == ()


def test_a_time_is_moved_forward_only_where_it_must_be() -> None:
    alarm = Alarm()
    assert alarm.set_by(1000, 1500) == [Wake(500)]
    assert alarm.set_by(1000, 1600) == []
    assert alarm.set_by(1000, 1100) == [Wake(100)]
    assert alarm.set_by(1050, 900) == [Wake(0)]
    assert list(alarm.ring(1050, act)) == act(1050)
