"""The multiprocessing.Queue ends: pickle, a pipe and a feeder thread, as the standard library has it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from typing import Any

from benchmarks.peers.peer import Peer
from shmq.measurement.measure import Receive, Send


@contextmanager
def queue_place(size: int) -> Iterator[tuple[Any, Any]]:
    """Two multiprocessing queues: forth and back."""
    context = get_context("spawn")
    forth, back = context.Queue(), context.Queue()
    try:
        yield forth, back
    finally:
        forth.close()
        back.close()


def queue_sender(place: Any) -> Send:
    """put of the forth queue."""
    put: Callable[[bytes], object] = place[0].put
    return put


def queue_receiver(place: Any) -> Receive:
    """get of the forth queue."""
    get: Receive = place[0].get
    return get


def queue_ping_end(place: Any) -> tuple[Send, Receive]:
    """Puts forth, gets back."""
    return place[0].put, place[1].get


def queue_pong_end(place: Any) -> tuple[Send, Receive]:
    """Puts back, gets forth."""
    return place[1].put, place[0].get


PEERS = (
    Peer(
        name="multiprocessing",
        place=queue_place,
        sender=queue_sender,
        receiver=queue_receiver,
        ping_end=queue_ping_end,
        pong_end=queue_pong_end,
        pace=100_000,
    ),
)
