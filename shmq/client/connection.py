"""The public connection: makes producers, consumers, listeners, typed topics, administration.

`link.py` has the life under it; each thing that is made gets the parts of the session that it needs.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from shmq.client import options
from shmq.client.consumers.consumer import Subscription
from shmq.client.consumers.pull import PullConsumer
from shmq.client.consumers.simple import HiddenBy, SimpleConsumer, check_hidden_by, check_invisible
from shmq.client.edge import edge
from shmq.client.kinds import check_wait, refuse_wrong
from shmq.client.looking import Looking
from shmq.client.place import COMPRESSIONS, find
from shmq.client.position import PositionLike, parse_position
from shmq.client.producers.producer import Producer
from shmq.client.producers.queue_selector import QueueSelector, check_selector
from shmq.client.refusals import AWAY
from shmq.client.requests.replier import replying
from shmq.client.spec import Model, consumer_spec, wanted_of
from shmq.client.timetable import loosely
from shmq.errors import UsageError
from shmq.message import check_consumer_group, check_group, check_topic

if TYPE_CHECKING:
    from shmq.client.administration.admin import Admin
    from shmq.client.administration.interface import Figures
    from shmq.client.consumers.listener import Listeners
    from shmq.client.keywords import Body
    from shmq.client.observers.observer import SpansWanted
    from shmq.client.session import Session
    from shmq.client.topic import Codec, Topic, TypedMessage
    from shmq.client.transactions.transaction import Checkers, TxState
    from shmq.shm.core import Message, Receipt

ListenerT = TypeVar("ListenerT", bound="Callable[[Message], Any] | Callable[[TypedMessage[Any]], Any]")
ReplierT = TypeVar("ReplierT", bound="Callable[[Message], Body | None] | Callable[[TypedMessage[Any]], Body | None]")
CheckerT = TypeVar("CheckerT", bound="Callable[[Message], TxState]")
ValueT = TypeVar("ValueT")
Decode = Callable[[bytes], Any]


@edge
def connect(
    url: str | None = None,
    *,
    timeout: float = options.CONNECT_TIMEOUT,
    trace: bool = False,
    spans: SpansWanted = False,
    name: str | None = None,
) -> Connection:
    """Connect to a broker on this host, or to any RocketMQ cluster.

    Args:
        url: `shmq://NAME` or `shmq:///absolute/runtime/directory` of this host; `rocketmq://HOST:9876,HOST:9876` names
            the name servers of a cluster (options for TLS and keys: docs/reference/remote.md). None takes $SHMQ_URL,
            else the broker "default".
        timeout: seconds to wait for the broker, and the default timeout of every send and every request.
        trace: note every send, and every call of a listener, in RocketMQ's trace topic, in the background.
        spans: make OpenTelemetry spans of sends, receives and calls of listeners (extra `otel`): True for the global
            tracer provider, or a provider.
        name: what operators see at the end of the client id, in every list of consumers and connections: 1 to 64 of
            the characters `a-zA-Z0-9_-%|`. None takes the program's name.

    Raises:
        BrokerNotRunning: no process listens there; `shmq serve` starts one.
        PermissionDenied, VersionMismatch, ForeignNamespace: the broker is there, but not for this process.

    Example:
        >>> with connect() as mq:                                          # doctest: +SKIP
        ...     mq.send("orders", b"42 apples", tag="fruit", key="order-42")
    """
    return Connection(find(url), timeout=timeout, trace=trace, spans=spans, name=name)


class Connection(Looking):
    """Everything a process does with one broker. Made by `shmq.connect()`; any thread may use it."""

    __slots__ = ()

    # -- making things
    @edge
    def producer(
        self,
        *,
        group: str | None = None,
        timeout: float | None = None,
        compression: str | None = None,
        queue_selector: QueueSelector | None = None,
    ) -> Producer:
        """Return a producer with a timeout of its own, and `send_nowait`.

        Args:
            group: the producer group, as RocketMQ shows it.
            timeout: seconds of one send; None takes the connection's.
            compression: "zlib", "lz4", "zstd" or "none" for bodies of more than 4 KiB; None takes the URL's over TCP,
                and packs nothing in shared memory.
            queue_selector: "round_robin", "key", "least_latency", or a function
                (see shmq.client.producers.queue_selector).
        """
        check_selector(queue_selector)
        seconds = check_wait(timeout, self._timeout)
        if compression is not None and compression not in COMPRESSIONS:
            raise UsageError(f"compression={compression!r} does not exist", hint=f"one of {', '.join(COMPRESSIONS)}")
        session = self._live()
        if group is not None:
            check_group(group)
        producer = Producer(
            self._wire,
            self._begin_half,
            self._end_half,
            self._observer,
            self._forget_producer,
            self.url,
            group=group,
            timeout=seconds,
            compression=compression,
            queue_selector=queue_selector,
            keeps=self._holding,
        )
        with self._lock:
            producer._attach(session.sends, session.queues)
            self._producers[id(producer)] = producer
        if group is not None:
            with contextlib.suppress(*AWAY):  # sending needs no control plane
                self._membership.register()
        return producer

    @edge
    def subscribe(
        self,
        topic: str,
        *,
        group: str | None = None,
        tags: str | Sequence[str] | None = None,
        where: str | None = None,
        auto_ack: bool = False,
        model: Model = "clustering",
        start: PositionLike | None = None,
        attempts_max: int | None = None,
        codec: Decode | None = None,
        verify: bool | None = None,
    ) -> Subscription:
        """Return an iterable of messages.

        Args:
            group: members of one group share the queues; needed unless model is "broadcasting".
            tags: "fruit || veg" or a list; None takes all messages.
            where: an SQL92 expression over properties, "region = 'eu' AND qty > 5"; looked at with the tags.
            auto_ack: acknowledge a message when the next one is asked for.
            model: "broadcasting" gives every member every message. With a group a member that starts again goes on
                where it was (shmq.client.consumers.kept_offsets); without one it remembers nothing.
            start: where a group begins that never committed anything on this topic: "first" (default), "last", "-2h",
                a time. A broadcast consumer begins at "last" by default.
            attempts_max: deliveries before a message goes to the dead-letter topic; None takes the group's setting,
                which is one and 16 retries.
            codec: bytes to the message's `value`.
            verify: False leaves the records' checksums out where this process reads the log itself; None takes the
                broker's setting (`--verify-reads`).

        A damaged message is left out; iterating and `receive` raise DamagedMessage for it, once.

        Raises:
            SubscriptionConflict: another member of the group reads the topic with other tags or another expression.
            FilterSyntaxError: the expression is none; the error points at the fault.
            UsageError: no group, or this connection reads the topic for this group already.
        """
        spec = consumer_spec(
            topic,
            group,
            tags,
            model,
            start,
            where=where,
            auto_ack=auto_ack,
            attempts_max=attempts_max,
            codec=codec,
            verify=verify,
        )
        return self._add_consumer(Subscription(self._consumer_context(), spec))

    @edge
    def simple_consumer(
        self,
        topic: str,
        *,
        group: str,
        tags: str | Sequence[str] | None = None,
        where: str | None = None,
        invisible: float = options.INVISIBLE,
        start: PositionLike | None = None,
        attempts_max: int | None = None,
        codec: Decode | None = None,
        hidden_by: HiddenBy = "broker",
        verify: bool | None = None,
    ) -> SimpleConsumer:
        """Return a consumer that takes batches and hides each message for `invisible` seconds.

        Args:
            hidden_by: "process" reads queues without asking the broker; see `SimpleConsumer` for the limits.
            verify: as for `subscribe`; a broker that hides messages checks them itself, by its own setting.
        """
        hidden = check_invisible(invisible)
        spec = consumer_spec(
            topic,
            group,
            tags,
            "clustering",
            start,
            where=where,
            attempts_max=attempts_max,
            codec=codec,
            verify=verify,
            invisible=hidden if check_hidden_by(hidden_by) == "broker" else None,
        )
        return self._add_consumer(SimpleConsumer(self._consumer_context(), spec, invisible=hidden))

    @edge
    def pull_consumer(
        self,
        topic: str,
        *,
        group: str | None = None,
        tags: str | Sequence[str] | None = None,
        where: str | None = None,
        start: PositionLike = "begin",
        codec: Decode | None = None,
        verify: bool | None = None,
    ) -> PullConsumer:
        """Return a consumer that reads every queue from the offsets you set; begins at the group's offsets, if any.

        Args:
            verify: as for `subscribe`.
        """
        check_topic(topic)
        if group is not None:
            check_consumer_group(group)
        position = parse_position(start)
        context, wanted = self._consumer_context(), wanted_of(tags, where)
        pull = PullConsumer(context, topic, group=group, start=position, wanted=wanted, codec=codec, verify=verify)
        pull._live_reader()
        self._membership.add(pull)
        return pull

    @edge
    def topic(self, name: str, type: type[ValueT], *, codec: str | Codec[ValueT] = "json") -> Topic[ValueT]:
        """Return a typed topic: values in, values out.

        Args:
            type: what the bodies hold; anything msgspec can check.
            codec: "json", "msgpack", or an object with encode(value) and decode(body).
        """
        from shmq.client.topic import Topic

        return Topic(self, check_topic(name), type, codec)

    @edge
    def listener(
        self,
        topic: str,
        *,
        group: str,
        tags: str | Sequence[str] | None = None,
        where: str | None = None,
        threads: int = 1,
        ordered: bool = False,
        start: PositionLike | None = None,
        attempts_max: int | None = None,
        codec: Decode | None = None,
        verify: bool | None = None,
    ) -> Callable[[ListenerT], ListenerT]:
        """Decorate a function that is called with each message once `run()` or `start()` was called.

        Returning means consumed; an exception means again later; see `shmq.Retry` and `shmq.Reject`.

        Args:
            threads: how many messages may be handled at once.
            ordered: one message of a queue at a time, the next one after it was consumed.
        """
        from shmq.client.consumers.listener import Listener, Listeners

        spec = consumer_spec(
            topic, group, tags, "clustering", start, where=where, attempts_max=attempts_max, codec=codec, verify=verify
        )

        @edge
        def decorate(function: ListenerT) -> ListenerT:
            with self._lock:
                context = self._consumer_context()
                made = Listener(context, self._add_consumer, spec, function, threads=threads, ordered=ordered)
                if self._listeners is None:
                    self._listeners = Listeners()
                self._listeners.add(made)
            return function

        return decorate

    # -- requests and replies
    @edge
    def request(
        self,
        topic: str,
        body: Body,
        *,
        timeout: float | None = None,
        tag: str | None = None,
        key: str | None = None,
        keys: Iterable[str] | None = None,
        properties: Mapping[str, str] | None = None,
        message_group: str | None = None,
        queue_id: int | None = None,
    ) -> Message:
        """Send a request and return a replier's answer.

        Args:
            timeout: seconds for both ways; None takes the connection's.

        Raises:
            RequestTimeout: no reply in time; the request may have been handled all the same.
            TopicNotFound and the other errors of `send`: nothing was sent.
        """
        arguments = {
            "tag": tag,
            "key": key,
            "keys": keys,
            "properties": properties,
            "message_group": message_group,
            "queue_id": queue_id,
        }
        seconds = check_wait(timeout, self._timeout)
        refuse_wrong({"topic": topic, **arguments})
        ask = self._ask
        if self._observer is None:
            return ask(topic, body, seconds, **arguments)
        with self._observer.asking(topic, body, arguments) as carried:
            return ask(topic, body, seconds, **carried)

    @edge
    def replier(
        self,
        topic: str,
        *,
        group: str,
        tags: str | Sequence[str] | None = None,
        where: str | None = None,
        threads: int = 1,
        attempts_max: int = options.ATTEMPTS_MAX,
        codec: Decode | None = None,
    ) -> Callable[[ReplierT], ReplierT]:
        """Decorate a function that answers requests: what it returns, bytes, is the reply; None is no reply.

        Runs as a listener does, with `run()` or `start()`. An exception means again later, as there, but a request
        whose requester has given up is not handled any more.
        """
        listen = self.listener(
            topic, group=group, tags=tags, where=where, threads=threads, attempts_max=attempts_max, codec=codec
        )

        @edge
        def decorate(function: ReplierT) -> ReplierT:
            reply = functools.partial(_reply, self._live)
            listen(replying(function, reply, lambda: self._live().wire.now_ms(), same_clock=not self.is_remote))
            return function

        return decorate

    @edge
    def transaction_checker(self, group: str) -> Callable[[CheckerT], CheckerT]:
        """Decorate a function that says how a transaction of a producer group ended when its commit got lost.

        It gets the message and returns shmq.COMMIT, shmq.ROLLBACK, or shmq.UNKNOWN to be asked again. It is called on
        a thread of its own, at any time from here on, also for transactions of other members of the group.
        """
        check_group(group)

        @edge
        def decorate(function: CheckerT) -> CheckerT:
            with self._lock:
                if self._checkers is None:
                    self._checkers = self._new_checkers()
                self._checkers.add(group, function)
            with contextlib.suppress(*AWAY):  # said again when the broker is back
                self._membership.register()
            return function

        return decorate

    def _new_checkers(self) -> Checkers:
        from shmq.client.transactions.transaction import Checkers

        return Checkers(None if self._observer is None else self._observer.checked, loosely(self._tell_leader))

    # -- listeners
    def run(self, timeout: float = options.CLOSE_TIMEOUT) -> None:
        """Run the listeners until Ctrl-C, SIGTERM or `stop()`; then drain for `timeout` seconds and return.

        A second Ctrl-C during the drain interrupts it. In another thread than the main one only `stop()` ends it.

        Raises:
            UsageError: there is no listener.
            SystemExit: a listener raised it. Its other errors are logged, and the message comes again.
            ShmqError: what kept a listener from receiving.
        """
        self._need_listeners().run(check_wait(timeout))

    def start(self) -> None:
        """Run the listeners in the background; returns at once."""
        self._need_listeners().start()

    @property
    def admin(self) -> Admin:
        """Topics, groups, offsets, dead letters."""
        from shmq.client.administration.admin import Admin

        def send(*arguments: Any, **named: Any) -> Receipt:
            return self.send(*arguments, **named)  # bound anew after a fork

        return Admin(self._figures(), self.pull_consumer, send, self.url)

    def _figures(self) -> Figures:
        """The figures of the broker or cluster, for administration."""
        if self.is_remote:
            from shmq.client.administration.remote_figures import RemoteFigures

            return RemoteFigures(lambda: self._remote().wire, self._queues, self.broker_name)
        from shmq.client.administration.local_figures import LocalFigures

        return LocalFigures(lambda: self._local().wire, lambda: self._local().queues)

    def _need_listeners(self) -> Listeners:
        if self._listeners is None:
            raise UsageError(
                "there is no listener to run", hint='decorate one: @mq.listener("orders", group="billing")'
            )
        return self._listeners

    def __reduce__(self) -> tuple[object, ...]:
        # Handed to a spawned process it opens anew there, as a forked child does.
        # A provider of its own cannot go with it; the global one of that process gets its spans.
        observer = self._observer
        watched = observer is not None and observer.traces, observer is not None and observer.spans is not None
        return _reconnect, (self.place.secret_url, self._timeout, *watched, self._name)


def _reply(live: Callable[[], Session], message: Message, body: Any) -> bool:
    session = live()
    return session.sends.until_taken(
        lambda _: live().requests.reply(message, body), session.wire.timeout, message.topic
    )


def _reconnect(url: str, timeout: float, trace: bool, spans: bool, name: str | None) -> Connection:
    return connect(url, timeout=timeout, trace=trace, spans=spans, name=name)
