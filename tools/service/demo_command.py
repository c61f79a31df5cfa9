"""`shmq demo`: broker, producer and consumer in one terminal, for a few seconds, without a trace afterwards.

The command starts four programs and watches them through the broker's memory, as any other tool does.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

from shmq.errors import ShmqError
from shmq.figures.quantity import count_text, rate_text, size_text
from shmq.tools.bench.bench_command import PRIVATE_BROKER
from shmq.tools.broker.memory import Memory, open_memory
from shmq.tools.broker.view import on_topic
from shmq.tools.command import Call, Command, Duration, pass_call
from shmq.tools.terminal.interrupt import ended_in_order

TOPIC = "demo"
LINE_INTERVAL = 0.25  # seconds between two lines on a terminal
DRAIN_TIMEOUT = 10.0
ROLE_TIMEOUT = 10.0


@click.command(cls=Command)
@click.option("--seconds", type=Duration(), default=5.0, metavar="TIME", help="How long to send.  [5s]")
@pass_call
def demo(call: Call, seconds: float) -> None:
    """Run broker, producer and consumer for a few seconds, then remove them."""
    from shmq.testing import Broker

    call.terminal.say("starting a broker in a private directory …")
    with ended_in_order(), Broker(**PRIVATE_BROKER) as broker:
        call.terminal.say(f"broker ready: {broker.url}")
        with _role("consume", broker.url) as consumer, _role("produce", broker.url) as producer:
            with open_memory(broker.url) as memory:
                _wait_until(lambda: _figures(memory)[0] > 0, ROLE_TIMEOUT)  # two interpreters start meanwhile
                started = time.monotonic()
                _watch(call, memory, until=started + seconds)
                sent = _end(producer)
                took = time.monotonic() - started
                _wait_until(lambda: _figures(memory)[1] >= sent, DRAIN_TIMEOUT)
            received = _end(consumer)
    document = {
        "seconds": round(took, 3),
        "sent": sent,
        "received": received,
        "messages_per_second": round(sent / took, 1),
    }
    if call.terminal.structured:
        call.terminal.document(document)
    else:
        call.terminal.line(
            f"sent {count_text(sent)}, received {count_text(received)} messages in {took:.1f} s: "
            f"{rate_text(sent / took)} msg/s between two processes"
        )
        call.terminal.say("everything is removed; start your own broker with: shmq serve")


@contextmanager
def _role(name: str, url: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run one role in a process of its own; it never outlives the block."""
    command = [sys.executable, "-P", "-m", "shmq.tools.service.demo_role", name, url, TOPIC]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def _end(process: subprocess.Popen[bytes]) -> int:
    """Tell a role to stop and return its count."""
    process.terminate()
    output, _ = process.communicate(timeout=ROLE_TIMEOUT)
    if process.returncode:
        raise ShmqError(f"a process of the demo ended with status {process.returncode}", hint="its own words are above")
    count: int = json.loads(output)["count"]
    return count


def _figures(memory: Memory) -> tuple[int, int, int]:
    """Return messages stored, messages acknowledged, and bytes stored."""
    views = [view for view in memory.topics() if view.name == TOPIC]
    stored = sum(queue.offset_max for view in views for queue in view.queues)
    read = sum(max(0, row.committed) for rows in on_topic(memory, TOPIC).values() for row in rows)
    return stored, read, sum(view.size_bytes for view in views)


def _watch(call: Call, memory: Memory, *, until: float) -> None:
    """Draw the line of rates until the time has come."""
    drawn = call.terminal.wants_progress()
    interval = LINE_INTERVAL if drawn else 1.0
    before, last = _figures(memory), time.monotonic()
    while (left := until - time.monotonic()) > 0:
        time.sleep(min(interval, left))
        now, moment = _figures(memory), time.monotonic()
        passed = max(moment - last, 1e-3)
        stored, read, size_bytes = (int((new - old) / passed) for new, old in zip(now, before, strict=True))
        line = (
            f"in {rate_text(stored):>6} msg/s  {size_text(size_bytes):>9}/s   "
            f"out {rate_text(read):>6} msg/s   behind {count_text(max(0, now[0] - now[1]))}"
        )
        before, last = now, moment
        if drawn:
            sys.stderr.write(f"\r\x1b[2K{line}")
            sys.stderr.flush()
        else:
            call.terminal.say(line)
    if drawn:
        sys.stderr.write("\n")


def _wait_until(condition: Callable[[], bool], timeout: float) -> None:
    deadline = time.monotonic() + timeout
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
