"""shmq.shm.signal_event: handlers of signals, and an event for them."""

import errno
import gc
import os
import resource
import signal
import sys
import threading

import pytest

from shmq.shm.signal_event import SignalEvent, handling
from tests.interruption import interrupted_everywhere


@pytest.mark.parametrize("timeout", [0.0, 0.01, None])
def test_it_can_be_set_at_every_line_of_what_is_done_with_it(timeout: float | None) -> None:
    event = SignalEvent()

    def use() -> None:
        event.wait(timeout)
        event.clear()
        event.is_set()
        event.set()

    assert interrupted_everywhere(use, event.set) > 8
    assert event.is_set()


def test_it_does_what_an_event_of_threading_does() -> None:
    event = SignalEvent()
    assert not event.is_set()
    assert not event.wait(0.0)
    event.clear()
    event.set()
    event.set()
    assert event.is_set()
    assert event.wait()
    event.clear()
    assert not event.is_set()
    other = threading.Thread(target=event.set)
    other.start()
    assert event.wait()
    other.join()


def test_it_works_beside_more_descriptors_than_select_knows() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 4096:
        pytest.skip(f"needs 4096 descriptors, {hard} may be open")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 4096), hard))
    opened: list[int] = []
    try:
        while not opened or opened[-1] < 1100:
            opened.append(os.eventfd(0))
        event = SignalEvent()
        event.set()
        assert event.wait()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for descriptor in opened:
            os.close(descriptor)


def test_its_descriptor_ends_with_it() -> None:
    event = SignalEvent()
    descriptor = event._descriptor
    del event
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


def test_where_no_descriptor_is_left_the_error_is_all_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: int) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    also_said: list[object] = []
    monkeypatch.setattr(os, "eventfd", refused)
    monkeypatch.setattr(sys, "unraisablehook", also_said.append)
    with pytest.raises(OSError, match="Too many") as failed:
        SignalEvent()
    failed.value.__traceback__ = None  # which has the object
    del failed
    gc.collect()
    assert not also_said


def test_a_block_has_its_handlers_and_the_program_its_own_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    came: list[int] = []
    before = signal.getsignal(signal.SIGUSR1)
    with handling({signal.SIGUSR1: lambda number, _: came.append(number)}):
        os.kill(os.getpid(), signal.SIGUSR1)
    assert came == [signal.SIGUSR1] and signal.getsignal(signal.SIGUSR1) == before
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # as of a handler that a program in C has set
    with handling({signal.SIGUSR1: lambda *_: None}):
        monkeypatch.setattr(signal, "signal", None)


def test_a_block_in_another_thread_leaves_the_handlers_alone() -> None:
    seen: list[object] = []

    def use() -> None:
        with handling({signal.SIGUSR1: lambda *_: None}):
            seen.append(signal.getsignal(signal.SIGUSR1))

    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    assert seen == [signal.getsignal(signal.SIGUSR1)]
