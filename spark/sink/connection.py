"""The connections of this process that the sink sends through: one for each place, kept for the next task.

The way is chosen on the driver and taken again by each worker:

    access=shm       the memory of this host         refused where the store is not
    access=remote    TCP, whatever is on this host
    access=auto      the memory of this host, if the store is the one the driver saw; else TCP

Rules: (1) the same name or path on another host is another broker: nothing is ever written there by mistake;
(2) nothing of this may travel to another process but the `Way`; each connects by itself.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from functools import partial
from typing import Final

import shmq
from shmq.errors import BrokerNotRunning, ConnectError, ShmqError
from shmq.shm.instance import read_instance, store_identity
from shmq.shm.place import DEFAULT_BROKER_NAME, place_of
from shmq.spark.access.way import here_or_remote, known_remote, may_be_here, remote_url
from shmq.spark.options import SHM, full_url, is_remote
from shmq.spark.sink.options import SinkOptions

_CONNECT_TIMEOUT: Final = 10.0
_connections: dict[tuple[int, str], shmq.Connection] = {}


@dataclass(frozen=True)
class Way:
    """What a worker needs to find the broker the driver found; plain data. `store` is None where only TCP leads there,
    `remote` where nothing but memory does."""

    access: str
    store: str | None
    remote: str | None
    identity: str = ""


def find_broker(options: SinkOptions) -> tuple[shmq.Connection, Way]:
    """Return the driver's connection, and how workers find the same broker.

    Raises:
        ConnectError: no broker answers, or not to this user; the text names the option and the cure.
        UsageError: access=remote, and its address is unknown.
    """
    remote = _remote_of(options)
    if not may_be_here(options.access, options.store, options.nameserver):
        remote = known_remote(remote)
        return _connected(_option_of(options), remote), Way(options.access, None, remote)
    url = full_url(options.store) or f"shmq://{DEFAULT_BROKER_NAME}"  # each worker looks where its environment says
    try:
        reached = _connected("store", url)
    except ConnectError:
        if options.access == SHM or options.nameserver is None or remote is None:
            raise
        return _connected("nameserver", remote), Way(options.access, None, remote)
    return reached, Way(options.access, url, remote, _identity(url))


def connection(way: Way) -> shmq.Connection:
    """Return this process' connection to the broker the driver found.

    Raises:
        ConnectError: it is not reached from this host; the text names the host, the option and the cure.
    """
    store = way.store

    def connected() -> shmq.Connection:
        assert store is not None
        if _identity(store) != way.identity:
            raise BrokerNotRunning(
                f"option store: {store} on host {socket.gethostname()} is not the broker that the driver saw; "
                "add option nameserver=HOST:9876 to reach that over TCP"
            )
        return _connected("store", store)

    over_tcp = partial(_connected, "nameserver")
    return here_or_remote(way.access, None if store is None else connected, way.remote, over_tcp)


def _remote_of(options: SinkOptions) -> str | None:
    try:
        return remote_url(options.store, options.nameserver)
    except OSError:
        return None  # another user's directory; connecting says so in better words


def _option_of(options: SinkOptions) -> str:
    return "store" if is_remote(options.store) else "nameserver"


def _identity(url: str) -> str:
    """The identity of the store of a place on this host; "" when there is none, or this process cannot see it."""
    try:
        instance = read_instance(place_of(url).instance_path)
    except (OSError, ShmqError):
        return ""
    return store_identity(instance) if instance is not None else ""


def _connected(option: str, url: str) -> shmq.Connection:
    key = os.getpid(), url
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
        cure += "; or give option nameserver=HOST:9876 to reach it over TCP"
    return f"option {option}: {error} (host {socket.gethostname()}); {cure}"
