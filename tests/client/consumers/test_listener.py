"""Listeners: what the end of a call means, threads, order, stopping."""

import itertools
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import shmq
from shmq.client import options
from shmq.testing import Broker, SharedBroker

Eventually = Callable[..., Any]
Advance = Callable[[float], None]
_serial = itertools.count(1)


@pytest.fixture(scope="module")
def frozen() -> Iterator[Broker]:
    """The broker of this file: nothing but `advance` moves its clock."""
    with Broker(clock="frozen") as broker:
        yield broker


@pytest.fixture
def shmq_shared_broker(frozen: Broker) -> SharedBroker:
    return SharedBroker(frozen, f"{next(_serial)}")


@pytest.fixture
def mq(shmq_shared_broker: SharedBroker) -> Iterator[shmq.Connection]:
    with shmq_shared_broker.connect() as connection:
        yield connection


@pytest.fixture
def topic(shmq_shared_broker: SharedBroker) -> str:
    return shmq_shared_broker.named("orders")


@pytest.fixture
def group(shmq_shared_broker: SharedBroker) -> str:
    return shmq_shared_broker.named("billing")


@pytest.fixture
def advance(frozen: Broker) -> Callable[[float], None]:
    """Move the broker's clock, by which messages come again."""
    return frozen.advance


@pytest.mark.parametrize("threads", [1, 4])
def test_returning_means_consumed(
    mq: shmq.Connection, topic: str, group: str, threads: int, eventually: Eventually
) -> None:
    seen: list[bytes] = []

    @mq.listener(topic, group=group, threads=threads)
    def on_order(message: shmq.Message) -> None:
        seen.append(message.body)

    mq.start()
    for number in range(50):
        mq.send(topic, b"%d" % number)
    eventually(lambda: len(seen) == 50)
    eventually(lambda: mq.admin.groups[group].lag.total == 0)
    assert sorted(seen, key=int) == [b"%d" % number for number in range(50)]


def test_a_decorated_function_is_still_the_function(mq: shmq.Connection, topic: str, group: str) -> None:
    def on_order(message: shmq.Message) -> str:
        return "called"

    assert mq.listener(topic, group=group)(on_order) is on_order


@pytest.mark.parametrize("threads", [1, 3])
def test_an_exception_is_logged_once_with_its_traceback_and_the_message_comes_again(
    mq: shmq.Connection,
    topic: str,
    group: str,
    threads: int,
    eventually: Eventually,
    advance: Advance,
    caplog: pytest.LogCaptureFixture,
) -> None:
    attempts: list[int] = []

    @mq.listener(topic, group=group, threads=threads)
    def on_order(message: shmq.Message) -> None:
        attempts.append(message.attempt)
        if message.attempt == 1:
            raise ZeroDivisionError("no stock")

    with caplog.at_level(logging.ERROR, "shmq"):
        mq.start()
        receipt = mq.send(topic, b"x")
        eventually(lambda: "no stock" in caplog.text)
        eventually(lambda: advance(options.retry_delay(1)) or attempts == [1, 2])  # given back a moment later
    told = [record for record in caplog.records if receipt.message_id in record.getMessage()]
    assert [record.exc_info and record.exc_info[0] for record in told] == [ZeroDivisionError]
    eventually(lambda: mq.admin.groups[group].lag.total == 0)


def test_retry_names_the_time_and_logs_nothing(
    mq: shmq.Connection, topic: str, group: str, eventually: Eventually, caplog: pytest.LogCaptureFixture
) -> None:
    attempts: list[int] = []

    @mq.listener(topic, group=group)
    def on_order(message: shmq.Message) -> None:
        attempts.append(message.attempt)
        if message.attempt < 3:
            raise shmq.Retry("no stock", after=0)

    mq.start()
    mq.send(topic, b"x")
    eventually(lambda: attempts == [1, 2, 3])
    assert "no stock" not in caplog.text


def test_reject_goes_to_the_dead_letters_with_its_reason(
    mq: shmq.Connection, topic: str, group: str, eventually: Eventually
) -> None:
    @mq.listener(topic, group=group)
    def on_order(message: shmq.Message) -> None:
        raise shmq.Reject("unknown article")

    mq.start()
    mq.send(topic, b"x")
    (letter,) = eventually(lambda: mq.admin.dlq(group))
    assert letter.reason == "unknown article"
    eventually(lambda: mq.admin.groups[group].lag.total == 0)


def test_actions_of_people_who_come_from_java_are_understood(
    mq: shmq.Connection, topic: str, group: str, eventually: Eventually, advance: Advance
) -> None:
    attempts: list[int] = []

    @mq.listener(topic, group=group)
    def on_order(message: shmq.Message) -> shmq.Action:
        attempts.append(message.attempt)
        return shmq.Action.RECONSUME_LATER if message.attempt == 1 else shmq.Action.COMMIT_MESSAGE

    mq.start()
    mq.send(topic, b"x")
    eventually(lambda: attempts == [1])
    eventually(lambda: advance(options.retry_delay(1)) or attempts == [1, 2])
    eventually(lambda: mq.admin.groups[group].lag.total == 0)


def test_threads_handle_as_many_messages_at_once(
    mq: shmq.Connection, topic: str, group: str, eventually: Eventually
) -> None:
    barrier = threading.Barrier(4)
    passed: list[int] = []

    @mq.listener(topic, group=group, threads=4)
    def on_order(message: shmq.Message) -> None:
        passed.append(barrier.wait(60))

    mq.start()
    for _ in range(4):
        mq.send(topic, b"x", queue_id=0)
    eventually(lambda: sorted(passed) == [0, 1, 2, 3])


def test_ordered_messages_of_one_group_are_handled_one_by_one_while_other_queues_go_on(
    mq: shmq.Connection, topic: str, group: str, eventually: Eventually
) -> None:
    running: dict[int, int] = {}
    most = 0
    both = threading.Barrier(2)
    seen: dict[int, list[int]] = {}

    @mq.listener(topic, group=group, threads=4, ordered=True)
    def apply(message: shmq.Message) -> None:
        nonlocal most
        running[message.queue_id] = running.get(message.queue_id, 0) + 1
        most = max(most, running[message.queue_id])
        if message.offset == 0:
            both.wait(60)
        seen.setdefault(message.queue_id, []).append(int(message.body))
        running[message.queue_id] -= 1

    for number in range(200):
        mq.send(topic, b"%d" % number, queue_id=number % 2)
    mq.start()
    eventually(lambda: sum(map(len, seen.values())) == 200)
    assert seen == {0: list(range(0, 200, 2)), 1: list(range(1, 200, 2))}
    assert most == 1


def test_ordered_a_failing_message_holds_its_queue_and_no_other(
    mq: shmq.Connection, topic: str, group: str, eventually: Eventually, advance: Advance
) -> None:
    seen: list[tuple[int, bytes, int]] = []

    @mq.listener(topic, group=group, threads=2, ordered=True)
    def apply(message: shmq.Message) -> None:
        seen.append((message.queue_id, message.body, message.attempt))
        if message.body == b"0" and message.attempt < 3:
            raise shmq.Retry(after=60)

    for number in range(40):
        mq.send(topic, b"%d" % number, queue_id=0)
    mq.send(topic, b"other", queue_id=1)
    mq.start()
    eventually(lambda: (1, b"other", 1) in seen and (0, b"0", 1) in seen)
    assert [entry for entry in seen if entry[0] == 0] == [(0, b"0", 1)]
    advance(60)
    eventually(lambda: (0, b"0", 2) in seen)
    advance(60)
    eventually(lambda: len(seen) == 43)
    ours = [(body, attempt) for queue, body, attempt in seen if queue == 0]
    assert ours == [(b"0", 1), (b"0", 2), (b"0", 3), *((b"%d" % number, 1) for number in range(1, 40))]
    eventually(lambda: mq.admin.groups[group].lag.total == 0)


def test_ordered_a_message_that_fails_for_good_is_buried_and_the_queue_goes_on(
    mq: shmq.Connection, topic: str, group: str, eventually: Eventually
) -> None:
    seen: list[bytes] = []

    @mq.listener(topic, group=group, ordered=True, attempts_max=2)
    def apply(message: shmq.Message) -> None:
        if message.body == b"poison":
            raise shmq.Retry(after=0)
        seen.append(message.body)

    mq.send(topic, b"poison", queue_id=0)
    mq.send(topic, b"fine", queue_id=0)
    mq.start()
    eventually(lambda: seen == [b"fine"])
    assert [letter.body for letter in mq.admin.dlq(group)] == [b"poison"]


@pytest.mark.parametrize("threads", [1, 2])
def test_keyboard_interrupt_in_a_listener_gives_the_message_back_and_ends_run(
    mq: shmq.Connection, topic: str, group: str, threads: int
) -> None:
    @mq.listener(topic, group=group, threads=threads)
    def on_order(message: shmq.Message) -> None:
        raise KeyboardInterrupt

    mq.send(topic, b"x")
    mq.run()
    assert mq.admin.groups[group].lag.total == 1
    with mq.subscribe(topic, group=group) as subscription:
        assert [message.body for message in subscription.receive(wait=60)] == [b"x"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_drains_and_ends_run(
    mq: shmq.Connection, topic: str, group: str, number: signal.Signals, eventually: Eventually
) -> None:
    entered, interrupted = threading.Event(), threading.Event()
    finished: list[bytes] = []

    @mq.listener(topic, group=group)
    def on_order(message: shmq.Message) -> None:
        entered.set()
        interrupted.wait(60)
        finished.append(message.body)

    def interrupt() -> None:
        entered.wait(60)
        os.kill(os.getpid(), number)
        interrupted.set()

    # A shell starts background jobs with SIGINT ignored, and Python leaves that as it is.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        threading.Thread(target=interrupt).start()
        mq.send(topic, b"x")
        mq.run()
        assert signal.getsignal(signal.SIGINT) == signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
    assert finished == [b"x"]
    assert mq.admin.groups[group].lag.total == 0
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_stop_ends_run_from_another_thread_and_run_may_follow_again(
    mq: shmq.Connection, topic: str, group: str, eventually: Eventually
) -> None:
    seen: list[bytes] = []
    mq.listener(topic, group=group)(lambda message: seen.append(message.body))
    for body in (b"one", b"two"):
        thread = threading.Thread(target=mq.run)
        thread.start()
        mq.send(topic, body)
        eventually(lambda body=body: body in seen)
        mq.stop()
        thread.join(60)
        assert not thread.is_alive()
    assert seen == [b"one", b"two"]


def test_messages_taken_ahead_are_given_back_on_stop(
    mq: shmq.Connection, topic: str, group: str, eventually: Eventually
) -> None:
    entered, leave = threading.Event(), threading.Event()

    @mq.listener(topic, group=group, threads=2)
    def on_order(message: shmq.Message) -> None:
        entered.set()
        leave.wait(60)

    for _ in range(20):
        mq.send(topic, b"x")
    mq.start()
    assert entered.wait(60)
    stopper = threading.Thread(target=mq.stop)
    stopper.start()
    assert mq._listeners is not None
    (listener,) = mq._listeners._listeners
    eventually(lambda: listener._stopping, "the stop has begun")
    leave.set()
    stopper.join(60)
    lag = mq.admin.groups[group].lag.total
    assert 18 <= lag <= 20
    with mq.subscribe(topic, group=group) as subscription:
        assert len(subscription.receive(100, wait=60)) >= 18


def test_run_raises_why_a_listener_could_not_start(
    shmq_shared_broker: SharedBroker, mq: shmq.Connection, topic: str, group: str
) -> None:
    with shmq_shared_broker.connect() as other, other.subscribe(topic, group=group, tags="meat"):
        mq.listener(topic, group=group, tags="fruit")(lambda message: None)
        with pytest.raises(shmq.SubscriptionConflict):
            mq.run()


def test_run_without_a_listener_says_what_is_missing(mq: shmq.Connection) -> None:
    with pytest.raises(shmq.UsageError, match="no listener"):
        mq.run()


def test_an_impossible_number_of_threads_is_refused(mq: shmq.Connection, topic: str, group: str) -> None:
    with pytest.raises(shmq.UsageError):
        mq.listener(topic, group=group, threads=0)(lambda message: None)
