"""Ctrl-C waits for the step that is being done, once."""

import os
import signal
import sys
import threading
import weakref

import pytest

from shmq.tools.terminal.interrupt import ended_in_order, interrupt_deferred, interrupts_kept, raise_dropped


def test_ctrl_c_waits_for_the_step_and_a_second_one_does_not() -> None:
    done = []
    with pytest.raises(KeyboardInterrupt), interrupt_deferred():
        os.kill(os.getpid(), signal.SIGINT)
        done.append("the rest of the step")
    assert done
    with pytest.raises(KeyboardInterrupt), interrupt_deferred():
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        done.append("not reached: the second one does not wait")
    assert len(done) == 1
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with interrupt_deferred():
            os.kill(os.getpid(), signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)


class Thing:
    """What something is called for when it goes."""


def test_a_loop_ends_by_a_ctrl_c_that_was_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    dropped: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: dropped.append(unraisable.exc_type))
    with interrupts_kept():
        raise_dropped()
        with interrupt_deferred():
            pass
        thing = Thing()
        reference = weakref.ref(thing, lambda _: os.kill(os.getpid(), signal.SIGINT))
        del thing
        assert reference() is None and dropped == [KeyboardInterrupt]
        with pytest.raises(KeyboardInterrupt):
            raise_dropped()
    with interrupts_kept():
        raise_dropped()


def test_a_step_is_finished_where_interrupts_are_kept() -> None:
    done = []
    with pytest.raises(KeyboardInterrupt), interrupts_kept(), interrupt_deferred():
        os.kill(os.getpid(), signal.SIGINT)
        done.append("the rest of the step")
    assert done


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_it_ends_a_block_as_ctrl_c_does(number: signal.Signals) -> None:
    before = signal.signal(number, signal.SIG_DFL)
    try:
        with pytest.raises(KeyboardInterrupt), ended_in_order():
            os.kill(os.getpid(), number)
        assert signal.getsignal(number) == signal.SIG_DFL
    finally:
        signal.signal(number, before)


def test_the_end_of_the_terminal_is_no_end_where_it_is_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with ended_in_order():
            os.kill(os.getpid(), signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_command_that_another_thread_runs_does_its_steps() -> None:
    done: list[str] = []

    def command() -> None:
        with interrupt_deferred(), ended_in_order():
            done.append("a step")

    thread = threading.Thread(target=command)
    thread.start()
    thread.join()
    assert done == ["a step"]
