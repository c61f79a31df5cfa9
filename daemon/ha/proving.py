"""The socket of a slave, or of a process that asks as one, while both ends prove their secret; handshake.py decides."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable

from shmq.daemon.ha.handshake import NONCE_BYTES, Claim, SlaveHandshake
from shmq.daemon.ha.meeting import Side
from shmq.daemon.ha.trust import Trust
from shmq.errors import ProtocolError

PROVING_SECONDS = 10.0  # a stock master waits 5 s before it speaks
_LOOK_SECONDS = 0.2
_READ_BYTES = 4096


def _never() -> bool:
    return False


def prove_to_master(
    connection: socket.socket,
    trust: Trust,
    me: Side,
    *,
    is_ended: Callable[[], bool] = _never,
    seconds: float = PROVING_SECONDS,
) -> Claim | None:
    """Prove a secret to the master at the other end, and return its proven identity; None: a stock master.

    Args:
        is_ended: asked now and then whether to give up.

    Raises:
        ProtocolError: it has proven nothing, or refuses this host.
        OSError: of the connection.
    """
    host = connection.getpeername()[0]
    until_ms = _now_ms() + int(1_000 * seconds)
    shake = SlaveHandshake(trust.secret, me, os.urandom(NONCE_BYTES), until_ms, trust.refuses_plain(host))
    while not shake.is_over and not is_ended():
        connection.settimeout(_LOOK_SECONDS)
        if out := shake.take():
            connection.sendall(out)
        with contextlib.suppress(TimeoutError):
            data = connection.recv(_READ_BYTES)
            shake.feed(data)
            if not data:
                shake.end()
        shake.tick(_now_ms())
    with contextlib.suppress(OSError):
        connection.sendall(shake.take())  # a master of another cluster says why, too
    if shake.proven is None and not shake.is_plain:
        raise ProtocolError(shake.closed or "this slave ends", hint=shake.cure)
    return shake.proven


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000


def refuse_itself(connection: socket.socket, own_port: int) -> None:
    """Refuse a master that is this very broker.

    Args:
        own_port: where this broker ships its log, 0: nowhere.

    Raises:
        ProtocolError: it is.
    """
    if connection.getpeername()[:2] == (connection.getsockname()[0], own_port):
        raise ProtocolError(
            "what answers there is this broker itself: it would follow its own log, which never grows",
            hint="correct --master and --master-ha: they name another broker",
        )
