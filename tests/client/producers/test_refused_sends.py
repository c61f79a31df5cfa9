"""A send that its host refuses waits for the next leader, within its own time, and is stored once."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from shmq.client import refusals
from shmq.client.producers import refused_sends
from shmq.client.producers.refused_sends import RefusedSends, WaitingSender
from shmq.client.refusals import PAUSE_SECONDS_MAX, may_be_taken_elsewhere, until_taken
from shmq.errors import BrokerBusy, BrokerNotRunning, NotMaster, PermissionDenied, SendTimeout, ShmqError


class Clock:
    """Seconds that pass while something sleeps."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Host:
    """A host whose log refuses messages for some seconds; a sender that it makes waits for nothing."""

    def __init__(self, clock: Clock, refusal: Callable[[], ShmqError], refuses_until: float) -> None:
        self._clock, self._refusal, self._refuses_until = clock, refusal, refuses_until
        self.stored: list[tuple[Any, ...]] = []
        self.timeouts: list[float] = []

    def send(self, *given: Any, timeout: float, **named: Any) -> int:
        self.timeouts.append(timeout)
        if self._clock.now < self._refuses_until:
            raise self._refusal()
        self.stored.append((*given, named))
        return len(self.stored)

    send_oneway = send_batch = reserve = send


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    for module in (refusals, refused_sends):
        monkeypatch.setattr(module, "time", made)
    return made


def not_master() -> ShmqError:
    return NotMaster("it leads no more")


def given_up() -> ShmqError:
    return BrokerNotRunning("this generation of segments was given up")


def refused_by(host: Host, *, is_elected: bool = True) -> RefusedSends:
    return RefusedSends(3.0, lambda: host, lambda: is_elected)


@pytest.mark.parametrize("method", ["send", "send_oneway", "send_batch", "reserve"])
@pytest.mark.parametrize("refusal", [not_master, given_up])
def test_a_send_waits_for_the_next_leader(clock: Clock, method: str, refusal: Callable[[], ShmqError]) -> None:
    host = Host(clock, refusal, 2.0)
    assert refused_by(host)(method, refusal(), ("orders", b"x"), {"tag": "a", "timeout": None}) == (1,)
    assert host.stored == [("orders", b"x", {"tag": "a"})]
    assert 2.0 <= clock.now <= 2.0 + PAUSE_SECONDS_MAX
    assert all(earlier > later for earlier, later in itertools.pairwise(host.timeouts))
    assert host.timeouts[-1] == pytest.approx(3.0 - clock.now)


@pytest.mark.parametrize(("timeout", "seconds"), [(None, 3.0), (0.5, 0.5), (0, 0.0)])
def test_the_last_refusal_is_raised_when_the_time_of_the_send_is_over(
    clock: Clock, timeout: float | None, seconds: float
) -> None:
    host = Host(clock, given_up, 100.0)
    with pytest.raises(ShmqError) as caught:
        refused_by(host)("send", not_master(), ("orders", b"x"), {"timeout": timeout})
    assert type(caught.value) is (BrokerNotRunning if seconds else NotMaster)
    assert clock.now == pytest.approx(seconds)
    assert not host.stored


def test_a_broker_that_is_not_elected_is_not_waited_for(clock: Clock) -> None:
    host = Host(clock, not_master, 0.0)
    assert refused_by(host, is_elected=False)("send", not_master(), ("orders", b"x"), {}) is None
    assert not host.stored


def test_what_may_be_stored_or_will_not_pass_or_cannot_be_read_again_is_not_sent_again(clock: Clock) -> None:
    host = Host(clock, not_master, 0.0)
    in_doubt = given_up()
    in_doubt.maybe_stored = True
    refused = refused_by(host)
    for error in (in_doubt, SendTimeout("late"), BrokerBusy("busy"), PermissionDenied("no"), KeyError("topic")):
        assert refused("send", error, ("orders", b"x"), {}) is None, error
    assert refused("send", not_master(), ("orders", b"x"), {"keys": iter(["a"])}) is None
    assert refused("send_batch", not_master(), ("orders", iter([b"x"])), {}) is None
    assert (clock.now, host.stored) == (0.0, [])


def test_what_may_be_stored_by_a_later_try_is_not_sent_a_third_time(clock: Clock) -> None:
    def in_doubt() -> ShmqError:
        error = BrokerNotRunning("the leader died with the request")
        error.maybe_stored = True
        return error

    host = Host(clock, in_doubt, 100.0)
    with pytest.raises(BrokerNotRunning, match="died"):
        refused_by(host)("send", not_master(), ("orders", b"x"), {})
    assert len(host.timeouts) == 1


def test_a_sender_with_python_around_it_waits_too(clock: Clock) -> None:
    host = Host(clock, not_master, 1.0)

    def refuse(*given: Any, **named: Any) -> None:
        raise not_master()

    refusing: Any = SimpleNamespace(send=refuse, send_oneway=refuse, send_batch=refuse, reserve=refuse)
    sender = WaitingSender(refusing, refused_by(host))
    assert [sender.send("t", b"1"), sender.send_oneway("t", b"2"), sender.send_batch("t", [b"3"])] == [1, 2, 3]
    assert sender.reserve("t", 4) == 4
    with pytest.raises(NotMaster, match="leads no more"):
        WaitingSender(refusing, refused_by(host, is_elected=False)).send("t", b"5")


def test_a_call_of_several_steps_is_made_anew_from_its_first_step_with_the_seconds_left(clock: Clock) -> None:
    host = Host(clock, not_master, 2.0)
    assert until_taken(lambda left: host.send("half", timeout=left), 3.0, may_be_taken_elsewhere) == 1
    assert host.timeouts[0] == 3.0
    assert host.timeouts[-1] == pytest.approx(3.0 - clock.now)
    assert 2.0 <= clock.now <= 2.0 + PAUSE_SECONDS_MAX


def test_a_call_is_refused_when_its_time_is_over_or_there_is_no_leader_to_wait_for(clock: Clock) -> None:
    host = Host(clock, not_master, 100.0)
    with pytest.raises(NotMaster):
        until_taken(lambda left: host.send("half", timeout=left), 3.0, lambda _: False)
    assert (clock.now, len(host.timeouts)) == (0.0, 1)
    with pytest.raises(NotMaster):
        until_taken(lambda left: host.send("half", timeout=left), 3.0, may_be_taken_elsewhere)
    assert clock.now == pytest.approx(3.0)
    assert not host.stored
