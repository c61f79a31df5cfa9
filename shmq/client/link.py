"""Owns the life under a connection: its session, client id, background thread, and who has to be told what when.

It does not know what users can make of a connection (connection does), nor sockets or segments (session does).

    open ◀──first use── forked          mq.send is the C function itself; after a fork it is, until the first use,
      │                    ▲            something that opens a session first
      ├──────fork──────────┘
      ├──generation given up──▶ the same connection on the next generation, in the background
      └──close──▶ closed

Rules:
    (1) a connection may be used from any thread;
    (2) after a fork the child has a client id, a client slot and a thread of its own; the parent notices nothing;
    (3) `close()` returns within its timeout, whatever hangs;
    (4) nothing here blocks in a finalizer.
"""

from __future__ import annotations

import _thread
import contextlib
import threading
import time
import warnings
import weakref
from typing import TYPE_CHECKING, Self, TypeVar

from shmq.client import fork, options
from shmq.client.client_id import new_client_id
from shmq.client.clock import Clock
from shmq.client.consumers.consumer import Consumer
from shmq.client.consumers.pull import PullConsumer
from shmq.client.coordinator import Coordinator
from shmq.client.observers.observer import watched_sender, watchers_of
from shmq.client.place import RemotePlace
from shmq.client.producers.producer import Producer, Sender
from shmq.client.wire_shm.session import Session as LocalSession
from shmq.errors import ConnectError, RequestTimeout, ShmqError, UsageError
from shmq.shm.place import Place

if TYPE_CHECKING:
    from shmq.client.consumers.listener import Listeners
    from shmq.client.observers.observer import SpansWanted
    from shmq.client.transactions.transaction import Checkers
    from shmq.client.wire import MessageSender, Session

ConsumerT = TypeVar("ConsumerT", bound=Consumer)


class Link(Sender):
    """A connection without its public makers; see `Connection`."""

    __slots__ = (
        "__weakref__",
        "_checkers",
        "_clock",
        "_closed",
        "_consumers",
        "_coordinator",
        "_held",
        "_listeners",
        "_lock",
        "_periodic_scheduled",
        "_producers",
        "_session",
        "_spans",
        "_timeout",
        "_tracer",
        "client_id",
        "place",
    )

    def __init__(
        self,
        place: Place | RemotePlace,
        *,
        timeout: float = options.CONNECT_TIMEOUT,
        clock: Clock | None = None,
        trace: bool = False,
        spans: SpansWanted = False,
    ) -> None:
        self.place = place
        self.client_id = ""
        self._timeout = timeout
        self._clock = clock or Clock()
        self._closed = False
        self._listeners: Listeners | None = None
        self._checkers: Checkers | None = None
        self._consumers: list[Consumer | PullConsumer] = []
        self._producers: weakref.WeakSet[Producer] = weakref.WeakSet()
        self._held: list[Session] = []
        self._session: Session | None = None
        self._start_over()
        self._tracer, self._spans = watchers_of(self, trace=trace, spans=spans)
        self._live()
        fork.watch(self)
        weakref.finalize(self, _dropped, self._held, self.url).atexit = False

    def _start_over(self) -> None:
        self._lock = threading.RLock()
        self._coordinator = Coordinator(self._clock)
        self._periodic_scheduled = False

    @property
    def url(self) -> str:
        """The URL that leads to this broker, whatever the environment says; without the secrets in it."""
        return self.place.url

    @property
    def is_remote(self) -> bool:
        """Whether the broker is reached over TCP, so that whatever asks it waits for a network."""
        return isinstance(self.place, RemotePlace)

    @property
    def broker_name(self) -> str:
        """The broker's name."""
        return self.place.broker_name

    @property
    def closed(self) -> bool:
        """Whether `close()` was called."""
        return self._closed

    def stop(self, timeout: float = options.CLOSE_TIMEOUT) -> None:
        """Stop the listeners: wait for running calls, give back what was not handled. Harmless without listeners."""
        if self._listeners is not None:
            self._listeners.stop(timeout)

    def close(self, timeout: float = options.CLOSE_TIMEOUT) -> None:
        """Drain for at most `timeout` seconds, give unsettled messages back, and leave. Twice is harmless."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        deadline = time.monotonic() + timeout
        self.stop(timeout)
        if self._checkers is not None:
            self._checkers.stop()
        for producer in list(self._producers):
            producer.close(max(0.0, deadline - time.monotonic()))
        with self._lock:
            consumers, self._consumers = self._consumers, []
        for consumer in consumers:
            with contextlib.suppress(ShmqError):
                consumer.close()
        self._coordinator.stop(deadline - time.monotonic())
        if self._tracer is not None:
            self._tracer.close(max(0.0, deadline - time.monotonic()))
        self._bind_to(self._refuse)
        session, self._session = self._session, None
        self._held.clear()
        if session is not None:
            session.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<shmq.{type(self).__name__} {self.url} {'closed' if self._closed else self.client_id}>"

    def _live(self) -> Session:
        """Return the session, opening one if there is none."""
        session = self._session
        if session is not None:
            return session
        with self._lock:
            if self._session is None:
                if self._closed:
                    self._refuse()
                self._open_session()
            assert self._session is not None
            return self._session

    def _local(self) -> LocalSession:
        """Return the session of a connection to this host's shared memory.

        Raises:
            UsageError: the broker is reached over TCP.
        """
        session = self._live()
        if not isinstance(session, LocalSession):
            raise UsageError(f"{self.url} is not in this host's memory", hint="connect with shmq://NAME on its host")
        return session

    def _open_session(self) -> None:
        self.client_id = new_client_id()
        session = open_session(self.place, client_id=self.client_id, timeout=self._timeout)
        # Weak: a connection that nobody holds any more must not be kept by its own control thread.
        link = weakref.ref(self)
        session.watch(
            on_members_changed=lambda group: _call(link, "_members_changed", group),
            on_reconnect=lambda: _call(link, "_reconnected"),
            on_error=lambda error: _warn("the broker refuses this client's groups after a reconnection: %s", error),
        )
        self._session = session
        self._held[:] = [session]
        self._attach(session)
        if self._consumers or self._checkers:
            # In a forked child: the other consumers follow when they are used, but the broker is told of all of them.
            self._register()
            self._schedule_periodic()

    def _attach(self, session: Session) -> None:
        self._bind(self._sender_of(session, self._timeout))
        for producer in list(self._producers):
            producer._attach(session)

    def _sender_of(
        self, session: Session, timeout: float, group: str | None = None, compression: str | None = None
    ) -> MessageSender:
        """Return what sends for this connection or a producer of it."""
        inner = session.sender(timeout, group=group, compression=compression)
        return watched_sender(self, inner, group, session)

    def _refuse(self) -> None:
        raise UsageError("the connection is closed", hint="connect again with shmq.connect()")

    def _after_fork(self) -> None:
        session, self._session = self._session, None
        self._start_over()
        self._held.clear()
        if self._tracer is not None:
            self._tracer.start_over()
        if self._closed:
            return
        if session is not None:
            session.abandon()
        self._bind_to(self._revive)
        for producer in list(self._producers):
            producer._detach(self._revive)
        for threaded in (self._listeners, self._checkers):
            if threaded is not None:
                threaded.forget_threads()
        for consumer in self._consumers:
            consumer._after_fork()

    def _vanish(self) -> None:
        """Leave as a killed process does: nothing is drained, given back or said; tests need that."""
        with self._lock:
            self._closed = True
            session, self._session = self._session, None
            consumers, self._consumers = self._consumers, []
        self._held.clear()
        self._bind_to(self._refuse)
        self._coordinator.stop(0.0)
        for consumer in consumers:
            consumer._vanish()
        if session is not None:
            session.close()

    def _revive(self) -> None:
        self._live()

    def _at_exit(self) -> None:
        if self._session is not None:
            self.close(options.EXIT_TIMEOUT)

    def _add_consumer(self, consumer: ConsumerT) -> ConsumerT:
        """Register with the broker and begin to read.

        Raises:
            UsageError: this connection reads the topic for this group already.
        """
        session = self._live()
        with self._lock:
            for other in self._consumers:
                if consumer.group and isinstance(other, Consumer) and other._spec[:2] == consumer._spec[:2]:
                    raise UsageError(
                        f'this connection reads topic "{consumer.topic}" for group "{consumer.group}" already',
                        hint="use a second connection for a second member of the group, or listener(threads=…)",
                    )
            self._consumers.append(consumer)
        try:
            session.resolve(consumer.topic)
            self._register()
            consumer._live_reader()
        except BaseException:
            self._forget_consumer(consumer)
            raise
        self._schedule_periodic()
        return consumer

    def _forget_consumer(self, consumer: Consumer | PullConsumer) -> None:
        with self._lock:
            if consumer not in self._consumers:
                return
            self._consumers.remove(consumer)
            group = consumer.group if isinstance(consumer, Consumer) else None
            still_there = any(isinstance(other, Consumer) and other.group == group for other in self._consumers)
        session = self._session
        if self._closed or group is None or session is None:
            return
        with contextlib.suppress(ShmqError):  # the broker finds out when the socket closes, at the latest
            if still_there:
                self._register()
            else:
                session.unregister(group)

    def _forget_producer(self, producer: Producer) -> None:
        with self._lock:
            self._producers.discard(producer)

    def _register(self) -> None:
        """Tell the broker which groups this connection is a member of."""
        session = self._session
        if session is None:
            return
        with self._lock:
            producers = {producer.group for producer in self._producers if producer.group}
            checkers = self._checkers
            producers.update(checkers.groups if checkers is not None else ())
            specs = [consumer._spec for consumer in self._consumers if isinstance(consumer, Consumer)]
        session.register(sorted(producers), specs)
        if checkers is not None:
            session.transactions.answer(checkers.groups, checkers.asked)

    def _schedule_periodic(self) -> None:
        with self._lock:
            if self._periodic_scheduled or self._closed:
                return
            self._periodic_scheduled = True
        self._coordinator.call_after(options.REBALANCE_INTERVAL, self._run_periodic)

    def _run_periodic(self) -> None:
        with self._lock:
            self._periodic_scheduled = False
            if not self._consumers or self._session is None:
                return
            alive = self._session.alive
        self._schedule_periodic()
        if alive:
            self._rebalance(None, register=True)

    def _rebalance(self, group: str | None, *, register: bool = False) -> None:
        """Let the consumers of a group (None: of all) share their queues anew."""
        with self._lock:
            concerned = [c for c in self._consumers if isinstance(c, Consumer) and group in (None, c.group)]
        try:
            if register:
                self._register()
            for consumer in concerned:
                consumer._rebalance()
        except (ConnectError, RequestTimeout):
            return  # the broker is away: what we read stays ours, and its return starts this again

    # -- what the control plane reports, on its own thread: only hand over
    def _members_changed(self, group: str) -> None:
        self._coordinator.call_soon(lambda: self._rebalance(group))

    def _reconnected(self) -> None:
        self._coordinator.call_soon(self._reattach)

    def _reattach(self) -> None:
        session = self._session
        if session is None or self._closed:
            return
        with self._lock:
            consumers = list(self._consumers)
        try:
            is_new = session.renew()
        except ShmqError as error:
            _warn("the broker is back, but its segments cannot be used yet: %s", error)
            self._coordinator.call_after(options.REATTACH_INTERVAL, self._reattach)
            return
        if is_new:
            self._attach(session)
            self._register()
            for consumer in consumers:
                consumer._renew()
        else:
            for consumer in consumers:
                consumer._retake()
            self._rebalance(None, register=True)


def open_session(place: Place | RemotePlace, *, client_id: str, timeout: float) -> Session:
    """Attach to a broker of this host, or connect to a cluster.

    Raises:
        ConnectError: neither is there, or not for us.
    """
    # Each imported when it is needed: a local connection pays nothing for TCP, a remote one maps nothing.
    if isinstance(place, RemotePlace):
        from shmq.client.wire_tcp.session import RemoteSession

        return RemoteSession(place, client_id=client_id, timeout=timeout)
    from shmq.client.wire_shm.session import Session as LocalSession

    return LocalSession(place, client_id=client_id, timeout=timeout)


def _warn(text: str, error: ShmqError) -> None:
    import logging

    logging.getLogger("shmq").warning(text, error)


def _call(link: weakref.ref[Link], method: str, *arguments: str) -> None:
    target = link()
    if target is not None and not target._closed:
        getattr(target, method)(*arguments)


def _dropped(held: list[Session], url: str) -> None:
    """A connection was collected without `close()`: let go of it elsewhere, since this may be any thread, any time."""
    if held:
        warnings.warn(
            f"a connection to {url} was not closed; use `with shmq.connect() as mq:`", ResourceWarning, stacklevel=2
        )
        # Not threading.Thread, whose start() waits for the new thread: nothing may wait inside a collection.
        _thread.start_new_thread(held.pop().close, ())
