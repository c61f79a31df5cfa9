"""The pyzmq ends: PUSH/PULL with a high-water mark of 100,000 for throughput, PAIR for round trips, on ipc://."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

import zmq

from benchmarks.peers.peer import Peer
from shmq.measurement.measure import Receive, Send

HIGH_WATER_MARK = 100_000


@contextmanager
def place(size: int) -> Iterator[str]:
    """An ipc:// address in a private directory."""
    with tempfile.TemporaryDirectory(prefix="bench-zmq-") as directory:
        yield f"ipc://{directory}/socket"


def _socket(kind: int) -> zmq.Socket[bytes]:
    made: zmq.Socket[bytes] = zmq.Context.instance().socket(kind)
    made.set_hwm(HIGH_WATER_MARK)
    made.linger = 0
    return made


def sender(address: str) -> Send:
    """A PUSH socket's send."""
    push = _socket(zmq.PUSH)
    push.connect(address)
    return push.send


def receiver(address: str) -> Receive:
    """A PULL socket's recv."""
    pull = _socket(zmq.PULL)
    pull.bind(address)
    return pull.recv


def ping_end(address: str) -> tuple[Send, Receive]:
    """The connecting PAIR socket."""
    pair = _socket(zmq.PAIR)
    pair.connect(address)
    return pair.send, pair.recv


def pong_end(address: str) -> tuple[Send, Receive]:
    """The binding PAIR socket."""
    pair = _socket(zmq.PAIR)
    pair.bind(address)
    return pair.send, pair.recv


PEERS = (
    Peer(
        name="pyzmq",
        place=place,
        sender=sender,
        receiver=receiver,
        ping_end=ping_end,
        pong_end=pong_end,
        pace=1_000_000,
    ),
)
