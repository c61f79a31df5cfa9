"""Sends in the background."""

import asyncio
import threading
from concurrent.futures import CancelledError

import pytest

from shmq.client.producers.nowait import NowaitQueue
from shmq.errors import FlowControl, UsageError


def test_order_is_kept_and_every_future_ends() -> None:
    queue = NowaitQueue(1000)
    stored: list[int] = []
    futures = [queue.submit(lambda number=number: stored.append(number) or number, 1.0) for number in range(500)]
    assert [future.result(60) for future in futures] == list(range(500))
    assert stored == list(range(500))
    assert queue.drain(10)


def test_an_error_belongs_to_its_future_only() -> None:
    queue = NowaitQueue(10)

    def fail() -> None:
        raise ZeroDivisionError

    broken = queue.submit(fail, 1.0)
    fine = queue.submit(lambda: 7, 1.0)
    with pytest.raises(ZeroDivisionError):
        broken.result(60)
    assert fine.result(60) == 7
    queue.drain(10)


def test_what_a_callback_raises_ends_no_thread() -> None:
    queue = NowaitQueue(10)
    begin = threading.Event()

    def raised(error: BaseException) -> None:
        raise error

    for error in (ValueError(), asyncio.CancelledError(), SystemExit(3), KeyboardInterrupt()):
        queue.submit(begin.wait, 1.0).add_done_callback(lambda _, error=error: raised(error))
    last = queue.submit(lambda: 7, 1.0)
    begin.set()
    assert last.result(60) == 7
    queue.drain(10)


def test_a_full_queue_makes_the_caller_wait_and_then_says_so() -> None:
    queue = NowaitQueue(1)
    entered, leave = threading.Event(), threading.Event()

    def hang() -> None:
        entered.set()
        leave.wait(60)

    queue.submit(hang, 1.0)
    assert entered.wait(60)
    queue.submit(lambda: None, 1.0)
    with pytest.raises(FlowControl) as caught:
        queue.submit(lambda: None, 0.01)
    assert caught.value.retryable
    leave.set()
    assert queue.drain(10)


def test_draining_refuses_new_sends_and_cancels_what_is_left_in_time() -> None:
    queue = NowaitQueue(10)
    entered, leave = threading.Event(), threading.Event()

    def hang() -> str:
        entered.set()
        leave.wait(60)
        return "stored"

    running = queue.submit(hang, 1.0)
    assert entered.wait(60)
    left = queue.submit(lambda: None, 1.0)
    assert not queue.drain(0.01)
    with pytest.raises(CancelledError):
        left.result(60)
    with pytest.raises(UsageError):
        queue.submit(lambda: None, 1.0)
    leave.set()
    assert running.result(60) == "stored"


def test_a_cancelled_future_is_not_sent() -> None:
    queue = NowaitQueue(10)
    entered, leave = threading.Event(), threading.Event()
    sent: list[int] = []

    def hang() -> None:
        entered.set()
        leave.wait(60)

    queue.submit(hang, 1.0)
    assert entered.wait(60)
    future = queue.submit(lambda: sent.append(1), 1.0)
    assert future.cancel()
    leave.set()
    assert queue.drain(10)
    assert sent == []
