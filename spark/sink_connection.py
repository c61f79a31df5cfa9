"""Owns the connections of this process that the sink sends through: one for each place, kept for the next task.

It does not know rows. Through the memory of this host where the store is visible, over TCP where it is not:

    store=rocketmq://…               TCP
    store=NAME, visible here         shared memory
    store=NAME, not on this host     TCP to option nameserver; without it an error that says so

Rule: nothing of this may travel to another process; each connects by itself.
"""

from __future__ import annotations

import os
import socket
from typing import Final

import shmq
from shmq.errors import BrokerNotRunning, ConnectError, ForeignNamespace, ShmqError, VersionMismatch
from shmq.spark.attach import full_url
from shmq.spark.sink_options import SinkOptions

_CONNECT_TIMEOUT: Final = 10.0
_connections: dict[tuple[int, str], shmq.Connection] = {}


def connection(options: SinkOptions) -> shmq.Connection:
    """Return this process' connection for these options.

    Raises:
        ConnectError: nobody is there, or not for this process; the text names the option and the cure.
    """
    try:
        return _connected("store", full_url(options.store))
    except (BrokerNotRunning, ForeignNamespace, VersionMismatch):
        if options.nameserver is None:
            raise
        return _connected("nameserver", f"rocketmq://{options.nameserver}")


def forget(lost: shmq.Connection) -> None:
    """Let the next task connect anew."""
    for key in [key for key, known in _connections.items() if known is lost]:
        del _connections[key]
    lost.close()


def _connected(option: str, url: str | None) -> shmq.Connection:
    key = os.getpid(), url or ""
    known = _connections.get(key)
    if known is not None and not known.closed:
        return known
    try:
        made = shmq.connect(url, timeout=_CONNECT_TIMEOUT)
    except ConnectError as error:
        raise type(error)(_explained(option, error), hint=error.hint) from error
    _connections[key] = made
    return made


def _explained(option: str, error: ShmqError) -> str:
    """Spark shows the text only, so the hint is part of it."""
    cure = error.hint or "start the broker: shmq serve"
    if isinstance(error, BrokerNotRunning) and option == "store":
        cure += "; or give option nameserver=host:port to reach it over TCP"
    return f"option {option}: {error} (host {socket.gethostname()}); {cure}"
