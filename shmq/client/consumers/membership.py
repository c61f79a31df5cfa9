"""The consumers of one connection: joining, registration, and the sharing of queues.

    join ──▶ registered with the brokers ──▶ reading ──left──▶ registered without it, or the group left

Every 20 s, when members of a group change, and after a reconnection the consumers share their queues anew.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from shmq.client import options
from shmq.client.consumers.consumer import Consumer
from shmq.client.consumers.pull import PullConsumer
from shmq.client.refusals import AWAY
from shmq.client.session import Session
from shmq.client.timetable import Timetable
from shmq.client.wire import LOG
from shmq.errors import PermissionDenied, RequestTimeout, ShmqError, TopicNotFound, UsageError
from shmq.shm.core import Message

ConsumerT = TypeVar("ConsumerT", bound=Consumer)
EachT = TypeVar("EachT", bound=Consumer | PullConsumer)


class Membership:
    """The consumers of one connection; any thread may use it."""

    def __init__(
        self,
        timetable: Timetable,
        *,
        live: Callable[[], Session],
        current: Callable[[], Session | None],
        producer_groups: Callable[[], Iterable[str]],
        registered: Callable[[Session], None],
    ) -> None:
        """
        Args:
            live: returns the session, opened if there is none; `current` returns None then.
            registered: called after each registration with the brokers.
        """
        self._timetable = timetable
        self._live = live
        self._current = current
        self._producer_groups = producer_groups
        self._registered = registered
        self._consumers: list[Consumer | PullConsumer] = []
        self._silent = weakref.WeakSet[Consumer | PullConsumer]()  # those whose broker did not answer the last time
        self._closed = False
        self.start_over()

    def start_over(self) -> None:
        """In a forked child: the consumers stay, to be opened anew on their first use."""
        self._lock = threading.RLock()  # a handler of a signal may close what its thread is using
        self._periodic_scheduled = False
        for consumer in self._consumers:
            consumer._after_fork()

    @property
    def consumers(self) -> list[Consumer | PullConsumer]:
        """All that have joined and not left."""
        with self._lock:
            return list(self._consumers)

    def requeue(self, group: str | None, message: Message) -> bool:
        """Let the consumer that reads the message's topic for a group deliver it again; False when there is none."""
        members = (each for each in list(self._consumers) if isinstance(each, Consumer))
        reader = next((each for each in members if (each.group, each.topic) == (group, message.topic)), None)
        return reader is not None and reader._requeue(message)

    def join(self, consumer: ConsumerT) -> ConsumerT:
        """Register a consumer with the brokers and let it begin to read.

        Raises:
            UsageError: this connection reads the topic for this group already, or the group in the other model.
            ConnectError: no thread can be started to share the queues.
        """
        session = self._live()
        self._timetable.begin()
        with self._lock:
            for other in self._consumers:
                if consumer.group and isinstance(other, Consumer) and other.group == consumer.group:
                    _check_beside(consumer, other)
            self._consumers.append(consumer)

        def begin(_: float) -> None:
            session = self._live()
            session.queues.resolve(consumer.topic)
            self.register()
            consumer._live_source()

        try:
            session.sends.until_taken(begin, session.wire.timeout, consumer.topic)
        except BaseException:
            self.left(consumer)
            raise
        self._schedule()
        return consumer

    def add(self, consumer: PullConsumer) -> None:
        """Note a consumer that is no member of a group."""
        with self._lock:
            self._consumers.append(consumer)

    def left(self, consumer: Consumer | PullConsumer) -> None:
        """Forget a consumer; the brokers find out when the connection ends, at the latest."""
        with self._lock:
            if consumer not in self._consumers:
                return
            self._consumers.remove(consumer)
            group = consumer.group if isinstance(consumer, Consumer) else None
            still_there = any(isinstance(other, Consumer) and other.group == group for other in self._consumers)
        session = self._current()
        if self._closed or group is None or session is None:
            return
        with contextlib.suppress(ShmqError):
            if not still_there:
                session.members.unregister(group)
            if still_there or group in self._groups():  # another thread joins it again
                self.register()

    def close(self) -> None:
        """Let every consumer leave, without telling the brokers one by one; they are about to lose the connection."""
        for consumer in self._end():
            with contextlib.suppress(ShmqError):
                consumer.close()

    def vanish(self) -> None:
        """End as a killed process does."""
        for consumer in self._end():
            consumer._vanish()

    def _end(self) -> list[Consumer | PullConsumer]:
        with self._lock:
            self._closed = True
            consumers, self._consumers = self._consumers, []
        return consumers

    # -- registration with the brokers
    def register(self) -> None:
        """Tell the brokers which groups this connection is a member of."""
        session = self._current()
        if session is None:
            return
        while True:
            with self._lock:
                specs = [consumer._spec for consumer in self._consumers if isinstance(consumer, Consumer)]
            session.members.register(sorted(self._producer_groups()), specs)
            # What another thread has left meanwhile would stay a group with a member that reads nothing.
            left = {spec.group for spec in specs if spec.group} - self._groups()
            if not left or self._closed:
                break
            for group in left:
                session.members.unregister(group)
        self._registered(session)

    def _groups(self) -> set[str | None]:
        return {consumer.group for consumer in self.consumers if isinstance(consumer, Consumer)}

    def revive(self) -> None:
        """After a fork, with a new session: tell the brokers of all consumers; each opens when it is used."""
        if self._consumers:
            self.register()
            self._schedule()

    def reattach(self, *, is_new: bool) -> None:
        """After a reconnection: begin anew where the session is new, else make sure that our queues are still ours."""
        consumers = self.consumers
        if is_new:
            with contextlib.suppress(*AWAY):  # what has to be opened anew is, all the same
                self._register_again()
            for consumer in consumers:
                with contextlib.suppress(*AWAY), _alone(consumer):
                    consumer._renew()
            return
        with contextlib.suppress(*AWAY):  # the connection is lost again: its return starts this again
            self._each(consumers, lambda consumer: consumer._retake())
        self.rebalance(None, register=True)

    def _register_again(self) -> None:
        """Register; a broker that refuses it now is asked again with each sharing, and consumers read what they may.

        Raises:
            ConnectError, RequestTimeout, NotMaster: it is away.
        """
        try:
            self.register()
        except ShmqError as error:
            if _is_away(error):
                raise
            LOG.warning("the brokers refuse the groups of this connection, and are asked again: %s", error)

    def _each(self, consumers: Iterable[EachT], call: Callable[[EachT], None]) -> None:
        """Make a call for each consumer; those whose broker was silent the last time come last.

        Raises:
            ConnectError, NotMaster: the connection is lost; while it is there, one of several brokers may be away, or
                not know one group yet.
            RequestTimeout: a broker is silent. The timetable waits no second time in one round.
        """
        for consumer in sorted(consumers, key=self._silent.__contains__):
            try:
                with _alone(consumer):
                    call(consumer)
            except RequestTimeout:
                self._silent.add(consumer)
                raise
            except AWAY:
                if (session := self._current()) is None or not session.wire.alive:
                    raise
            else:
                self._silent.discard(consumer)

    # -- sharing queues
    def rebalance(self, group: str | None, *, register: bool = False) -> None:
        """Let the consumers of a group (None: of all) share their queues anew."""
        concerned = [c for c in self.consumers if isinstance(c, Consumer) and group in (None, c.group)]
        try:
            if register:
                self._register_again()
            self._each(concerned, lambda consumer: consumer._rebalance())
        except AWAY:
            return  # the broker is away: what we read stays ours, and its return starts this again

    def _schedule(self) -> None:
        with self._lock:
            if self._periodic_scheduled or self._closed:
                return
            self._periodic_scheduled = True
        self._timetable.call_after(options.REBALANCE_INTERVAL, self._run_periodic)

    def _run_periodic(self) -> None:
        session = self._current()
        with self._lock:
            self._periodic_scheduled = False
            if not self._consumers or session is None:
                return
        self._schedule()
        if session.wire.alive:
            self.rebalance(None, register=True)


def _is_away(error: ShmqError) -> bool:
    """Whether an error is no refusal of a broker that is there."""
    return isinstance(error, AWAY) and not isinstance(error, PermissionDenied)


@contextlib.contextmanager
def _alone(consumer: Consumer | PullConsumer) -> Iterator[None]:
    """Let a consumer that cannot do something now hold up none of the others; only a broker that is away ends it."""
    try:
        yield
    except TopicNotFound:  # it was deleted; the broker reports it when it is made again
        return
    except ShmqError as error:
        if _is_away(error):
            raise
        LOG.warning(
            'the consumer of topic "%s", group "%s" tries again later: %s', consumer.topic, consumer.group, error
        )


def _check_beside(consumer: Consumer, other: Consumer) -> None:
    """Refuse what one connection cannot do for a group beside what it does already."""
    if other.topic == consumer.topic:
        raise UsageError(
            f'this connection reads topic "{consumer.topic}" for group "{consumer.group}" already',
            hint="use a second connection for a second member of the group, or listener(threads=…)",
        )
    if other._spec.model != consumer._spec.model:
        raise UsageError(
            f'this connection reads for group "{consumer.group}" as {other._spec.model} member already, and not as '
            f"{consumer._spec.model} one, too",
            hint="use the same model for all topics of a group, or choose another group name",
        )
