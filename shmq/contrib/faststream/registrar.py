"""The decorators of brokers and routers: what is declared becomes a subscriber or a publisher."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from faststream._internal.broker.registrator import Registrator
from faststream._internal.configs import BrokerConfig
from faststream._internal.constants import EMPTY
from faststream._internal.endpoint.subscriber.call_item import CallsCollection
from faststream.message import decode_message
from faststream.middlewares import AckPolicy

import shmq.aio
from shmq.contrib.faststream.message import Delivery
from shmq.contrib.faststream.producer import check_options, parse_message
from shmq.contrib.faststream.publisher import PublisherConfig, PublisherPage, PublisherPageConfig, ShmqPublisher
from shmq.contrib.faststream.subscriber import (
    ShmqSubscriber,
    SubscriberConfig,
    SubscriberPage,
    SubscriberPageConfig,
    listening_options,
)
from shmq.errors import UsageError

if TYPE_CHECKING:
    from fast_depends.dependencies import Dependant


class ShmqRegistrar(Registrator[Delivery, BrokerConfig]):
    """Declarations of handlers and publishers, for a broker and a router."""

    def subscriber(  # type: ignore[override]
        self,
        topic: str,
        *,
        group: str,
        tags: str | Sequence[str] | None = None,
        where: str | None = None,
        max_workers: int = 1,
        ordered: bool = False,
        attempts_max: int | None = None,
        ack_policy: AckPolicy = EMPTY,
        no_reply: bool = False,
        dependencies: Sequence[Dependant] = (),
        parser: Any = None,
        decoder: Any = None,
        codec: Any = None,
        title: str | None = None,
        description: str | None = None,
        include_in_schema: bool = True,
        persistent: bool = True,
    ) -> ShmqSubscriber:
        """Decorate a handler of the messages of a topic; members of one group share them.

        Args:
            tags, where: only messages with one of these tags, or that this SQL92 expression selects.
            max_workers: how many handlers may run at once.
            ordered: one handler at a time for each queue; requests are not answered.
            attempts_max: the delivery after which a failed message becomes a dead letter.
            ack_policy: what an exception means; `AckPolicy.NACK_ON_ERROR`, again later, unless the broker says other.
            no_reply: handlers send no replies.
        """
        config = SubscriberConfig(
            topic=topic,
            group=group,
            max_workers=max_workers,
            ordered=ordered,
            listening=listening_options(tags, where, attempts_max),
            no_reply=no_reply,
            _ack_policy=ack_policy,
            _outer_config=self.config,  # type: ignore[arg-type]
        )
        config.parser = parse_message
        config.decoder = _decode
        calls = CallsCollection[Delivery]()
        page = SubscriberPageConfig(
            topic=topic, title_=title, description_=description, include_in_schema=include_in_schema
        )
        specification = SubscriberPage(self.config, page, calls)  # type: ignore[arg-type]
        made = ShmqSubscriber(config, specification, calls, self._connection_of_a_member)
        super().subscriber(made, persistent=persistent)
        return made.add_call(parser_=parser, decoder_=decoder, dependencies_=dependencies, codec_=codec)

    def publisher(  # type: ignore[override]
        self,
        topic: str,
        *,
        headers: dict[str, Any] | None = None,
        reply_to: str = "",
        title: str | None = None,
        description: str | None = None,
        schema: Any = None,
        include_in_schema: bool = True,
        persistent: bool = True,
        **options: Any,
    ) -> ShmqPublisher:
        """Decorate a handler whose results go to a topic; `publish()` sends by itself.

        Args:
            options: of every message, as of `publish`: tag, key, keys, message_group, delay, delay_level, deliver_at.
        """
        config = PublisherConfig(
            topic=topic,
            headers=headers or {},
            reply_to=reply_to,
            options=check_options(options),
            _outer_config=self.config,  # type: ignore[arg-type]
        )
        page = PublisherPageConfig(
            topic=topic, title_=title, description_=description, schema_=schema, include_in_schema=include_in_schema
        )
        made = ShmqPublisher(config, PublisherPage(self.config, page))  # type: ignore[arg-type]
        super().publisher(made, persistent=persistent)
        return made

    def _connection_of_a_member(self) -> shmq.aio.Connection:
        """Return a new connection to the broker that this belongs to."""
        connect = self.config.extra_context.get(CONNECT)
        if connect is None:
            raise UsageError("the router belongs to no broker", hint="broker.include_router(router)")
        made: shmq.aio.Connection = connect()
        return made


CONNECT = "shmq_connect"
"""Where the configuration of a broker, which its routers see too, keeps what makes connections."""


async def _decode(message: Any) -> Any:
    return decode_message(message)
