"""The API of PyPI's `rocketmq` 0.4.4 and `rocketmq-client-python` 2.0.0 over shmq: old programs change one line.

    from rocketmq.client import Producer, PushConsumer, Message, ConsumeStatus      before
    from shmq.compat.rocketmq import Producer, PushConsumer, Message, ConsumeStatus  after

A name server address gives TCP, `shmq://NAME` this host's shared memory. Both spellings of renamed methods exist.
Settings that only tune the C++ library (compress level, log files, ...) are taken and ignored.

Rules:
    (1) a status the old packages returned is returned; what they raised as their own exceptions are shmq's errors;
    (2) a callback that raises, or returns RECONSUME_LATER, sees the message again, as there.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from enum import IntEnum
from typing import Any, Self

import shmq
from shmq.compat.message import (
    ConsumeStatus,
    Message,
    MessageModel,
    RecvMessage,
    SendResult,
    SendStatus,
    text_of,
)
from shmq.errors import ConnectError, SendTimeout, ShmqError, UsageError
from shmq.functions import check_function, finished

DEFAULT_ADDRESS = "127.0.0.1:9876"
_SECONDS_PER_MS = 1e-3
_CLOSE_TIMEOUT = 5.0

ReceivedMessage = RecvMessage


Callback = Callable[[RecvMessage], ConsumeStatus | bool | None]


class _Client:
    """The shared part of producers and consumers of the old packages: settings before `start()`."""

    def __init__(self, group_id: str) -> None:
        self.group_id = text_of(group_id)
        self._address = DEFAULT_ADDRESS
        self._options: dict[str, str] = {}
        self._timeout: float | None = None
        self._connection: shmq.Connection | None = None

    def set_name_server_address(self, addr: str) -> None:
        """Set `host:port;host:port`, or any URL that shmq.connect() takes."""
        self._address = text_of(addr)

    set_namesrv_addr = set_name_server_address

    def set_session_credentials(self, access_key: str, access_secret: str, channel: str = "") -> None:
        """Sign requests with these keys."""
        del channel
        self._options |= {"access_key": text_of(access_key), "secret_key": text_of(access_secret)}

    def set_group(self, group_id: str) -> None:
        """Set the group."""
        self.group_id = text_of(group_id)

    set_group_id = set_group

    def set_timeout(self, timeout: int) -> None:
        """Set the timeout of a send, in milliseconds."""
        self._timeout = timeout * _SECONDS_PER_MS

    def set_name_server_domain(self, domain: str) -> None:
        """Not supported: addresses are given, not looked up over HTTP."""
        raise UsageError(f"{domain!r} is a domain", hint="set_name_server_address('host:9876')")

    set_namesrv_domain = set_name_server_domain

    def _ignored(self, *settings: object, **named: object) -> None:
        """Taken, and without effect here."""

    set_instance_name = set_log = set_compress_level = set_max_message_size = _ignored
    set_log_file_num_and_size = set_log_level = set_log_path = set_message_batch_max_size = _ignored

    def url(self) -> str:
        """The URL that `start()` connects to."""
        if "://" in self._address:
            return self._address
        from urllib.parse import urlencode

        query = f"?{urlencode(self._options)}" if self._options else ""
        return f"rocketmq://{self._address.replace(';', ',')}{query}"

    def _start(self) -> shmq.Connection:
        if self._connection is None:
            timeout: dict[str, Any] = {} if self._timeout is None else {"timeout": self._timeout}
            self._connection = shmq.connect(self.url(), **timeout)
        return self._connection

    def _live(self) -> shmq.Connection:
        if self._connection is None:
            raise UsageError(f"{type(self).__name__} was not started", hint="call start() first")
        return self._connection

    def start(self) -> None:
        """Connect."""
        self._start()

    def shutdown(self) -> None:
        """Drain and leave."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.shutdown()


class Producer(_Client):
    """Sends messages."""

    def __init__(self, group_id: str, orderly: bool = False, **settings: object) -> None:
        super().__init__(group_id)
        del orderly, settings
        self._producer: shmq.Producer | None = None

    def start(self) -> None:
        """Connect."""
        self._producer = self._start().producer(group=self.group_id)

    def send_sync(self, msg: Message) -> SendResult:
        """Store a message and return where."""
        return self._send(msg)

    def send_oneway(self, msg: Message) -> None:
        """Send a message without an answer."""
        self._live()
        assert self._producer is not None
        self._producer.send_oneway(msg.topic, msg.body, **msg.arguments())

    def send_async(
        self,
        msg: Message,
        success_callback: Callable[[SendResult], None],
        exception_callback: Callable[[Exception], None],
    ) -> None:
        """Send in the background and call one of the two."""
        self._live()
        assert self._producer is not None
        future = self._producer.send_nowait(msg.topic, msg.body, **msg.arguments())

        def done(finished: Any) -> None:
            error = finished.exception()
            if error is None:
                success_callback(_result(finished.result()))
            else:
                exception_callback(error)

        future.add_done_callback(done)

    def send_orderly_with_sharding_key(self, msg: Message, sharding_key: str) -> SendResult:
        """Store a message in the queue of its key."""
        return self._send(msg, message_group=text_of(sharding_key))

    def send_orderly(
        self,
        msg: Message,
        arg: Any,
        retry_times: int = 3,
        queue_select_callback: Callable[[int, Message, Any], int] | None = None,
    ) -> SendResult:
        """Store a message in the queue that `queue_select_callback(queue count, msg, arg)` says, or that of `arg`."""
        del retry_times
        connection = self._live()
        if queue_select_callback is None:
            return self._send(msg, message_group=str(arg))
        info = connection.admin.topics.get(msg.topic)
        queues = max(1, info.write_queues) if info is not None else 1
        return self._send(msg, queue_id=queue_select_callback(queues, msg, arg))

    def send_batch(self, msgs: Sequence[Message]) -> SendResult:
        """Store messages of one topic in one queue, each with its own tag, keys and properties."""
        if not msgs or len({msg.topic for msg in msgs}) != 1:
            raise UsageError("a batch holds messages of one topic", hint="send them one by one")
        if any(msg.delay_time_level for msg in msgs):
            raise UsageError("messages of a batch are not delayed, as in RocketMQ", hint="send them one by one")
        self._live()
        assert self._producer is not None
        topic, given = msgs[0].topic, [msg.arguments() for msg in msgs]
        keys: list[Sequence[str] | None] = [each.pop("keys") for each in given]
        if all(each == given[0] for each in given) and all(len(several or ()) < 2 for several in keys):
            one_each = [several[0] if several else None for several in keys]
            return _result(self._producer.send_batch(topic, [msg.body for msg in msgs], keys=one_each, **given[0])[0])
        first: shmq.Receipt | None = None
        for msg, several, own in zip(msgs, keys, given, strict=True):
            queue_id = None if first is None else first.queue_id
            receipt = self._producer.send(topic, msg.body, keys=several, queue_id=queue_id, **own)
            first = first or receipt
        assert first is not None
        return _result(first)

    def _send(self, msg: Message, **place: Any) -> SendResult:
        self._live()
        assert self._producer is not None
        try:
            return _result(self._producer.send(msg.topic, msg.body, **msg.arguments(), **place))
        except SendTimeout as error:
            status = SendStatus.FLUSH_SLAVE_TIMEOUT if error.code == 12 else SendStatus.FLUSH_DISK_TIMEOUT
            return SendResult(status, "", -1)


class TransactionStatus(IntEnum):
    """The end of a transaction."""

    COMMIT = 0
    ROLLBACK = 1
    UNKNOWN = 2


_STATES = {
    TransactionStatus.COMMIT: shmq.COMMIT,
    TransactionStatus.ROLLBACK: shmq.ROLLBACK,
    TransactionStatus.UNKNOWN: shmq.UNKNOWN,
}


class TransactionMQProducer(Producer):
    """Sends messages that are seen once their local transaction is committed."""

    def __init__(
        self,
        group_id: str,
        checker_callback: Callable[[RecvMessage], TransactionStatus],
        user_args: Any = None,
        **settings: Any,
    ) -> None:
        super().__init__(group_id, **settings)
        del user_args
        check_function(checker_callback)
        self._checker = checker_callback

    def start(self) -> None:
        """Connect, and answer the broker's questions with the checker."""
        super().start()
        self._live().transaction_checker(self.group_id)(
            lambda message: _STATES[TransactionStatus(finished(self._checker(RecvMessage(message))))]
        )

    def send_message_in_transaction(
        self, message: Message, local_execute: Callable[[Message, Any], TransactionStatus], user_args: Any = None
    ) -> SendResult:
        """Store a message, let `local_execute(message, user_args)` say how its transaction ended, and end it."""
        self._live()
        assert self._producer is not None
        arguments = message.arguments()
        arguments.pop("delay_level", None)  # as there: a transaction is not delayed
        tx = self._producer.transaction(message.topic, message.body, **arguments)
        status = TransactionStatus(finished(local_execute(message, user_args)))
        if status is TransactionStatus.COMMIT:
            tx.commit()
        elif status is TransactionStatus.ROLLBACK:
            tx.rollback()
        return SendResult(SendStatus.OK, tx.id, 0)


class PushConsumer(_Client):
    """Calls back for each message."""

    def __init__(
        self, group_id: str, orderly: bool = False, message_model: MessageModel = MessageModel.CLUSTERING
    ) -> None:
        super().__init__(group_id)
        self._orderly = orderly
        self._model = MessageModel(message_model)
        self._threads = 1
        self._subscriptions: list[tuple[str, Callback, str]] = []
        self._broadcasts: list[shmq.Subscription] = []
        self._workers: list[threading.Thread] = []

    def set_thread_count(self, thread_count: int) -> None:
        """Set how many callbacks may run at once."""
        self._threads = thread_count

    def set_message_model(self, message_model: MessageModel) -> None:
        """Choose the receivers of a message."""
        self._model = MessageModel(message_model)

    def subscribe(self, topic: str, callback: Callback, expression: str = "*") -> None:
        """Call back for the messages of a topic; before `start()`."""
        check_function(callback)
        self._subscriptions.append((text_of(topic), callback, text_of(expression)))

    def start(self) -> None:
        """Connect, and begin to call back; where that is refused, nothing stays open."""
        try:
            self._begin()
        except ShmqError:
            self.shutdown()
            raise

    def _begin(self) -> None:
        connection = self._start()
        for topic, callback, expression in self._subscriptions:
            tags = None if expression in ("", "*") else expression
            if self._model is MessageModel.CLUSTERING:
                decorate = connection.listener(
                    topic, group=self.group_id, tags=tags, threads=self._threads, ordered=self._orderly
                )
                decorate(_listener(callback))
                continue
            subscription = connection.subscribe(topic, group=self.group_id, tags=tags, model="broadcasting")
            self._broadcasts.append(subscription)
            worker = threading.Thread(target=_broadcast, args=(subscription, callback), name="shmq-compat", daemon=True)
            try:
                worker.start()
            except RuntimeError as error:
                raise ConnectError(f"a callback needs a thread of its own, and none can be started: {error}") from error
            self._workers.append(worker)
        if self._model is MessageModel.CLUSTERING and self._subscriptions:
            connection.start()

    def shutdown(self) -> None:
        """Drain and leave."""
        for subscription in self._broadcasts:
            subscription.close()
        for worker in self._workers:
            worker.join(_CLOSE_TIMEOUT)
        self._broadcasts.clear()
        self._workers.clear()
        super().shutdown()


class PullConsumer(_Client):
    """Reads when asked."""

    def pull(self, topic: str, expression: str = "*", max_num: int = 32) -> Iterator[RecvMessage]:
        """Yield what the topic holds behind the group's offsets, then return; offsets follow what was yielded."""
        tags = None if expression in ("", "*") else expression
        with self._live().pull_consumer(text_of(topic), group=self.group_id, tags=tags) as consumer:
            while messages := consumer.poll(max_num):
                for message in messages:
                    yield RecvMessage(message)
                consumer.commit()


def _listener(callback: Callback) -> Callable[[shmq.Message], object]:
    def call(message: shmq.Message) -> object:
        outcome = finished(callback(RecvMessage(message)))
        return shmq.Action.RECONSUME_LATER if outcome is not None and _is_later(outcome) else None

    return call


def _is_later(outcome: ConsumeStatus | bool) -> bool:
    """0.4.4 takes False for "again" as well."""
    return outcome is False or (
        not isinstance(outcome, bool) and ConsumeStatus(outcome) is ConsumeStatus.RECONSUME_LATER
    )


def _broadcast(subscription: shmq.Subscription, callback: Callback) -> None:
    import logging

    for message in subscription:
        try:
            finished(callback(RecvMessage(message)))
        except BaseException:  # this thread has other messages to hand out
            logging.getLogger("shmq").exception("a callback failed for a broadcast message, which is not repeated")
        message.ack()


def _result(receipt: shmq.Receipt) -> SendResult:
    return SendResult(SendStatus.OK, receipt.message_id, receipt.offset)


__all__ = [
    "ConsumeStatus",
    "Message",
    "MessageModel",
    "Producer",
    "PullConsumer",
    "PushConsumer",
    "ReceivedMessage",
    "RecvMessage",
    "SendResult",
    "SendStatus",
    "TransactionMQProducer",
    "TransactionStatus",
]
