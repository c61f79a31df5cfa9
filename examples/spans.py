"""OpenTelemetry spans: see in Jaeger, Tempo or another back end who sent a message, who handled it, and how long.

pip install 'shmq[otel]'
shmq serve
python examples/spans.py

This program prints its spans. A service sets up a provider once, with the exporter of its choice, and connects with
`spans=True`.
"""

import threading

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

import shmq


def line(span: ReadableSpan) -> str:
    """Return one span as a line."""
    assert span.context is not None
    parent = f"{span.parent.span_id:016x}" if span.parent else "-"
    links = ",".join(f"{link.context.span_id:016x}" for link in span.links)
    return f"{span.name} trace={span.context.trace_id:032x} id={span.context.span_id:016x} {parent=!s} {links=!s}\n"


provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter(formatter=line)))
trace.set_tracer_provider(provider)
tracer = trace.get_tracer("shop")
done = threading.Event()

with shmq.connect(spans=True) as mq:

    @mq.listener("orders", group="billing")
    def bill(message: shmq.Message) -> None:
        with tracer.start_as_current_span("write bill"):  # a child of "process orders", of the sender's trace
            pass
        done.set()

    mq.start()
    with tracer.start_as_current_span("checkout"):
        mq.send("orders", b"42 apples", key="o-42")
    done.wait(20)
