"""The Redis streams ends: a private redis-server on a Unix socket, XADD on one side, blocking XREAD on the other.

The server keeps nothing on disk and is stopped by its process id.
"""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import redis

from benchmarks.peers.peer import Peer
from shmq.measurement.measure import Receive, Send

START_SECONDS_MAX = 10.0
READ_COUNT = 100  # entries one XREAD may return
PIPELINED = 100  # XADD commands sent in one write by the pipelined producer


@contextmanager
def place(size: int) -> Iterator[str]:
    """A redis-server of our own; yields its socket's path."""
    with tempfile.TemporaryDirectory(prefix="bench-redis-") as directory:
        socket = str(Path(directory) / "redis.sock")
        command = ["redis-server", "--port", "0", "--unixsocket", socket, "--save", "", "--appendonly", "no"]
        server = subprocess.Popen([*command, "--dir", directory], stdout=subprocess.DEVNULL)
        try:
            _wait_until_ready(socket, server)
            yield socket
        finally:
            server.terminate()
            server.wait(START_SECONDS_MAX)


def _wait_until_ready(socket: str, server: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_SECONDS_MAX
    while time.monotonic() < deadline and server.poll() is None:
        try:
            redis.Redis(unix_socket_path=socket).ping()
            return
        except redis.ConnectionError:
            time.sleep(0.01)
    raise RuntimeError(f"redis-server did not answer on {socket} within {START_SECONDS_MAX:.0f} s")


def _add(socket: str, stream: str) -> Send:
    client: Any = redis.Redis(unix_socket_path=socket)

    def send(body: bytes) -> None:
        client.xadd(stream, {b"b": body})

    return send


def _read(socket: str, stream: str) -> Receive:
    client: Any = redis.Redis(unix_socket_path=socket)
    last: Any = "0"
    held: list[bytes] = []

    def receive() -> bytes:
        nonlocal last
        while not held:
            answer = client.xread({stream: last}, count=READ_COUNT, block=1000)
            entries = _entries(answer)
            if entries:
                last = entries[-1][0]
                held.extend(fields[b"b"] for _, fields in reversed(entries))
        return held.pop()

    return receive


def _entries(answer: Any) -> Any:
    """The entries of the one stream read: RESP2 answers with pairs, RESP3 with a mapping to batches."""
    if not answer:
        return []
    if isinstance(answer, dict):
        return [entry for batches in answer.values() for batch in batches for entry in batch]
    return answer[0][1]


def sender(socket: str) -> Send:
    """XADD, one command a message."""
    return _add(socket, "stream")


def pipelined_sender(socket: str) -> Send:
    """XADD in pipelines of PIPELINED commands."""
    pipeline: Any = redis.Redis(unix_socket_path=socket).pipeline(transaction=False)

    def send(body: bytes) -> None:
        pipeline.xadd("stream", {b"b": body})
        # the numbered bodies (warm-up, first, last) go at once: no flush comes after them
        if len(pipeline) >= PIPELINED or body[8:9] == b"\xa5":
            pipeline.execute()

    return send


def receiver(socket: str) -> Receive:
    """XREAD BLOCK, up to READ_COUNT entries a command."""
    return _read(socket, "stream")


def ping_end(socket: str) -> tuple[Send, Receive]:
    """Adds to ping, reads pong."""
    return _add(socket, "ping"), _read(socket, "pong")


def pong_end(socket: str) -> tuple[Send, Receive]:
    """Adds to pong, reads ping."""
    return _add(socket, "pong"), _read(socket, "ping")


_REDIS: dict[str, Any] = {
    "place": place,
    "receiver": receiver,
    "ping_end": ping_end,
    "pong_end": pong_end,
    "pace": 20_000,
}

PEERS = (
    Peer(name="redis streams", sender=sender, **_REDIS),
    Peer(name="redis pipelined", sender=pipelined_sender, **_REDIS),
)
