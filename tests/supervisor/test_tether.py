"""shmq.daemon.tether: how a child is stopped."""

import os
import signal
from collections.abc import Iterator

import pytest

from shmq.daemon.tether import Tether
from shmq.shm.signal_event import SignalEvent
from tests.interruption import interrupted_everywhere

TERMINAL = (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


@pytest.fixture
def tether() -> Iterator[Tether]:
    """One that watches; the handlers of this process come back."""
    tether = Tether()
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, *TERMINAL)}
    tether.watch()
    yield tether
    for number, usual in before.items():
        signal.signal(number, usual)


def test_a_second_sigterm_may_come_at_every_line_of_the_first(tether: Tether) -> None:
    woken = SignalEvent()
    tether.call_on_stop(woken.set)
    handler = signal.getsignal(signal.SIGTERM)
    assert callable(handler)
    again = handler
    assert interrupted_everywhere(lambda: again(signal.SIGTERM, None), lambda: again(signal.SIGTERM, None)) > 3
    assert tether.stopping.is_set()
    assert woken.is_set()


def test_what_has_to_be_done_at_a_stop_is_done_by_a_stop_that_came_before(tether: Tether) -> None:
    calls: list[str] = []
    os.kill(os.getpid(), signal.SIGTERM)
    tether.call_on_stop(lambda: calls.append("told"))
    assert calls == ["told"]


def test_the_terminal_of_a_broker_ends_its_supervisor_only(tether: Tether) -> None:
    for number in TERMINAL:
        os.kill(os.getpid(), number)
    assert not tether.stopping.is_set()
