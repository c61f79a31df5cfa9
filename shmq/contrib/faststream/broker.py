"""The broker of FastStream over shmq: one connection that sends, and one for each subscriber.

Life: `connect()` opens the connection that sends, `start()` the subscribers too, `stop()` ends both, handlers first.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from fast_depends import dependency_provider
from faststream._internal.broker import BrokerUsecase
from faststream._internal.broker.router import BrokerRouter
from faststream._internal.configs import BrokerConfig
from faststream._internal.constants import EMPTY
from faststream._internal.context import ContextRepo
from faststream._internal.di import FastDependsConfig
from faststream._internal.logger import DefaultLoggerStorage, make_logger_state
from faststream._internal.logger.logging import get_broker_logger
from faststream.message import gen_cor_id
from faststream.middlewares import AckPolicy
from faststream.response.publish_type import PublishType
from faststream.specification.schema import BrokerSpec

import shmq.aio
from shmq.contrib.faststream.message import Delivery, ShmqMessage
from shmq.contrib.faststream.producer import REQUEST_TIMEOUT, ShmqProducer, ShmqPublishCommand
from shmq.contrib.faststream.registrar import CONNECT, ShmqRegistrar
from shmq.errors import ShmqError

if TYPE_CHECKING:
    import shmq

CLOSE_SECONDS = 15.0


class ShmqBroker(ShmqRegistrar, BrokerUsecase[Delivery, shmq.aio.Connection, BrokerConfig]):
    """shmq as a broker of FastStream.

    Args:
        url: which broker, as for `shmq.connect`: None for the one of this host, `rocketmq://HOST:9876` for others.
        name: what operators see of this program.
        trace, spans: as for `shmq.connect`.
        graceful_timeout: seconds that running handlers get when the broker stops.
        ack_policy: what an exception of a handler means, for subscribers that do not say.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        name: str | None = None,
        trace: bool = False,
        spans: Any = False,
        graceful_timeout: float | None = CLOSE_SECONDS,
        ack_policy: AckPolicy = EMPTY,
        parser: Any = None,
        decoder: Any = None,
        codec: Any = None,
        dependencies: Sequence[Any] = (),
        middlewares: Sequence[Any] = (),
        routers: Iterable[ShmqRegistrar] = (),
        apply_types: bool = True,
        serializer: Any = EMPTY,
        context: ContextRepo | None = None,
        logger: Any = EMPTY,
        log_level: int = logging.INFO,
        description: str | None = None,
        tags: Iterable[Any] = (),
    ) -> None:
        self._url = url
        self._made_with: dict[str, Any] = {"name": name, "trace": trace, "spans": spans}
        depends = FastDependsConfig(
            use_fastdepends=apply_types,
            serializer=serializer,
            provider=dependency_provider,
            context=context or ContextRepo(),
        )
        config = BrokerConfig(
            producer=ShmqProducer(parser, decoder),
            broker_middlewares=middlewares,
            broker_parser=parser,
            broker_decoder=decoder,
            broker_codec=codec,
            broker_dependencies=dependencies,
            logger=make_logger_state(logger=logger, log_level=log_level, default_storage_cls=_LoggerStorage),
            fd_config=depends,
            graceful_timeout=graceful_timeout,
            ack_policy=ack_policy,
            extra_context={"broker": self, CONNECT: self._new_connection},
        )
        specification = BrokerSpec(
            url=[url or "shmq://"],
            protocol="rocketmq",
            protocol_version=None,
            description=description,
            tags=tags,
            security=None,
        )
        super().__init__(config=config, specification=specification, routers=routers)

    def _new_connection(self) -> shmq.aio.Connection:
        return shmq.aio.connect(self._url, **self._made_with)

    # -- life
    async def _connect(self) -> shmq.aio.Connection:
        mq = await self._new_connection()
        producer = self.config.producer
        if isinstance(producer, ShmqProducer):
            producer.connect(lambda: mq, self.config.fd_config._serializer, self.config.broker_codec)
        return mq

    async def start(self) -> None:
        """Connect, and start the subscribers."""
        await self.connect()
        await super().start()

    async def stop(
        self,
        exc_type: type[BaseException] | None = None,
        exc_val: BaseException | None = None,
        exc_tb: TracebackType | None = None,
    ) -> None:
        """Stop the subscribers, let their handlers end, and leave. Twice is harmless."""
        try:
            await super().stop(exc_type, exc_val, exc_tb)
        finally:
            mq, self._connection = self._connection, None
            producer = self.config.producer
            if isinstance(producer, ShmqProducer):
                producer.disconnect()
            if mq is not None:
                await mq.close()

    async def ping(self, timeout: float | None = None) -> bool:
        """Whether the broker is there; a new connection asks, because ours may only wait for its return."""
        asked = shmq.aio.connect(self._url) if timeout is None else shmq.aio.connect(self._url, timeout=timeout)
        try:
            async with asked:
                return True
        except ShmqError:
            return False

    # -- sending
    async def publish(
        self,
        message: Any,
        topic: str,
        *,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        reply_to: str = "",
        **options: Any,
    ) -> shmq.Receipt:
        """Store one message and return where.

        Args:
            headers: properties of the message; what is no text becomes text.
            reply_to: the topic that gets what the handler returns.
            options: tag, key, keys, message_group, delay, delay_level, deliver_at, as of `shmq.Connection.send`.
        """
        cmd = ShmqPublishCommand(
            message,
            topic=topic,
            headers=headers,
            correlation_id=correlation_id or gen_cor_id(),
            reply_to=reply_to,
            options=options,
        )
        receipt: shmq.Receipt = await self._basic_publish(cmd, producer=self.config.producer)
        return receipt

    async def publish_batch(  # type: ignore[override]
        self,
        *messages: Any,
        topic: str,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        **options: Any,
    ) -> list[shmq.Receipt]:
        """Store messages into one queue, in order, with the same headers, and return where."""
        if not messages:
            return []
        cmd = ShmqPublishCommand(
            *messages,
            topic=topic,
            headers=headers,
            correlation_id=correlation_id or gen_cor_id(),
            options=options,
        )
        receipts: list[shmq.Receipt] = await self._basic_publish_batch(cmd, producer=self.config.producer)
        return receipts

    async def request(  # type: ignore[override]
        self,
        message: Any,
        topic: str,
        *,
        timeout: float = REQUEST_TIMEOUT,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        **options: Any,
    ) -> ShmqMessage:
        """Send a request and return what a handler returned, as a message: `await reply.decode()`.

        Raises:
            RequestTimeout: no answer within `timeout` seconds.
        """
        cmd = ShmqPublishCommand(
            message,
            topic=topic,
            timeout=timeout,
            headers=headers,
            correlation_id=correlation_id or gen_cor_id(),
            options=options,
            _publish_type=PublishType.REQUEST,
        )
        reply: ShmqMessage = await self._basic_request(cmd, producer=self.config.producer)
        return reply


class ShmqRouter(ShmqRegistrar, BrokerRouter[Delivery, BrokerConfig]):
    """Handlers that a broker includes, with a prefix of their topics if need be."""

    def __init__(
        self,
        prefix: str = "",
        *,
        dependencies: Sequence[Any] = (),
        middlewares: Sequence[Any] = (),
        routers: Iterable[ShmqRegistrar] = (),
        include_in_schema: bool | None = None,
        ack_policy: AckPolicy = EMPTY,
    ) -> None:
        config = BrokerConfig(
            prefix=prefix,
            include_in_schema=include_in_schema,
            broker_middlewares=middlewares,
            broker_dependencies=dependencies,
            ack_policy=ack_policy,
        )
        super().__init__(config=config, handlers=(), routers=routers)


class _LoggerStorage(DefaultLoggerStorage):
    """Makes the logger of a broker, with topic and group of each message."""

    def get_logger(self, *, context: ContextRepo) -> Any:
        if logger := self._get_logger_ref():
            return logger
        logger = get_broker_logger(
            name="shmq",
            default_context={"topic": "", "group": ""},
            message_id_ln=10,
            fmt="%(asctime)s %(levelname)-8s - %(topic)s | %(group)s | %(message_id)-10s - %(message)s",
            context=context,
            log_level=self.logger_log_level,
        )
        self._logger_ref.add(logger)
        return logger

    def register_subscriber(self, params: dict[str, Any]) -> None:
        """Take no widths: names of topics differ too much for columns."""

    def set_level(self, level: int) -> None:
        """Log from this level on."""
        self.logger_log_level = level
