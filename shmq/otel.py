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

from opentelemetry.context import Context
from opentelemetry.trace import Span

from shmq.client.observers import spans
from shmq.errors import UsageError

__all__ = ["context_of", "processing"]


@contextmanager
def processing(connection: Any, message: Any, *, group: str | None = None) -> Iterator[Span]:
    """Make a span of what the block does with a message, child of the context that the message carries.

    Args:
        connection: the `shmq` or `shmq.aio` connection it came from.

    Raises:
        UsageError: the connection makes no spans.
    """
    observer = getattr(getattr(connection, "_made", connection), "_observer", None)
    if observer is None or observer.spans is None:
        raise UsageError("this connection makes no spans", hint="shmq.connect(spans=True)")
    with observer.spans.processing(group, getattr(message, "_sync", message)) as span:
        yield span


def context_of(message: Any) -> Context:
    """Return the OpenTelemetry context that a message carries; an empty one when it carries none."""
    return spans.context_of(getattr(message, "_sync", message))
