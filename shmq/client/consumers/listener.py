"""Listeners: functions that are called for each message, on threads of ours.

`lanes.py` says which message may run next, `redelivery` what the end of a call means for its message.

Invariants:
    (1) `threads=1` runs the function on the thread that receives: nothing is taken ahead;
    (2) with more threads at most LISTENER_BACKLOG messages per thread are taken ahead; they are given back on stop;
    (3) a queue is paused while too much of it is not settled (`options.is_full`); over TCP the reader sees to that;
    (4) ordered: one message of a queue at a time, and the next one only after this one was consumed;
    (5) a damaged message is logged and left out: it ends no listener.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from shmq.client import options
from shmq.client.background import started
from shmq.client.consumers.consumer import Consumer, ConsumerContext
from shmq.client.consumers.lanes import Lanes
from shmq.client.kinds import whole_in
from shmq.client.observers.observer import Call
from shmq.client.redelivery.redelivery import settle, settle_failed
from shmq.client.spec import ConsumerSpec
from shmq.client.wire import LOG, ignore
from shmq.errors import DamagedMessage, OffsetOutOfRange, UsageError
from shmq.functions import ENDING, check_function, finished
from shmq.shm.core import Message
from shmq.waits import give_turn, slice_seconds

Function = Callable[[Any], Any]


def check_threads(threads: int) -> int:
    """Return how many messages a listener may handle at once.

    Raises:
        UsageError: no listener may.
    """
    count = whole_in(threads, 1, options.LISTENER_THREADS_MAX)
    if count is None:
        raise UsageError(f"threads={threads!r:.80} is not possible", hint=f"1 to {options.LISTENER_THREADS_MAX}")
    return count


class PushConsumer(Consumer):
    """The consumer inside a listener."""

    _traces_what_it_hands = False

    def __init__(self, context: ConsumerContext, spec: ConsumerSpec, on_queue_left: Callable[[int], None]) -> None:
        self._on_queue_left = on_queue_left
        super().__init__(context, spec)

    def _queue_left(self, queue_id: int) -> None:
        super()._queue_left(queue_id)
        self._on_queue_left(queue_id)

    def _poll_once(self, count_max: int, wait: float) -> list[Message]:
        with self._going_on_behind_losses():
            return super()._poll_once(count_max, wait)
        return []

    @contextlib.contextmanager
    def _going_on_behind_losses(self) -> Iterator[None]:
        """Log what is damaged, or was deleted by cleaning before this group read it, and go on behind it."""
        try:
            yield
        except (OffsetOutOfRange, DamagedMessage) as error:
            LOG.warning('topic "%s", group "%s": %s', self.topic, self.group, error)

    def _spans(self) -> dict[int, int]:
        """Return by queue how far the newest message taken is ahead of the oldest one not settled."""
        reader = self._reader
        if reader is None:
            return {}
        return {entry.queue_id: max(0, entry.next_offset - 1 - entry.committed) for entry in reader.assigned()}


class Listener:
    """One function, its consumer and its threads. Made by `Connection.listener()`."""

    def __init__(
        self,
        context: ConsumerContext,
        join: Callable[[PushConsumer], object],
        spec: ConsumerSpec,
        function: Function,
        *,
        threads: int,
        ordered: bool,
    ) -> None:
        """`join` lets a consumer begin to read, as a member of its group."""
        count = check_threads(threads)
        check_function(function)
        self.spec = spec._replace(ordered=ordered, function=function)
        self.function = function
        self.failure: BaseException | None = None
        self._context = context
        self._join = join
        self._thread_count = count
        self._ordered = ordered
        self._lanes = Lanes(ordered=ordered)
        self._changed = threading.Condition()
        self._threads: list[threading.Thread] = []
        self._running_count = 0
        self._consumer: PushConsumer | None = None
        self._stopping = False
        self._waits_for_room = False
        self._on_failure: Callable[[Listener], None] = ignore

    def start(self, on_failure: Callable[[Listener], None]) -> None:
        """Join the group and begin to call the function; `on_failure` is called when the listener had to give up.

        Raises:
            ConnectError: no thread can be started.
        """
        self._on_failure = on_failure
        self._stopping = False
        self._consumer = PushConsumer(self._context, self.spec, self._forget_queue)
        self._join(self._consumer)
        try:
            self._spawn_all(f"shmq-listener-{self.spec.topic}")
        except BaseException:
            self.stop()
            self.join(time.monotonic())
            raise

    def stop(self) -> None:
        """Take no further message; returns at once."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._consumer is not None:
            self._consumer.stop()

    def join(self, deadline: float) -> bool:
        """Wait for the running calls until `deadline` (time.monotonic), then leave the group."""
        own = threading.current_thread()
        for thread in self._threads:
            if thread is not own:
                thread.join(max(0.0, deadline - time.monotonic()))
        ended = not any(thread.is_alive() for thread in self._threads if thread is not own)
        if self._consumer is not None:
            self._consumer.close()
        self._threads = []
        self._lanes = Lanes(ordered=self._ordered)
        return ended

    def _spawn_all(self, name: str) -> None:
        if self._thread_count == 1 and not self._ordered:
            self._spawn(self._receive_and_run, name)
            return
        self._spawn(self._dispatch, name)
        for number in range(self._thread_count):
            self._spawn(self._work, f"{name}-{number}")

    def _spawn(self, body: Callable[[], None], name: str) -> None:
        with self._changed:
            self._running_count += 1
        try:
            thread = threading.Thread(target=self._guard, args=(body,), name=name, daemon=True)
            self._threads.append(started(thread))
        except BaseException:
            with self._changed:
                self._running_count -= 1
            raise

    def _guard(self, body: Callable[[], None]) -> None:
        try:
            body()
        except BaseException as error:
            # The outermost loop of this thread: run() raises it in the application's thread.
            if self.failure is None and (not self._stopping or isinstance(error, ENDING)):
                self.failure = error
                self.stop()
                self._on_failure(self)
        with self._changed:
            self._running_count -= 1
            is_left = self._running_count == 0 and self.failure is not None
        if is_left and self._consumer is not None:
            self._consumer.close()  # a member that reads nothing would keep its queues from the others

    # -- one thread
    def _receive_and_run(self) -> None:
        assert self._consumer is not None
        while not self._stopping:
            with self._consumer._going_on_behind_losses():
                for message in self._consumer._messages():
                    self._run(message)
                    del message
                return

    # -- several threads
    def _dispatch(self) -> None:
        consumer = self._consumer
        assert consumer is not None
        limit, slice_given = self._thread_count * options.LISTENER_BACKLOG, consumer._slice_seconds
        while not self._stopping:
            with self._changed:
                while (room := limit - self._lanes.waiting_count) <= 0 and not self._stopping:
                    self._waits_for_room = True
                    self._changed.wait()
                self._waits_for_room = False
            if self._stopping:
                return
            messages = consumer._poll_once(room, slice_given)
            if not messages:
                give_turn(slice_given)
            with self._changed:
                if sum(self._lanes.offer(message) for message in messages):
                    self._changed.notify_all()
                changes = self._lanes.relieve({message.queue_id for message in messages}, consumer._spans())
            for queue_id, paused in changes.items():  # this thread only, so the last word is the latest
                consumer._pause(queue_id, paused=paused)
            del messages

    def _work(self) -> None:
        consumer = self._consumer
        assert consumer is not None
        while True:
            with self._changed:
                while (message := self._lanes.take()) is None and not self._stopping:
                    self._changed.wait()
                if self._stopping or message is None:
                    return
                if self._waits_for_room:  # those behind this message take no room of others any more
                    self._changed.notify_all()
            consumed = self._run(message)
            with self._changed:
                self._lanes.finish(message, consumed=consumed)
                relieved = self._lanes.is_awaited(message.queue_id)
                self._changed.notify_all()
            if relieved:
                consumer._wake()
            del message

    def _forget_queue(self, queue_id: int) -> None:
        with self._changed:
            self._lanes.forget(queue_id)

    def _run(self, message: Message) -> bool:
        """Call the function and settle the message; True when it will not come again."""
        observer = self._context.observer
        if observer is None:
            return self._call(message)
        with observer.calling(self.spec.group, message) as call:
            call.consumed = self._call(message, call)
        return call.consumed

    def _call(self, message: Message, call: Call | None = None) -> bool:
        assert self._consumer is not None
        try:
            outcome = finished(self.function(message))
        except BaseException as error:
            if call is not None:
                call.error = error
            return settle_failed(self._consumer._redelivery, self.spec.group, message, error)
        return settle(self._consumer._redelivery, message, outcome)


class Listeners:
    """All listeners of a connection: started together, stopped together."""

    def __init__(self) -> None:
        self._listeners: list[Listener] = []
        self.forget_threads()

    def forget_threads(self) -> None:
        """Begin anew; in a forked child the threads are the parent's."""
        self._started: list[Listener] = []
        self._stops = 0  # that go on
        self._lock = threading.RLock()  # a handler of a signal may stop what its thread is starting
        self._is_run = False  # `run()` waits, and raises what ended a listener
        # A queue, because putting into it is the one way to wake a thread that a signal handler may use.
        self._ends: queue.SimpleQueue[None] = queue.SimpleQueue()

    def add(self, listener: Listener) -> None:
        """Register a listener; `start()` starts it."""
        with self._lock:
            self._listeners.append(listener)

    def start(self) -> None:
        """Start the listeners that do not run yet.

        Raises:
            UsageError: another thread is just stopping them; what it waits for would go on.
        """
        with self._lock:
            if self._stops:
                raise UsageError("the listeners are just being stopped", hint="start them when stop() has returned")
            if not self._started:
                self._ends = queue.SimpleQueue()
            started = self._started
            for listener in self._listeners:
                if listener not in started:
                    listener.start(self._failed)
                    started.append(listener)
                    if self._started is not started:  # by such a handler, which knew nothing of this one
                        listener.stop()
                        listener.join(time.monotonic())
                        break

    def run(self, timeout: float) -> None:
        """Start, wait for `stop()`, Ctrl-C or SIGTERM, and drain for `timeout` seconds.

        Raises:
            BaseException: what ended a listener, unless that was KeyboardInterrupt.
        """
        failures: list[BaseException] = []
        with _signals_call(self._end):
            try:
                self._is_run = True
                self.start()
                self._wait_for_end()
            finally:
                failures += self.stop(timeout)
                self._is_run = False
        for failure in failures:
            if not isinstance(failure, KeyboardInterrupt):
                raise failure

    def stop(self, timeout: float) -> list[BaseException]:
        """Stop receiving, wait for running calls, give back the rest; returns what had ended listeners before."""
        deadline = time.monotonic() + timeout
        with self._lock:
            started, self._started = self._started, []
            self._stops += 1
        try:
            for listener in started:
                listener.stop()
            for listener in started:
                listener.join(deadline)
        finally:
            with self._lock:
                self._stops -= 1
        self._end()
        failures = [listener.failure for listener in started if listener.failure is not None]
        for listener in started:
            listener.failure = None
        return failures

    def _wait_for_end(self) -> None:
        # In slices: a signal that comes just before the thread falls asleep does not wake it.
        while True:
            with contextlib.suppress(queue.Empty):
                return self._ends.get(timeout=slice_seconds(options.SIGNAL_SLICE))
            give_turn(slice_seconds(options.SIGNAL_SLICE))

    def _failed(self, listener: Listener) -> None:
        if not self._is_run:
            log_end(listener.spec, listener.failure)
        self._end()

    def _end(self) -> None:
        self._ends.put(None)


def log_end(spec: ConsumerSpec, failure: BaseException | None) -> None:
    """Say what ended a listener that runs in the background, where nothing waits for it."""
    text = 'the listener of topic "%s", group "%s" has ended and left its group; stop() and start() begin anew'
    LOG.error(text, spec.topic, spec.group, exc_info=failure)


@contextlib.contextmanager
def _signals_call(action: Callable[[], None]) -> Iterator[None]:
    """Let Ctrl-C and SIGTERM call `action` instead of what Python does by default; a second one does that again."""
    import signal

    taken: dict[int, Any] = {}

    def give_back() -> None:
        while taken:
            signal.signal(*taken.popitem())

    def on_signal(_number: int, _frame: object) -> None:
        give_back()
        action()

    if threading.current_thread() is threading.main_thread():
        for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGTERM, signal.SIG_DFL)):
            if signal.getsignal(number) == usual:
                taken[number] = signal.signal(number, on_signal)
    try:
        yield
    finally:
        give_back()
