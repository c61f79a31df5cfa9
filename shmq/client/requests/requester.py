"""Asking: the requests of one session, and the two ways they leave and their replies come.

                this host                                              TCP
    request     a message on its topic with CORRELATION_ID, TTL and
                REPLY_TO_CLIENT=shm:<queue>:<client id>, CLUSTER       REPLY_TO_CLIENT=<client id>
    reply       a message in that queue of <cluster>_REPLY_TOPIC,      326: a broker pushes it over the connection
                which is read from its end on                          our heartbeats come by

A private topic for every requesting process of this host would make the tables grow with processes that come and go.
The reply topic of the cluster exists anyway and keeps replies for administrators as in RocketMQ; processes divide its
queues by their client ids, and read over replies that are for others.

Rules:
    (1) on this host a request is sent only after the reader stands at the end of its queue, so no reply is missed and
        no old one read;
    (2) over TCP the brokers of a topic have heard of us as a producer before a request is sent to them: they look for
        it when the reply comes, at whichever broker of the cluster that is;
    (3) every request ends once: by its reply, by its deadline, or by `close()`; a reply to none is dropped.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol

from shmq.client import options
from shmq.client.background import started
from shmq.errors import BrokerNotRunning, CorruptionError, RequestTimeout, ShmqError, UsageError
from shmq.properties import check_properties, encode_properties
from shmq.protocol import request_reply as wire
from shmq.shm.core import Message, Producer, Reader, Store
from shmq.waits import give_turn, slice_seconds

if TYPE_CHECKING:
    from concurrent.futures import Future


POLL_MAX = 64


class Way(Protocol):
    """A way for requests to leave and replies to come."""

    @property
    def poll(self) -> Callable[[float], Iterable[tuple[str, Message]]] | None:
        """Waits so many seconds for replies, and returns them by correlation id; None: they are pushed."""

    def skip(self) -> None:
        """Read over the replies there are: no request waits for them."""

    def send(
        self, waiting: Waiting, body: Any, arguments: dict[str, Any], *, failed: Callable[[Exception], None]
    ) -> None:
        """Send a request; where that does not wait, `failed` is called later if it could not be sent."""

    def close(self) -> None:
        """Read no replies any more."""


class Requests:
    """The requests of one session, and its replies to those of others; any thread may use it."""

    def __init__(self, open_way: Callable[[], Way], reply: Callable[[Message, Any], bool]) -> None:
        """
        Args:
            open_way: called when the first request is sent.
            reply: brings a reply to its requester; False when that is not there any more.
        """
        self.reply = reply
        self._open_way = open_way
        self._way: Way | None = None
        self._waiting: WaitingRequests | None = None
        self._making = threading.RLock()  # a handler of a signal may close what its thread is using
        self._over: Over | None = None
        self._ids = itertools.count(1)
        self._prefix = os.urandom(8).hex()

    @property
    def is_idle(self) -> bool:
        """Whether no request waits for a reply."""
        return self._waiting is None or self._waiting.is_empty

    def request(self, topic: str, body: Any, timeout: float, **arguments: Any) -> Message:
        """Send a request and return its reply.

        Raises:
            RequestTimeout: none came in time.
        """
        requests, waiting = self._send(topic, body, timeout, None, arguments)
        try:
            reply: Message | None = requests.wait(waiting)
        finally:
            requests.drop(waiting)
        if reply is None:
            raise waiting.timed_out()
        return reply

    def begin(self, topic: str, body: Any, timeout: float, **arguments: Any) -> Future[Message]:
        """Send a request and return a future of its reply."""
        from concurrent.futures import Future  # imported only for requests without a wait here

        future: Future[Message] = Future()
        self._send(topic, body, timeout, future, arguments)
        return future

    def arrived(self, reply: Message) -> None:
        """Take a reply that was pushed."""
        if self._waiting is not None:
            self._waiting.arrived(reply.properties.get(wire.CORRELATION_ID, ""), reply)

    def close(self, over: Over | None = None) -> None:
        """End every wait.

        Args:
            over: makes the error of what waits, and of what comes; None: the connection was closed.
        """
        with self._making:
            self._over = over or closed
            way, requests = self._way, self._waiting
        if requests is not None:
            requests.close(self._over)
        if way is not None:
            way.close()

    def _opened(self) -> tuple[Way, WaitingRequests]:
        way, requests = self._way, self._waiting
        if way is None or requests is None:
            with self._making:
                if self._over is not None:
                    raise self._over(False)
                if self._way is None:
                    way = self._open_way()
                    self._waiting = WaitingRequests(way.poll)
                    self._way = way
                way, requests = self._way, self._waiting
            assert requests is not None
        return way, requests

    def _send(
        self, topic: str, body: Any, timeout: float, future: Future[Message] | None, arguments: dict[str, Any]
    ) -> tuple[WaitingRequests, Waiting]:
        way, requests = self._opened()
        waiting = Waiting(f"{self._prefix}{next(self._ids):x}", topic, timeout, future)
        with self._making:  # no other request may be sent, and answered, between these two
            if requests.is_empty:
                way.skip()
            requests.add(waiting)
        try:
            way.send(waiting, body, arguments, failed=lambda error: requests.fail(waiting, error))
        except BaseException:
            requests.drop(waiting)
            raise
        return requests, waiting


class SharedReplies:
    """The way through this host's memory: the process stores its requests, and reads its queue of the reply topic."""

    def __init__(
        self, store: Store, reader: Reader, producer: Producer, topic_index: int, *, cluster: str, client_id: str
    ) -> None:
        """
        Args:
            topic_index: of the reply topic, in the store.
        """
        self._store = store
        self._reader = reader
        self._producer = producer
        entry = store.topic(topic_index)
        queue_id = zlib.crc32(client_id.encode()) % entry["read_queues"]
        self._queue = entry["queues"][queue_id]
        reader.assign(wire.reply_topic(cluster), self._queue, queue_id, self._end())
        address = wire.SharedAddress(queue_id, client_id)
        self._suffix = encode_properties({wire.REPLY_TO: str(address), wire.CLUSTER: cluster})

    def send(
        self, waiting: Waiting, body: Any, arguments: dict[str, Any], *, failed: Callable[[Exception], None]
    ) -> None:
        text = request_text(arguments.pop("properties", None), waiting.correlation_id, waiting.timeout) + self._suffix
        raw: Any = text.encode()
        self._producer.send(waiting.topic, body, properties=raw, timeout=waiting.timeout, **arguments)

    def skip(self) -> None:
        self._reader.seek(self._queue, self._end())

    def poll(self, seconds: float) -> Iterable[tuple[str, Message]]:
        try:  # contextlib.suppress takes three calls, and every reply comes here
            messages = self._reader.poll(POLL_MAX, seconds)
        except CorruptionError:  # it is stepped over; whose it was gets no reply
            return ()
        return [(message.properties.get(wire.CORRELATION_ID, ""), message) for message in messages]

    def close(self) -> None:
        self._reader.close()

    def _end(self) -> int:
        return self._store.queue(self._queue).offset_max


def request_properties(correlation_id: str, timeout: float) -> dict[str, str]:
    """Return the properties of a request, without the address of its reply."""
    return {wire.CORRELATION_ID: correlation_id, wire.TTL: str(max(1, round(timeout * 1000)))}


def request_text(properties: Mapping[str, str] | None, correlation_id: str, timeout: float) -> str:
    """Return the property text of a request, without the address of its reply.

    Raises:
        UsageError: a property that may not be set.
    """
    found = request_properties(correlation_id, timeout)
    if properties:
        check_properties(properties)
        found.update(properties)
    return encode_properties(found)


IDLE_SECONDS: Final = 5.0
"""How long the thread that reads for futures waits for another one."""


class _Bell:
    """Wakes one thread; a lock costs a tenth of what an Event does, and every request has one."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def ring(self) -> None:
        try:  # contextlib.suppress takes three calls, and every request comes here
            self._lock.release()
        except RuntimeError:  # rung already
            return

    def wait(self, seconds: float) -> None:
        self._lock.acquire(timeout=max(0.0, seconds))


Over = Callable[[bool], ShmqError]
"""Makes the error of a request that is over, or was not sent (False), as nothing reads replies any more."""


def closed(was_sent: bool) -> ShmqError:
    """The connection was closed."""
    if was_sent:
        return UsageError("the connection was closed before the reply came", hint="wait for replies, then close")
    return UsageError("the connection is closed", hint="connect again with shmq.connect()")


def renewed(was_sent: bool) -> ShmqError:
    """The broker has other segments now: it was started again, or its leader has changed."""
    error = BrokerNotRunning(
        "the broker began anew before the reply came" if was_sent else "the broker begins anew",
        hint="ask again, if the request may be handled twice" if was_sent else "ask again",
    )
    error.maybe_stored = was_sent
    return error


class Waiting:
    """One request without its reply."""

    __slots__ = ("correlation_id", "deadline", "error", "future", "is_over", "reply", "timeout", "topic", "woken")

    def __init__(self, correlation_id: str, topic: str, timeout: float, future: Future[Any] | None = None) -> None:
        self.correlation_id = correlation_id
        self.topic = topic
        self.timeout = timeout
        self.deadline = time.monotonic() + timeout
        self.future = future
        self.reply: Any = None
        self.error: Exception | None = None
        self.is_over = False
        self.woken = _Bell()

    def end(self, reply: Any, error: Exception | None) -> None:
        """Take the reply, or why there will be none."""
        self.reply = reply
        self.error = error
        self.is_over = True  # last: another thread that sees it reads the two above

    def timed_out(self) -> RequestTimeout:
        """Return the error of a request that was not answered in time."""
        error = RequestTimeout(
            f'no reply to a request on topic "{self.topic}" within {self.timeout:g} s',
            hint="does a replier run, and is it fast enough? shmq group list shows who reads",
        )
        error.maybe_stored = True
        return error


class WaitingRequests:
    """The requests that wait for their replies: reading, waking and giving up; any thread may use it.

    Where replies have to be read, `poll(seconds)` brings some. Where they are pushed, `arrived` is called.

        a thread in `wait`     reads itself unless another thread does: its reply needs no other thread to get here
        the others             sleep; a reader that stops wakes one of them, which reads on
        futures of `begin`     a thread of ours reads for them, looks at their deadlines, and ends when none has been
                               asked for in a while

    Rule: at most one thread polls at a time.
    """

    def __init__(self, poll: Callable[[float], Iterable[tuple[str, Any]]] | None) -> None:
        """
        Args:
            poll: waits so many seconds at most and returns (correlation id, reply) of what came; None: it is pushed.
        """
        self._poll = poll
        self._slice_seconds = slice_seconds(options.ITERATION_SLICE)
        self._lock = threading.RLock()  # a handler of a signal may close what its thread is using
        self._reading = threading.Lock()
        self._open: dict[str, Waiting] = {}
        self._futures = 0
        self._wanted = threading.Event()
        self._thread: threading.Thread | None = None
        self._over: Over | None = None

    @property
    def is_empty(self) -> bool:
        """Whether no request waits."""
        return not self._open

    def add(self, waiting: Waiting) -> None:
        """Begin to wait; call it before the request is sent."""
        with self._lock:
            if self._over is not None:
                raise self._over(False)
            if waiting.future is not None:
                if self._thread is None:
                    reads = threading.Thread(target=self._read_for_futures, name="shmq-replies", daemon=True)
                    self._thread = started(reads)
                self._futures += 1
                self._wanted.set()
            self._open[waiting.correlation_id] = waiting

    def drop(self, waiting: Waiting) -> None:
        """Stop to wait."""
        with self._lock:
            if self._open.pop(waiting.correlation_id, None) is not None and waiting.future is not None:
                self._futures -= 1

    def wait(self, waiting: Waiting) -> Any:
        """Return the reply, None when the deadline has passed.

        Raises:
            ShmqError: replies cannot be read any more, or the request could not be sent.
        """
        while not waiting.is_over and self._over is None:
            remaining = waiting.deadline - time.monotonic()
            if remaining <= 0:
                break
            if self._poll is not None and self._reading.acquire(blocking=False):
                try:
                    while not waiting.is_over and self._over is None:
                        remaining = waiting.deadline - time.monotonic()
                        if remaining <= 0:
                            break
                        self._take(min(remaining, options.ITERATION_SLICE))
                finally:
                    self._stop_reading()
            else:
                waiting.woken.wait(min(remaining, options.ITERATION_SLICE))
        if waiting.error is not None:
            raise waiting.error
        if waiting.reply is None and self._over is not None:
            raise self._over(True)
        return waiting.reply

    def close(self, over: Over = closed) -> None:
        """End every wait; twice is harmless."""
        with self._lock:
            self._over = over
            waiting = list(self._open.values())
        self._wanted.set()
        for each in waiting:
            each.woken.ring()
            self._fail(each, over(True))

    def arrived(self, correlation_id: str, reply: Any) -> None:
        """Hand a reply to the request that waits for it; without one, or a second time, it is dropped."""
        waiting = self._open.get(correlation_id)
        if waiting is None or waiting.is_over:
            return
        waiting.end(reply, None)
        if waiting.future is None:
            waiting.woken.ring()
            return
        self.drop(waiting)
        _settle(waiting.future, reply, None)

    def fail(self, waiting: Waiting, error: Exception) -> None:
        """End a request that could not be sent."""
        if not waiting.is_over:
            waiting.end(None, error)
            waiting.woken.ring()
            self._fail(waiting, error)

    def _take(self, seconds: float) -> None:
        if self._poll is None:
            time.sleep(seconds)
            return
        try:
            replies = self._poll(min(seconds, self._slice_seconds))
        except UsageError:
            if self._over is None:
                raise
            return  # closed meanwhile, by a signal handler of this thread or another one: `wait` says so
        for correlation_id, reply in replies:
            self.arrived(correlation_id, reply)
        if not replies:
            give_turn(self._slice_seconds)

    def _stop_reading(self) -> None:
        self._reading.release()
        with self._lock:
            for each in self._open.values():
                if each.future is None and not each.is_over:
                    each.woken.ring()
                    return

    # -- the thread that reads for futures
    def _read_for_futures(self) -> None:
        while self._over is None:
            if not self._wanted.wait(IDLE_SECONDS):
                with self._lock:
                    if not self._wanted.is_set():
                        self._thread = None
                        return
            with self._lock:
                if not self._futures:
                    self._wanted.clear()
                    continue
            self._reading.acquire()
            try:
                self._take_and_expire()
            except ShmqError as error:
                for each in self._with_futures():
                    self._fail(each, error)
            finally:
                self._stop_reading()

    def _take_and_expire(self) -> None:
        soonest = min((each.deadline for each in self._with_futures()), default=0.0)
        remaining = soonest - time.monotonic()
        if remaining > 0:
            self._take(min(remaining, options.REPLY_SLICE))
        now = time.monotonic()
        for each in self._with_futures():
            if each.deadline <= now:
                self._fail(each, None)

    def _with_futures(self) -> list[Waiting]:
        with self._lock:
            return [each for each in self._open.values() if each.future is not None]

    def _fail(self, waiting: Waiting, error: Exception | None) -> None:
        self.drop(waiting)
        if waiting.future is not None:
            _settle(waiting.future, None, error or waiting.timed_out())


def _settle(future: Future[Any], reply: Any, error: Exception | None) -> None:
    from concurrent.futures import InvalidStateError

    with contextlib.suppress(InvalidStateError):  # cancelled in this moment
        if error is None:
            future.set_result(reply)
        else:
            future.set_exception(error)
