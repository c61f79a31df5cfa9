"""The iceoryx2 ends: publish-subscribe of byte slices polled busily, and events with a blocking wait.

Lossless: no overflow, the publisher retries until delivered. A body goes in by memmove into the loan. The receiver is
given the sample and takes no copy of it: that is the least a subscriber can do, so it is the strictest rival. An event
carries no body at all.

Every run has its own prefix and root directory, both removed afterwards: iceoryx2 keeps segments of dead processes.
"""

from __future__ import annotations

import ctypes
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import iceoryx2  # type: ignore[import-untyped, import-not-found, unused-ignore]

from benchmarks.peers.peer import Peer
from shmq.measurement.measure import Receive, Send

BUFFERED_SAMPLES = 1024  # per subscriber; small bodies only
BUFFERED_LARGE_SAMPLES = 8
LARGE_BYTES = 64 << 10
PUBLISHERS_MAX = 8


@dataclass(frozen=True)
class Place:
    """The place of one run: where its services live, and how large its bodies are."""

    prefix: str
    root: str
    size: int


@contextmanager
def place(size: int) -> Iterator[Place]:
    """A private prefix and root; whatever is left under them is removed."""
    prefix = f"bench_{secrets.token_hex(4)}_"
    root = tempfile.mkdtemp(prefix="bench-iceoryx2-")
    try:
        yield Place(prefix, root, size)
    finally:
        shutil.rmtree(root)
        for entry in Path("/dev/shm").glob(f"{prefix}*"):
            entry.unlink(missing_ok=True)


def _node(where: Place) -> Any:
    iceoryx2.set_log_level(iceoryx2.LogLevel.Error)
    settings = iceoryx2.config.default()
    settings.global_cfg.prefix = iceoryx2.FileName.new(where.prefix)
    settings.global_cfg.root_path = iceoryx2.Path.new(where.root)
    builder = iceoryx2.NodeBuilder.new().config(settings)
    return builder.signal_handling_mode(iceoryx2.SignalHandlingMode.Disabled).create(iceoryx2.ServiceType.Ipc)


def _service(where: Place, name: str) -> tuple[Any, Any]:
    node = _node(where)
    builder = node.service_builder(iceoryx2.ServiceName.new(name))
    builder = builder.publish_subscribe(iceoryx2.Slice[ctypes.c_uint8])
    buffered = BUFFERED_SAMPLES if where.size < LARGE_BYTES else BUFFERED_LARGE_SAMPLES
    builder = builder.enable_safe_overflow(False).subscriber_max_buffer_size(buffered)
    return node, builder.max_publishers(PUBLISHERS_MAX).open_or_create()


def _publish(where: Place, name: str) -> Send:
    node, service = _service(where, name)
    retry = iceoryx2.BackpressureStrategy.RetryUntilDelivered
    publisher = service.publisher_builder().initial_max_slice_len(where.size).backpressure_strategy(retry).create()
    move, size = ctypes.memmove, where.size

    def send(body: bytes, keep: Any = (node, service)) -> None:
        loan = publisher.loan_slice_uninit(size)
        move(loan.payload_ptr, body, size)
        loan.assume_init().send()

    return send


def _subscribe(where: Place, name: str) -> Receive:
    node, service = _service(where, name)
    subscriber = service.subscriber_builder().create()
    take = subscriber.receive

    def receive(keep: Any = (node, service, subscriber)) -> Any:
        while (sample := take()) is None:
            pass
        return sample

    return receive


def content(sample: Any) -> bytes:
    """A copy of the sample's payload."""
    view = sample.payload()
    return ctypes.string_at(view.data_ptr, view.number_of_elements)


def sender(where: Place) -> Send:
    """Loan, memmove, send."""
    return _publish(where, "stream")


def receiver(where: Place) -> Receive:
    """Poll until a sample is there."""
    return _subscribe(where, "stream")


def ping_end(where: Place) -> tuple[Send, Receive]:
    """Publishes ping, polls pong."""
    return _publish(where, "ping"), _subscribe(where, "pong")


def pong_end(where: Place) -> tuple[Send, Receive]:
    """Publishes pong, polls ping."""
    return _publish(where, "pong"), _subscribe(where, "ping")


def _notify(where: Place, name: str) -> Send:
    node = _node(where)
    service = node.service_builder(iceoryx2.ServiceName.new(name)).event().open_or_create()
    notifier = service.notifier_builder().create()

    def send(body: bytes, keep: Any = (node, service)) -> None:
        notifier.notify()

    return send


def _listen(where: Place, name: str) -> Receive:
    node = _node(where)
    service = node.service_builder(iceoryx2.ServiceName.new(name)).event().open_or_create()
    listener = service.listener_builder().create()

    def receive(keep: Any = (node, service)) -> Any:
        while not (events := listener.blocking_wait()):
            pass
        return events

    return receive


def event_ping_end(where: Place) -> tuple[Send, Receive]:
    """Notifies ping, waits for pong."""
    return _notify(where, "ping"), _listen(where, "pong")


def event_pong_end(where: Place) -> tuple[Send, Receive]:
    """Notifies pong, waits for ping."""
    return _notify(where, "pong"), _listen(where, "ping")


PEERS = (
    Peer(
        name="iceoryx2",
        place=place,
        sender=sender,
        receiver=receiver,
        ping_end=ping_end,
        pong_end=pong_end,
        content=content,
        pace=500_000,
    ),
    Peer(
        name="iceoryx2 events",
        place=place,
        ping_end=event_ping_end,
        pong_end=event_pong_end,
        content=None,
    ),
)
