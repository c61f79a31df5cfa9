"""The rules notice what breaks them."""

from __future__ import annotations

from contextlib import nullcontext
from unittest.mock import Mock

import pytest

from tests.ha.elected.receivers import Arrival, Receiver
from tests.ha.elected.rules import check_copies, check_order, check_places, check_queue, check_seen
from tests.ha.elected.senders import Acknowledged


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
    one = receiver("one")
    one.arrivals = [
        Arrival("ordered", number, 1, 6, number, 1) for number in (1, 3, 3, 1, 4)
    ]  # what came before comes again
    one.arrivals.append(Arrival("ordered0", 2, 1, 1, 0, 1))  # of another message group
    check_order([one])
    one.arrivals.append(Arrival("ordered", 2, 1, 6, 2, 2))
    with pytest.raises(AssertionError, match=r"one: 1 came too early: \[\(4, 2\)\].*offset=2, connection=2"):
        check_order([one])


def test_who_is_stored_again_more_often_than_connections_ended_is_named() -> None:
    stored = [b"tcp-%d" % number for number in (1, 2, 2, 3, 3, 4)] + [b"tcp-transactions-1 commit"] * 2
    check_copies(stored, 2)
    with pytest.raises(AssertionError, match=r"more than 1 .* \{'tcp': \(2, \[b'tcp-2', b'tcp-3'\]\)\}"):
        check_copies(stored, 1)


def test_a_message_group_that_went_to_another_queue_is_named() -> None:
    stored = [Acknowledged(b"ordered-%d" % number, 6, number, 0.0, 0.0) for number in range(3)]
    check_queue(stored)
    with pytest.raises(AssertionError, match="went to another queue 1 times"):
        check_queue([*stored, stored[0]._replace(queue_id=2)])
