"""OpenTelemetry for code that takes messages by itself; listeners of `shmq.connect(spans=True)` need nothing of this.

It needs the extra `otel`.

    for message in mq.subscribe("orders", group="billing"):
        with shmq.otel.processing(mq, message, group="billing"):
            bill(message)                       # its spans are children of the sender's
            message.ack()
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from opentelemetry.trace import Span

from shmq.client.observing import Observers
from shmq.client.spans import Spans, context_of
from shmq.errors import UsageError
from shmq.shm.core import Message

__all__ = ["context_of", "processing"]


@contextmanager
def processing(connection: Any, message: Message, *, group: str | None = None) -> Iterator[Span]:
    """Make a span of what the block does with a message, child of the context that the message carries.

    Args:
        connection: the `shmq` or `shmq.aio` connection it came from.

    Raises:
        UsageError: the connection makes no spans.
    """
    link = getattr(connection, "_made", connection)
    observer = getattr(link, "_tracer", None)
    for each in observer.observers if isinstance(observer, Observers) else (observer,):
        if isinstance(each, Spans):
            with each.processing(group, getattr(message, "_sync", message)) as span:
                yield span
            return
    raise UsageError("this connection makes no spans", hint="shmq.connect(spans=True)")
