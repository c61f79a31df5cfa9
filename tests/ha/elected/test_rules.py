"""The rules notice what breaks them."""

from __future__ import annotations

from contextlib import nullcontext
from unittest.mock import Mock

import pytest

from tests.ha.elected.receivers import Receiver
from tests.ha.elected.rules import check_order, check_places, check_seen


def receiver(name: str, *bodies: bytes) -> Receiver:
    """One that has received these."""
    made = Receiver(name, lambda: None, lambda _: nullcontext(Mock()))
    made.received = dict.fromkeys(bodies, 0.0)
    return made


def test_who_received_what_the_last_leader_has_not_is_named() -> None:
    check_seen({b"a", b"b"}, [receiver("one", b"a"), receiver("other", b"a", b"b")])
    with pytest.raises(AssertionError, match="other received 1 that the last leader has not"):
        check_seen({b"a", b"b"}, [receiver("one", b"a"), receiver("other", b"b", b"c")])


def test_a_group_that_saw_nothing_proves_nothing() -> None:
    with pytest.raises(AssertionError, match="one received nothing"):
        check_seen({b"a"}, [receiver("one")])


def test_a_place_that_holds_something_else_now_is_named() -> None:
    one = receiver("one", b"a")
    one.places = {(0, 1): b"a"}
    check_places({(0, 1): b"a", (0, 2): b"b"}, [one])
    for stored in ({(0, 1): b"b"}, {}):
        with pytest.raises(AssertionError, match="one: 1 places hold something else now"):
            check_places(stored, [one])
    one.changed = {(0, 1): {b"a", b"b"}}
    with pytest.raises(AssertionError, match="two bodies of one place"):
        check_places({(0, 1): b"a"}, [one])


def test_a_message_of_a_group_that_came_before_an_earlier_one_is_named() -> None:
    check_order([receiver("one", b"ordered-1", b"tcp-9", b"ordered-3", b"tcp-2")])
    with pytest.raises(AssertionError, match=r"one: 1 came too early: \[\(3, 2\)\]"):
        check_order([receiver("one", b"ordered-1", b"ordered-3", b"ordered-2")])
