"""The faster-fifo ends; bodies pass through untouched, no pickle on either side."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import faster_fifo  # type: ignore[import-untyped, import-not-found, unused-ignore]

from benchmarks.peers.peer import Peer
from shmq.measurement.measure import Receive, Send

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
    capacity = max(FIFO_BYTES, 4 * size)
    forth, back = (faster_fifo.Queue(max_size_bytes=capacity, loads=_as_bytes, dumps=_same) for _ in range(2))
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


_FIFO: dict[str, Any] = {
    "place": fifo_place,
    "sender": fifo_sender,
    "ping_end": fifo_ping_end,
    "pong_end": fifo_pong_end,
    "pace": 200_000,
}

PEERS = (
    Peer(name="faster-fifo", receiver=fifo_receiver, **_FIFO),
    Peer(name="faster-fifo many", receiver=fifo_many_receiver, **_FIFO),
)
