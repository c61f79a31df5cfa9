"""A leader that answers, is silent, is gone and comes back, on a clock that stands."""

from __future__ import annotations

import pytest

from shmq.client.following.contact import ASK_SECONDS, BACK_SECONDS, GONE_SECONDS, REFUSED_SECONDS, Contact
from shmq.client.following.copying import Copying
from tests.tables.rows import every_row

NOW = 1_000.0
CUT_OFF, CATCHING_UP, UP_TO_DATE = Copying(is_cut_off=True), Copying(), Copying(is_up_to_date=True)
A_MOMENT = 0.001


def test_a_leader_that_never_answered_is_gone() -> None:
    assert Contact().is_gone(NOW)


def test_a_leader_that_is_silent_is_gone_once_that_has_lasted() -> None:
    contact = Contact()
    contact.asked(NOW)
    contact.answered(NOW)
    assert not contact.is_silent
    contact.asked(NOW + 1)
    assert contact.is_silent and not contact.is_gone(NOW + GONE_SECONDS - A_MOMENT)
    assert contact.is_gone(NOW + GONE_SECONDS)


def test_a_heartbeat_asks_from_time_to_time() -> None:
    contact = Contact()
    assert contact.is_to_be_beaten(NOW)
    contact.beaten(NOW)
    assert not contact.is_to_be_beaten(NOW + ASK_SECONDS - A_MOMENT)
    assert contact.is_to_be_beaten(NOW + ASK_SECONDS)


@pytest.mark.parametrize(("refused", "seconds"), [(False, ASK_SECONDS), (True, REFUSED_SECONDS)])
def test_a_leader_that_was_left_is_gone_and_let_be_for_a_while(refused: bool, seconds: float) -> None:
    contact = Contact()
    assert not contact.is_avoided(NOW)
    contact.answered(NOW)
    contact.left(NOW, refused=refused)
    assert contact.is_gone(NOW)
    assert contact.is_avoided(NOW + seconds - A_MOMENT) and not contact.is_avoided(NOW + seconds)


def test_a_copy_is_read_until_it_has_been_cut_off_for_long_and_again_once_it_is_up_to_date() -> None:
    contact = Contact()
    for began in (NOW, NOW + 100):  # each time anew
        assert contact.reads_copy(began, CUT_OFF)
        assert contact.reads_copy(began + GONE_SECONDS - A_MOMENT, CUT_OFF)
        assert not contact.reads_copy(began + GONE_SECONDS, CUT_OFF)
        assert not contact.reads_copy(began + 10, CATCHING_UP)
        assert contact.reads_copy(began + 11, UP_TO_DATE)


def test_a_copy_that_is_late_is_not_read_before_it_is_up_to_date() -> None:
    contact = Contact()
    assert contact.reads_copy(NOW, CATCHING_UP)
    assert not contact.reads_copy(NOW + 1, Copying(is_late=True))
    assert not contact.reads_copy(NOW + 2, CATCHING_UP)
    assert contact.reads_copy(NOW + 3, UP_TO_DATE)


@every_row("between", [CATCHING_UP, UP_TO_DATE])
def test_a_copy_that_goes_on_in_between_is_read(between: Copying) -> None:
    contact = Contact()
    assert contact.reads_copy(NOW, CUT_OFF)
    assert contact.reads_copy(NOW + 5, between)
    assert contact.reads_copy(NOW + 6, CUT_OFF)
    assert contact.reads_copy(NOW + 6 + GONE_SECONDS - A_MOMENT, CUT_OFF)
    assert not contact.reads_copy(NOW + 6 + GONE_SECONDS, CUT_OFF)


def test_what_was_seen_of_a_copy_long_ago_says_nothing() -> None:
    contact = Contact()
    assert contact.reads_copy(NOW, CUT_OFF)
    assert contact.reads_copy(NOW + 100, CUT_OFF)
    assert contact.reads_copy(NOW + 107, CUT_OFF) and not contact.reads_copy(NOW + 108, CUT_OFF)


def test_members_leave_at_once_and_go_to_a_leader_that_is_back_when_it_has_their_offsets() -> None:
    contact = Contact()
    for began in (NOW, NOW + 100):  # each time anew
        assert contact.is_time_to_go(began, is_back=False)
        for seconds in (0.0, 1.0, BACK_SECONDS - A_MOMENT):
            assert not contact.is_time_to_go(began + seconds, is_back=True)
        assert contact.is_time_to_go(began + BACK_SECONDS, is_back=True)
        assert not contact.is_time_to_go(began + 50, is_back=True), "it was there, and is back once more"


def test_a_leader_that_goes_away_again_has_to_be_back_for_as_long_once_more() -> None:
    contact = Contact()
    assert not contact.is_time_to_go(NOW, is_back=True)
    assert contact.is_time_to_go(NOW + 1, is_back=False)
    assert not contact.is_time_to_go(NOW + BACK_SECONDS, is_back=True)
