"""Owns the ends of two in-memory queues: faster-fifo (bodies passed through untouched) and multiprocessing.Queue."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from multiprocessing import get_context
from typing import Any

from benchmarks.peer import Peer
from shmq.tools.measure import Receive, Send

FIFO_BYTES = 32 << 20
FIFO_SECONDS_MAX = 60.0
MANY = 100  # messages a get_many call may return, as in faster-fifo's own benchmark


def _same(body: bytes) -> bytes:
    return body


def _as_bytes(message: Any) -> bytes:
    return bytes(message)


@contextmanager
def fifo_place(size: int) -> Iterator[tuple[Any, Any]]:
    """Two faster-fifo queues: forth and back."""
    import faster_fifo  # only here: this module also serves hosts that have multiprocessing alone

    capacity = max(FIFO_BYTES, 4 * size)
    forth, back = (
        faster_fifo.Queue(max_size_bytes=capacity, loads=_as_bytes, dumps=_same) for _ in range(2)
    )
    yield forth, back


def _fifo_put(queue: Any) -> Send:
    put = queue.put

    def send(body: bytes) -> None:
        put(body, True, FIFO_SECONDS_MAX)

    return send


def _fifo_get(queue: Any) -> Receive:
    get = queue.get

    def receive() -> Any:
        return get(True, FIFO_SECONDS_MAX)

    return receive


def fifo_sender(place: Any) -> Send:
    """put of the forth queue."""
    return _fifo_put(place[0])


def fifo_receiver(place: Any) -> Receive:
    """get of the forth queue."""
    return _fifo_get(place[0])


def fifo_ping_end(place: Any) -> tuple[Send, Receive]:
    """Puts forth, gets back."""
    return _fifo_put(place[0]), _fifo_get(place[1])


def fifo_pong_end(place: Any) -> tuple[Send, Receive]:
    """Puts back, gets forth."""
    return _fifo_put(place[1]), _fifo_get(place[0])


def fifo_many_receiver(place: Any) -> Receive:
    """get_many behind a one-at-a-time face: one call fetches up to MANY messages."""
    get_many = place[0].get_many
    held: list[Any] = []

    def receive() -> Any:
        if not held:
            held.extend(get_many(True, FIFO_SECONDS_MAX, MANY))
            held.reverse()
        return held.pop()

    return receive


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


_FIFO: dict[str, Any] = {
    "module": "faster_fifo",
    "place": fifo_place,
    "sender": fifo_sender,
    "ping_end": fifo_ping_end,
    "pong_end": fifo_pong_end,
    "pace": 200_000,
}

PEERS = (
    Peer(name="faster-fifo", receiver=fifo_receiver, **_FIFO),
    Peer(name="faster-fifo many", receiver=fifo_many_receiver, **_FIFO),
    Peer(
        name="multiprocessing",
        module="multiprocessing",
        place=queue_place,
        sender=queue_sender,
        receiver=queue_receiver,
        ping_end=queue_ping_end,
        pong_end=queue_pong_end,
        pace=100_000,
    ),
)
