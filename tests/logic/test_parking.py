"""Requests that wait for the log: in order, within bounds, and only where nothing was stored."""

from collections.abc import Sequence

import pytest

from shmq.daemon.logic.effects import Effect, Reply
from shmq.daemon.logic.parking import PARKED_BYTES_MAX, PARKED_MAX, WAIT_MS, Congestion, Parking
from shmq.daemon.logic.requests import Answer, Call, Connection, Handler, later
from shmq.protocol.codes import Request, Response
from shmq.protocol.command import Command

ONEWAY = 2


class Parked:
    """A parking and a log that has no room until the test says so."""

    def __init__(self) -> None:
        self.has_room = False
        self.handled: list[tuple[int, bool]] = []
        self.congestion = Congestion()
        self.parking = Parking(self.congestion, self.again)
        self.connections = [Connection(number, None, 0) for number in range(2)]

    def again(self, call: Call, _handler: Handler, is_last: bool) -> Sequence[Effect] | None:
        self.handled.append((call.command.opaque, is_last))
        if not self.has_room and not is_last:
            return None
        code = Response.SUCCESS if self.has_room else Response.SERVICE_NOT_AVAILABLE
        return later(call, Answer(code=code))

    def call(self, opaque: int, *, code: int = Request.SEND_MESSAGE, flag: int = 0, bytes_: int = 0) -> Call:
        return Call(self.connections[opaque % 2], Command(code, opaque=opaque, flag=flag, body=bytes(bytes_)), 1000)

    def park(self, *calls: Call) -> list[Effect]:
        return [effect for call in calls for effect in self.parking.park(call, lambda _: None)]


@pytest.fixture
def parked() -> Parked:
    return Parked()


def answers(effects: Sequence[Effect]) -> list[tuple[int, int]]:
    return [(effect.command.opaque, effect.command.code) for effect in effects if isinstance(effect, Reply)]


def test_the_first_is_tried_again_and_those_behind_it_follow_in_order(parked: Parked) -> None:
    parked.park(*(parked.call(number) for number in range(3)))
    assert answers(parked.parking.tick(1001)) == []
    assert parked.handled == [(0, False)]
    parked.has_room = True
    assert answers(parked.parking.tick(1002)) == [(0, 0), (1, 0), (2, 0)]
    assert len(parked.parking) == 0 and not parked.parking.has_sends


def test_who_has_waited_long_enough_gets_the_answer_of_the_last_try(parked: Parked) -> None:
    parked.park(parked.call(0), parked.call(1))
    assert answers(parked.parking.tick(1000 + WAIT_MS)) == [(0, 14), (1, 14)]
    assert parked.handled == [(0, True), (1, True)]


def test_later_sends_wait_behind_a_send_and_other_requests_do_not(parked: Parked) -> None:
    assert not parked.parking.has_to_wait(parked.call(0))
    parked.park(parked.call(0, code=Request.ACK_MESSAGE))
    assert not parked.parking.has_to_wait(parked.call(1))
    parked.park(parked.call(1))
    assert parked.parking.has_to_wait(parked.call(2)) and parked.parking.has_sends
    assert not parked.parking.has_to_wait(parked.call(2, code=Request.PULL_MESSAGE))


def test_bounds_are_kept_in_rocketmqs_words(parked: Parked) -> None:
    assert answers(parked.park(*(parked.call(number) for number in range(PARKED_MAX)))) == []
    assert answers(parked.park(parked.call(9))) == [(9, Response.SYSTEM_BUSY)]
    other = Parked()
    assert answers(other.park(other.call(0, bytes_=PARKED_BYTES_MAX))) == []
    assert answers(other.park(other.call(1, bytes_=1))) == [(1, Response.SYSTEM_BUSY)]


def test_what_only_a_gone_connection_waits_for_is_dropped_but_a_oneway_is_not(parked: Parked) -> None:
    parked.park(parked.call(0, bytes_=10), parked.call(1), parked.call(2, flag=ONEWAY))
    parked.parking.disconnected(parked.connections[0], 1000)
    assert len(parked.parking) == 2
    parked.has_room = True
    assert answers(parked.parking.tick(1001)) == [(1, 0)]
    assert [opaque for opaque, _ in parked.handled] == [1, 2]


def test_only_a_request_that_stored_nothing_and_met_no_room_is_handled_again(parked: Parked) -> None:
    call, mark = parked.call(0), parked.parking.mark()
    assert not parked.parking.was_refused(call, mark)  # it failed for another reason
    parked.congestion.refused += 1
    assert parked.parking.was_refused(call, mark)
    assert not parked.parking.was_refused(parked.call(0, code=Request.SEND_REPLY_MESSAGE_V2), mark)
    parked.congestion.stored += 1
    assert not parked.parking.was_refused(call, mark)
