"""shmq.daemon.tether: how a child is told to stop."""

import os
import signal

from shmq.daemon.tether import Tether
from shmq.shm.signal_event import SignalEvent
from tests.interruption import interrupted_everywhere


def test_a_second_sigterm_may_come_at_every_line_of_the_first() -> None:
    tether, woken = Tether(), SignalEvent()
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    try:
        tether.watch()
        tether.call_on_stop(woken.set)
        handler = signal.getsignal(signal.SIGTERM)
        assert callable(handler)
        again = handler
        assert interrupted_everywhere(lambda: again(signal.SIGTERM, None), lambda: again(signal.SIGTERM, None)) > 3
    finally:
        for number, usual in zip((signal.SIGTERM, signal.SIGINT), before, strict=True):
            signal.signal(number, usual)
    assert tether.stopping.is_set()
    assert woken.is_set()


def test_what_has_to_be_done_at_a_stop_is_done_by_a_stop_that_came_before() -> None:
    tether, calls = Tether(), []
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    try:
        tether.watch()
        os.kill(os.getpid(), signal.SIGTERM)
        tether.call_on_stop(lambda: calls.append("told"))
    finally:
        for number, usual in zip((signal.SIGTERM, signal.SIGINT), before, strict=True):
            signal.signal(number, usual)
    assert calls == ["told"]
