"""The life under a connection: its session, client id and background thread, through forks and restarts of the broker.

    open ◀──first use── forked          mq.send is the C function itself; after a fork it is, until the first use,
      │                    ▲            something that opens a session first
      ├──────fork──────────┘
      ├──generation given up──▶ the same connection on the next generation, in the background
      └──close──▶ closed

Invariants:
    (1) a connection may be used from any thread;
    (2) after a fork the child has a client id, a client slot and a thread of its own; it uses, notifies and closes
        nothing of the parent's, and handles open anew on first use;
    (3) `close()` returns within its timeout, whatever hangs;
    (4) nothing here blocks in a finalizer;
    (5) at the end of the process connections say goodbye, quickly, so that others need not find out.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import time
import warnings
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self, TypeVar

from shmq.client import options
from shmq.client.background import elsewhere
from shmq.client.client_id import new_client_id
from shmq.client.consumers.consumer import Consumer, ConsumerContext
from shmq.client.consumers.membership import Membership
from shmq.client.keywords import is_read_once
from shmq.client.kinds import TIMEOUT_MAX, check_wait, real_in
from shmq.client.observers.observer import observer_of
from shmq.client.place import Placed, RemotePlace
from shmq.client.producers.producer import Producer, Sender, watched_sender
from shmq.client.session import Session, open_session
from shmq.client.timetable import Clock, Timetable, loosely
from shmq.client.wire import LOG, Queues, Watcher, Wire
from shmq.errors import ShmqError, UsageError
from shmq.message import check_connection_name
from shmq.shm.place import Place

if TYPE_CHECKING:
    from shmq.client.consumers.listener import Listeners
    from shmq.client.local_session import LocalSession
    from shmq.client.observers.observer import SpansWanted
    from shmq.client.remote_session import RemoteSession
    from shmq.client.transactions.half import BegunHalf
    from shmq.client.transactions.transaction import Checkers, TxState
    from shmq.shm.core import Message, Receipt


_live: weakref.WeakValueDictionary[int, Link] = weakref.WeakValueDictionary()
ConsumerT = TypeVar("ConsumerT", bound=Consumer)
ThingT = TypeVar("ThingT")


class Link(Sender, Placed):
    """A connection without its public makers; see `Connection`."""

    __slots__ = (
        "__weakref__",
        "_checkers",
        "_clock",
        "_closed",
        "_held",
        "_holding",
        "_listeners",
        "_lock",
        "_membership",
        "_name",
        "_observer",
        "_producers",
        "_session",
        "_timeout",
        "_timetable",
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
        name: str | None = None,
    ) -> None:
        seconds = real_in(timeout)
        if seconds is None or not 0 < seconds <= TIMEOUT_MAX:
            raise UsageError(
                f"timeout={timeout!r:.80} is no time to wait",
                hint=f"seconds, more than 0 and at most {TIMEOUT_MAX:.0f} (24 days): timeout=5.0",
            )
        self._name = None if name is None else check_connection_name(name)
        self.place = place
        self.client_id = ""
        self._timeout = seconds
        self._clock = clock or Clock()
        self._closed = False
        self._listeners: Listeners | None = None
        self._checkers: Checkers | None = None
        self._lock = threading.RLock()
        self._timetable = Timetable(self._clock)
        # Weak: a connection without references is freed at once, and not by the collector of cycles.
        link = weakref.ref(self)
        self._membership = Membership(
            self._timetable,
            live=lambda: _alive(link)._live(),
            current=lambda: _alive(link)._session,
            producer_groups=lambda: _alive(link)._producer_groups(),
            registered=lambda session: _alive(link)._registered(session),
        )
        self._producers: weakref.WeakValueDictionary[int, Producer] = weakref.WeakValueDictionary()
        self._held: list[Session] = []
        self._session: Session | None = None
        self._holding = Holding()
        self._observer = observer_of(loosely(self._store_trace), trace=trace, spans=spans)
        self._live()
        _live[id(self)] = self
        timetable = weakref.ref(self._timetable)
        weakref.finalize(self._holding, _dropped, self._held, timetable, self.url).atexit = False

    def stop(self, timeout: float = options.CLOSE_TIMEOUT) -> None:
        """Stop the listeners: wait for running calls, give back what was not handled. Harmless without listeners."""
        timeout = check_wait(timeout)
        if self._listeners is not None:
            self._listeners.stop(timeout)

    def close(self, timeout: float = options.CLOSE_TIMEOUT) -> None:
        """Drain for at most `timeout` seconds, give unsettled messages back, and leave. Twice is harmless."""
        timeout = check_wait(timeout)
        with self._lock:
            if self._closed:
                return
            self._closed = True
        deadline = time.monotonic() + timeout
        self.stop(timeout)
        if self._checkers is not None:
            self._checkers.stop()
        for producer in referenced(self._producers):
            producer.close(max(0.0, deadline - time.monotonic()))
        self._membership.close()
        self._timetable.stop(deadline - time.monotonic())
        if self._observer is not None:
            self._observer.close(max(0.0, deadline - time.monotonic()))
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

    def _reached(self, seconds: float) -> tuple[Session, float]:
        """Return the session once its leader is reached, and the seconds that are left of those given."""
        session = self._live()
        return session, session.reach(seconds)

    def _local(self) -> LocalSession:
        """Return the session of a connection to this host's shared memory.

        Raises:
            UsageError: the broker is reached over TCP.
        """
        from shmq.client.local_session import LocalSession

        session = self._live()
        if not isinstance(session, LocalSession):
            raise UsageError(f"{self.url} is not in this host's memory", hint="connect with shmq://NAME on its host")
        return session

    def _remote(self) -> RemoteSession:
        """Return the session of a connection to a cluster."""
        from shmq.client.remote_session import RemoteSession

        session = self._live()
        assert isinstance(session, RemoteSession), "a cluster is reached by a remote connection"
        return session

    # -- what features get in place of the connection; another one after a fork
    def _wire(self) -> Wire:
        return self._live().wire

    def _queues(self) -> Queues:
        return self._live().queues

    def _begin_half(self, group: str, topic: str, body: Any, timeout: float, **arguments: Any) -> BegunHalf:
        def begin(left: float) -> BegunHalf:
            session, left = self._reached(left)
            return session.transactions.begin(group, topic, body, left, **arguments)

        if is_read_once(arguments.values()):
            return begin(timeout)
        return self._live().sends.until_taken(begin, timeout, topic)

    def _end_half(self, half: BegunHalf, state: TxState, timeout: float) -> Receipt | None:
        def end(left: float) -> Receipt | None:
            session, left = self._reached(left)
            return session.transactions.end(half, state, left)

        return self._live().sends.until_taken(end, timeout, half.topic)

    def _tell_leader(self, fields: dict[str, str]) -> None:
        def tell(left: float) -> None:
            session, left = self._reached(left)
            session.transactions.tell(fields, left)

        self._live().sends.until_taken(tell, self._timeout, fields.get("topic", ""))

    def _ask(self, topic: str, body: Any, timeout: float, **arguments: Any) -> Message:
        def ask(left: float) -> Message:
            session, left = self._reached(left)
            return session.requests.request(topic, body, left, **arguments)

        if is_read_once(arguments.values()):
            return ask(timeout)
        return self._live().sends.until_taken(ask, timeout, topic)

    def _open_session(self) -> None:
        self.client_id = new_client_id(self._name)
        session = open_session(self.place, client_id=self.client_id, timeout=self._timeout)
        # Weak: its own control thread must not keep a connection the application has dropped.
        session.members.watch(Watcher(loosely(self._members_changed), loosely(self._reconnected), _warn_of_refusal))
        self._held[:] = [session]
        self._attach(session)
        self._session = session  # behind that: a thread that sees it calls what is bound
        self._membership.revive()
        if self._checkers:
            self._membership.register()

    def _attach(self, session: Session) -> None:
        self._bind(watched_sender(session.sends, self._observer, self._timeout, keeps=self._holding))
        for producer in referenced(self._producers):
            producer._attach(session.sends, session.queues)

    def _refuse(self) -> None:
        raise UsageError("the connection is closed", hint="connect again with shmq.connect()")

    def _after_fork(self) -> None:
        session, self._session = self._session, None
        self._lock = threading.RLock()
        self._timetable.start_over()
        self._held.clear()
        if self._observer is not None:
            self._observer.start_over()
        if self._closed:
            return
        if session is not None:
            session.abandon()
        self._bind_to(self._revive)
        for producer in referenced(self._producers):
            producer._detach(self._revive)
        for threaded in (self._listeners, self._checkers):
            if threaded is not None:
                threaded.forget_threads()
        self._membership.start_over()

    def _vanish(self) -> None:
        """Leave as a killed process does: nothing is drained, given back or said; tests need that."""
        with self._lock:
            self._closed = True
            session, self._session = self._session, None
        self._held.clear()
        self._bind_to(self._refuse)
        self._timetable.stop(0.0)
        self._membership.vanish()
        if session is not None:
            session.wire.close()

    def _revive(self) -> None:
        self._live()

    def _at_exit(self) -> None:
        if self._session is not None:
            self.close(options.EXIT_TIMEOUT)

    def _consumer_context(self) -> ConsumerContext:
        """Return what a consumer of this connection needs; it keeps the connection."""
        requeue, left = self._membership.requeue, self._membership.left
        return ConsumerContext(self.url, self._timetable, self._live, requeue, left, self._observer)

    def _add_consumer(self, consumer: ConsumerT) -> ConsumerT:
        """Register with the broker and begin to read."""
        return self._membership.join(consumer)

    def _forget_producer(self, producer: Producer) -> None:
        self._producers.pop(id(producer), None)

    def _producer_groups(self) -> set[str]:
        groups = {producer.group for producer in referenced(self._producers) if producer.group}
        return groups.union(self._checkers.groups if self._checkers is not None else ())

    def _registered(self, session: Session) -> None:
        if self._checkers is not None:
            session.transactions.answer(self._checkers.groups, self._checkers.asked)

    def _store_trace(self, body: bytes, keys: Sequence[str]) -> None:
        if (session := self._session) is not None:
            session.sends.store_trace(body, keys)

    # -- what the control plane reports, on its own thread: only hand over
    def _members_changed(self, group: str) -> None:
        if not self._closed:
            self._timetable.call_soon(lambda: self._membership.rebalance(group))

    def _reconnected(self) -> None:
        if not self._closed:
            self._timetable.call_soon(self._reattach)

    def _reattach(self) -> None:
        with self._lock:  # not while one is being opened
            session = self._session
        if session is None or self._closed:
            return
        try:
            is_new = session.renew()
        except ShmqError as error:
            LOG.warning("the broker is back, but its segments cannot be used yet: %s", error)
            self._timetable.call_after(options.REATTACH_INTERVAL, self._reattach)
            return
        if is_new:
            with self._lock:  # a producer that is just made is bound before or behind this
                if self._closed:
                    return
                self._attach(session)
        self._membership.reattach(is_new=is_new)


def _warn_of_refusal(error: ShmqError) -> None:
    LOG.warning("the broker refuses this client's groups after a reconnection: %s", error)


def _alive(link: weakref.ref[Link]) -> Link:
    target = link()
    if target is None:
        raise UsageError("the connection is gone", hint="keep it as long as what it has made")
    return target


class Holding:
    """Keeps the session of a connection that is not closed: held by the connection, and by each of its senders.

    The hot names of a connection are the senders' own methods, which know no connection: `connect().send(…)` drops it
    before the call begins, and the session has to outlive the call.
    """

    __slots__ = ("__weakref__",)


def _dropped(held: list[Session], timetable: weakref.ref[Timetable], url: str) -> None:
    """A connection was collected without `close()`: let go of it elsewhere, since this may be any thread, any time."""
    if held:
        warnings.warn(
            f"a connection to {url} was not closed; use `with shmq.connect() as mq:`", ResourceWarning, stacklevel=2
        )
        elsewhere(_let_go, held.pop(), timetable)


def _let_go(session: Session, timetable: weakref.ref[Timetable]) -> None:
    jobs = timetable()
    if jobs is not None:
        jobs.stop(0.0)
    with contextlib.suppress(ShmqError):
        session.poppers.settle()
    session.close()


def referenced(things: weakref.WeakValueDictionary[int, ThingT]) -> list[ThingT]:
    """Return those that are still referenced, while other threads add some: an iteration would end with an error."""
    return [thing for found in things.valuerefs() if (thing := found()) is not None]


def live_connections() -> list[Link]:
    """Return the connections of this process that are still referenced; closed ones may be among them."""
    return referenced(_live)


def _in_child() -> None:
    for connection in live_connections():
        connection._after_fork()


def _at_exit() -> None:
    for connection in live_connections():
        connection._at_exit()


os.register_at_fork(after_in_child=_in_child)
atexit.register(_at_exit)
