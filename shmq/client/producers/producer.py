"""The public producer: its `send` is the core's own method in shared memory.

    Sender          send · send_oneway · send_batch · reserve, each the bound method of a core producer
      Producer      + a timeout and group of its own, + send_nowait, + a life as a context manager
      Connection    (connection.py)

Invariants:
    1. Between the caller and the C function stands no Python frame: the four names are instance attributes.
    2. After fork, close, or a new generation of segments they are bound anew; a bound method that the caller copied
       before that keeps the old target and reports it as BrokerNotRunning.
    3. An error of the core arrives as a type of shmq.errors.
    4. Keywords the core does not know go to keywords.py; the others never touch it.
"""

from __future__ import annotations

import functools
import itertools
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Self, Unpack

from shmq.client import options
from shmq.client.background import elsewhere
from shmq.client.keywords import DEFAULT_PRODUCER_GROUP, SendArguments, body_of
from shmq.client.kinds import check_wait, refuse_wrong
from shmq.client.producers.queue_selector import QueueSelector, selecting
from shmq.client.wire import MessageSender, Question, Queues, Sends, Wire
from shmq.errors import RemoteError, UsageError
from shmq.protocol.codes import Request, Response
from shmq.shm.pickling import stays_here
from shmq.timing import RecallHandle

if TYPE_CHECKING:
    from concurrent.futures import Future
    from datetime import datetime, timedelta

    from shmq.client.keywords import Body
    from shmq.client.observers.observer import Observer
    from shmq.client.producers.nowait import NowaitQueue
    from shmq.client.transactions.half import BegunHalf
    from shmq.client.transactions.transaction import End, Transaction
    from shmq.shm.core import Receipt, Slot

HOT: Final = ("send", "send_oneway", "send_batch", "reserve")
"""Names that are bound to the core; `tests/client/producers/test_producer.py` asserts that they are."""


class Sender:
    """Something with the four hot methods.

    An instance has the core's own methods under these names, which come before the functions of its class: those are
    what `help()`, editors and documentation look at, and what a call through the class runs.
    """

    __slots__ = ("__dict__",)

    def send(
        self,
        topic: str,
        body: Body,
        *,
        tag: str | None = None,
        key: str | None = None,
        keys: Iterable[str] | None = None,
        properties: Mapping[str, str] | None = None,
        message_group: str | None = None,
        queue_id: int | None = None,
        flag: int = 0,
        timeout: float | None = None,
        delay_level: int | None = None,
        delay: timedelta | float | None = None,
        deliver_at: datetime | str | float | None = None,
    ) -> Receipt:
        """Store one message and return where; it is visible to consumers before this returns.

        Args:
            body: anything with the buffer protocol, at most 4 MiB.
            tag: at most one; consumers filter by it.
            key: what people search for later; `keys` for several.
            properties: free str to str pairs.
            message_group: messages of one group go to one queue, in order.
            queue_id: exactly this queue, instead of the next one.
            flag: a number for the application, stored as it is.
            timeout: seconds, instead of the producer's.
            delay_level: delivered later: RocketMQ's levels 1 (1 s) to 18 (2 h), as the broker configures them.
            delay: delivered after a timedelta, or so many seconds; at most 3 days, unless the broker allows more.
            deliver_at: delivered at a time: a datetime, an ISO 8601 text, or seconds since the epoch.

        Raises:
            TopicNotFound: it does not exist, and the broker does not create topics by itself.
            MessageTooLarge, SegmentFull, BrokerBusy, ReadOnlyStore, SendTimeout: see shmq.errors.
        """
        return _bound("send", locals())  # type: ignore[no-any-return]

    def send_oneway(
        self,
        topic: str,
        body: Body,
        *,
        tag: str | None = None,
        key: str | None = None,
        keys: Iterable[str] | None = None,
        properties: Mapping[str, str] | None = None,
        message_group: str | None = None,
        queue_id: int | None = None,
        flag: int = 0,
        timeout: float | None = None,
        delay_level: int | None = None,
        delay: timedelta | float | None = None,
        deliver_at: datetime | str | float | None = None,
    ) -> None:
        """Store one message as `send` does, without a receipt and without waiting for durability."""
        _bound("send_oneway", locals())

    def send_batch(
        self,
        topic: str,
        bodies: Sequence[Body],
        *,
        tag: str | None = None,
        keys: Sequence[str | None] | None = None,
        properties: Mapping[str, str] | None = None,
        message_group: str | None = None,
        queue_id: int | None = None,
        timeout: float | None = None,
    ) -> list[Receipt]:
        """Store all bodies into one queue, in order; `keys`, when given, holds one key for each body.

        Up to 4 MiB, or what one log file holds, are stored as a whole or not at all (over TCP up to 512 messages). More
        goes in parts of that size: an error of a later one says in its `receipts` what is stored.
        """
        return _bound("send_batch", locals())  # type: ignore[no-any-return]

    def reserve(
        self,
        topic: str,
        size: int,
        *,
        tag: str | None = None,
        key: str | None = None,
        properties: Mapping[str, str] | None = None,
        message_group: str | None = None,
        queue_id: int | None = None,
        timeout: float | None = None,
    ) -> Slot:
        """Return room for a body of up to `size` bytes inside the log: `with mq.reserve(…) as slot:`."""
        return _bound("reserve", locals())  # type: ignore[no-any-return]

    def recall(self, receipt: Receipt | str) -> None:
        """Take back a message that was sent with `delay=` or `deliver_at=`, before it is due; it is never delivered.

        Args:
            receipt: what `send` returned, or its `recall_handle`.

        Raises:
            UsageError: it is neither, it has no handle, or it is due already.
        """
        if not hasattr(receipt, "recall_handle") and not isinstance(receipt, str):
            raise UsageError(f"{receipt!r:.80} is no receipt", hint="recall(mq.send(topic, body, delay=60))")
        handle = receipt if isinstance(receipt, str) else receipt.recall_handle
        if handle is None:
            raise UsageError(
                "this message cannot be taken back", hint="only one sent with delay= or deliver_at= has a recall_handle"
            )
        self._recall(handle)

    def _recall(self, handle: str) -> None:
        recall(self._wire(), handle, DEFAULT_PRODUCER_GROUP)

    if TYPE_CHECKING:
        _wire: Callable[[], Wire]  # the wire of the connection, opened if need be

    def _bind(self, core: MessageSender) -> None:
        """Let the hot names be the core's bound methods."""
        for name in HOT:
            vars(self)[_key(type(self), name)] = getattr(core, name)

    def _bind_to(self, prepare: Callable[[], None]) -> None:
        """Let the hot names call `prepare` first, which binds them anew or raises."""
        for name in HOT:
            vars(self)[_key(type(self), name)] = functools.partial(self._call_after, prepare, name)

    def _call_after(self, prepare: Callable[[], None], name: str, /, *positional: Any, **named: Any) -> Any:
        prepare()
        return vars(self)[_key(type(self), name)](*positional, **named)


class Producer(Sender):
    """Sends with a timeout and a group of its own. Made by `Connection.producer()`; any thread may use it.

    Example:
        >>> with mq.producer(group="shop", timeout=2.0) as p:      # doctest: +SKIP
        ...     future = p.send_nowait("orders", b"42 apples")
        ...     print(future.result().offset)
    """

    __reduce_ex__ = stays_here("hand over the connection, and make a producer of its own there")
    __slots__ = (
        "__weakref__",
        "_begin_half",
        "_closed",
        "_compression",
        "_end_half",
        "_keeps",
        "_nowait",
        "_observer",
        "_on_close",
        "_selector",
        "_starting",
        "_timeout",
        "_url",
        "_wire",
        "group",
    )

    def __init__(
        self,
        wire: Callable[[], Wire],
        begin_half: Callable[..., BegunHalf],
        end_half: End,
        observer: Observer | None,
        on_close: Callable[[Producer], None],
        url: str,
        *,
        group: str | None,
        timeout: float,
        compression: str | None = None,
        queue_selector: QueueSelector | None = None,
        keeps: object = None,
    ) -> None:
        """
        Args:
            keeps: what lives as long as the producer, or one of its methods.
        """
        self._compression = compression
        self._keeps = keeps
        self._selector = queue_selector
        self._wire = wire
        self._begin_half = begin_half
        self._end_half = end_half
        self._observer = observer
        self._on_close = on_close
        self._url = url
        self._timeout = timeout
        self._starting = threading.RLock()  # a handler of a signal may send while its thread does
        self._closed = False
        self._nowait: NowaitQueue | None = None
        self.group = group

    def send_nowait(self, topic: str, body: Body, **arguments: Unpack[SendArguments]) -> Future[Receipt]:
        """Hand a message to this producer's own thread and return a future of its receipt.

        Takes the arguments of `send`. Messages handed over are stored in order. The body is copied unless it is bytes.

        Raises:
            FlowControl: 10,000 sends have been waiting for the whole timeout.
        """
        if self._closed:
            self._refuse()
        if not isinstance(body, (bytes, str)):  # a str is refused by the core, with a hint
            body = bytes(body_of(body))
        queue = self._nowait
        if queue is None:
            queue = self._start_nowait()
        send: Callable[[], Receipt] = functools.partial(self._send_queued, topic, body, {**arguments})
        return queue.submit(send if self._observer is None else self._observer.bound(send), self._timeout)

    def transaction(
        self,
        topic: str,
        body: Body,
        *,
        tag: str | None = None,
        key: str | None = None,
        keys: Iterable[str] | None = None,
        properties: Mapping[str, str] | None = None,
        message_group: str | None = None,
        queue_id: int | None = None,
        flag: int = 0,
        timeout: float | None = None,
        check_after: float | None = None,
    ) -> Transaction:
        """Store one message that stays hidden until its transaction is committed.

        Leaving the `with` block normally commits, an exception rolls back; `commit()` and `rollback()` do it at once.
        If this process dies in between, a member of the producer group is asked: see `transaction_checker`.

        Args:
            check_after: seconds until the broker asks for the first time; None takes the broker's, 6 s.

        Raises:
            UsageError: the producer has no group whose members could be asked.
            The errors of `send`: nothing was stored.
        """
        from shmq.client.transactions.transaction import Transaction

        if self._closed:
            self._refuse()
        if self.group is None:
            raise UsageError("a transaction needs a producer group to ask", hint='mq.producer(group="shop")')
        refuse_wrong({"topic": topic, "flag": flag, "timeout": timeout})
        seconds = check_wait(timeout, self._timeout)
        arguments: dict[str, Any] = {"flag": flag} if flag else {}
        is_plain = tag is None and key is None and keys is None and properties is None and message_group is None
        if not (is_plain and queue_id is None and check_after is None):
            words = ("tag", "key", "keys", "properties", "message_group", "queue_id", "check_after")
            values = (tag, key, keys, properties, message_group, queue_id, check_after)
            arguments |= zip(words, values, strict=True)
            refuse_wrong(arguments)
        trace = None
        if self._observer is None:
            half = self._begin_half(self.group, topic, body, seconds, **arguments)
        else:
            half, trace = self._observer.begin(self._begin_half, self.group, topic, body, seconds, arguments)
        return Transaction(half, seconds, self._end_half, None if trace is None else trace.ended)

    def close(self, timeout: float = options.CLOSE_TIMEOUT) -> None:
        """Store what `send_nowait` still holds, for at most `timeout` seconds; then refuse sends. Twice is harmless."""
        timeout = check_wait(timeout)
        if self._closed:
            return
        self._closed = True
        if self._nowait is not None:
            self._nowait.drain(timeout)
        self._bind_to(self._refuse)
        self._on_close(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<shmq.Producer of {self._url} group={self.group!r}{' closed' if self._closed else ''}>"

    def _recall(self, handle: str) -> None:
        recall(self._wire(), handle, self.group or DEFAULT_PRODUCER_GROUP)

    def _send_queued(self, topic: str, body: Any, arguments: dict[str, Any]) -> Receipt:
        # Looked up when its turn comes, so that a producer that was bound anew in between is used.
        return self.send(topic, body, **arguments)

    def _start_nowait(self) -> NowaitQueue:
        from shmq.client.producers.nowait import NowaitQueue

        with self._starting:
            if self._nowait is None:
                self._nowait = NowaitQueue(options.SEND_NOWAIT_MAX)
                # What waits holds the producer, so its thread has nothing left to do when that is dropped.
                weakref.finalize(self, elsewhere, self._nowait.drain, 0.0).atexit = False
            return self._nowait

    def _attach(self, sends: Sends, queues: Queues) -> None:
        if not self._closed:
            sender = watched_sender(
                sends, self._observer, self._timeout, self.group, self._compression, keeps=self._keeps
            )
            self._bind(selecting(self._selector, queues, sends, sender))

    def _detach(self, prepare: Callable[[], None]) -> None:
        """In a forked child: call `prepare` at the first use."""
        self._nowait = None  # its thread and its futures are the parent's
        self._starting = threading.RLock()
        if not self._closed:
            self._bind_to(prepare)

    def _refuse(self) -> None:
        raise UsageError("the producer is closed", hint="send before leaving its `with` block")


def _bound(name: str, given: dict[str, Any]) -> Any:
    """Call what an instance has under a hot name with the arguments of the function of its class, in their order."""
    sender, topic, content, *_ = given.values()
    return vars(sender)[_key(type(sender), name)](topic, content, **dict(itertools.islice(given.items(), 3, None)))


def _key(kind: type[Sender], name: str) -> str:
    """The name of the core's method in an instance: another one where a derived class has a method of its own."""
    return name if getattr(kind, name) is vars(Sender)[name] else f"_{name}"


def watched_sender(
    sends: Sends,
    observer: Observer | None,
    timeout: float,
    group: str | None = None,
    compression: str | None = None,
    *,
    keeps: object,
) -> MessageSender:
    """Return a new sender, wrapped by the connection's observer if there is one."""
    sender = sends.sender(timeout, group=group, compression=compression, keeps=keeps)
    return sender if observer is None else observer.sender(sender, group, sends.host_of)


def recall(wire: Wire, handle: str, group: str) -> None:
    """Take a timed message back at the broker that holds it, which its handle names.

    Raises:
        UsageError: it is due already, or the handle is of another broker or cluster.
        RemoteError: the broker does not do that; RocketMQ needs recallMessageEnable=true.
    """
    meant = RecallHandle.decode(handle)
    fields = {"producerGroup": group, "topic": meant.topic, "recallHandle": handle, "bname": meant.broker_name}
    try:
        wire.request(Question(meant.broker_name, Request.RECALL_MESSAGE, fields))
    except RemoteError as error:
        if error.code != Response.ILLEGAL_OPERATION:
            raise
        refused = UsageError(
            error.remark, hint="a message can be taken back until it is due, at the broker that has it"
        )
        refused.code = error.code
        raise refused from error
