"""Chooses a process's way to the broker: mapped memory or TCP.

The driver plans over one way; each executor takes its own.

    access=shm       the segments, mapped                         refused where the broker is not on this host
    access=remote    TCP, whatever is on this host
    access=auto      the segments if they are those that were planned against, else TCP

    option store        shmq://NAME, a name, a runtime directory, or rocketmq://HOST:PORT
    option nameserver   HOST:PORT for TCP beside a local store; else what the broker itself wrote into its directory.
                        Without store it is the broker that is meant, whatever runs on this host

Rules: (1) the same path on two hosts is not the same store, so a hash of the host's boot and the directory's inode is
compared;
(2) the way taken is logged once a process and changes nothing in the rows.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Mapping
from typing import Final, TypeVar

from shmq.errors import BrokerNotRunning, ConnectError, SegmentError, ShmqError
from shmq.shm.addresses import read_addresses
from shmq.shm.descriptors import above_standard
from shmq.shm.place import DEFAULT_BROKER_NAME, place_of
from shmq.spark.access.broker import Access, Where
from shmq.spark.access.segments import attach
from shmq.spark.options import REMOTE, REMOTE_SCHEME, SHM, Options, full_url, is_remote, parse_options
from shmq.spark.schema import refused

ReachedT = TypeVar("ReachedT")
_PLACE: Final = ("store", "access", "nameserver", "broker")
_EVERYWHERE: Final = ("0.0.0.0", "[::]", "")
_log = logging.getLogger("shmq.spark")
_told: set[str] = set()


def open_access(options: Options) -> Access:
    """Return the driver's way to the broker of a load.

    Raises:
        ShmqError: there is none; the text names the option and the cure.
    """
    remote = remote_url(options.store, options.nameserver)
    if may_be_here(options.access, options.store, options.nameserver):
        try:
            attachment = attach(options.store)
        except (ConnectError, SegmentError):
            if options.access == SHM or remote is None:
                raise
        else:
            store = options.store or f"shmq://{DEFAULT_BROKER_NAME}"  # workers may have another environment
            return attachment.planned_for(Where(options.access, store, remote, options.broker, ""))
    local = None if is_remote(options.store) else options.store
    return _remote(Where(options.access, local, known_remote(remote), options.broker, ""))


def place_options(source: Mapping[str, str]) -> dict[str, str]:
    """Return those of the source's options that say where the broker is."""
    return {name: value for name, value in source.items() if name.lower() in _PLACE}


def open_place(source: Mapping[str, str]) -> Access:
    """Return the driver's way to the broker.

    Raises:
        ShmqError: there is none.
    """
    return open_access(parse_options({**place_options(source), "view": "queues"}))


def reopen(where: Where) -> Access:
    """Return an executor's way to the broker of a plan.

    Raises:
        ShmqError: there is none on this host; the text names the host, the option and the cure.
    """

    def attached() -> Access:
        found = attach(where.store)
        if where.identity not in ("", found.identity):
            raise BrokerNotRunning(
                f"option store: {found.instance.broker_name} on host {socket.gethostname()} is not the broker the read "
                "was planned with, it only has the same name; run Spark's workers on the broker's host, or set "
                "option nameserver"
            )
        return _noted(found, SHM)

    is_here = where.access != REMOTE and (where.store is not None or where.access == SHM)
    return here_or_remote(
        where.access, attached if is_here else None, where.remote, lambda _: _noted(_remote(where), REMOTE)
    )


def here_or_remote(
    access: str, here: Callable[[], ReachedT] | None, remote: str | None, over_tcp: Callable[[str], ReachedT]
) -> ReachedT:
    """Return what a worker reaches: the broker in the memory of this host, else over TCP if that may be.

    Args:
        here: reaches it in memory, and refuses another broker; None where it cannot be here.

    Raises:
        ConnectError, SegmentError: it is not reached from this host.
    """
    failure: ShmqError | None = None
    if here is not None:
        try:
            return here()
        except (ConnectError, SegmentError) as error:
            failure = error
    if access == SHM or remote is None:
        raise failure or BrokerNotRunning(f"option store: no broker on host {socket.gethostname()}")
    return over_tcp(remote)


def known_remote(remote: str | None) -> str:
    """Return where the broker is reached over TCP.

    Raises:
        UsageError: neither options nor the broker name it.
    """
    if remote is None:
        raise refused(
            "option access=remote: where the broker listens on TCP is unknown",
            "add option nameserver=HOST:9876, or start it with shmq serve and without --no-tcp",
        )
    return remote


def may_be_here(access: str, store: str | None, nameserver: str | None) -> bool:
    """Say whether options mean a broker that may be on this host.

    A name server alone means the broker behind it: the one that happens to run here would be read, or written to, by
    mistake.
    """
    return access != REMOTE and not is_remote(store) and (access == SHM or store is not None or nameserver is None)


@above_standard  # asking for a name opens sockets
def remote_url(store: str | None, nameserver: str | None) -> str | None:
    """Return where the broker of these options is reached over TCP, None when it is unknown."""
    if is_remote(store):
        return store
    if nameserver is not None:
        return nameserver if is_remote(nameserver) else REMOTE_SCHEME + nameserver
    address = read_addresses(place_of(full_url(store)).addresses_path).get("nameserver")
    if address is None:
        return None
    host, _, port = address.rpartition(":")
    # A broker on every address needs a name that leads here from another host.
    return f"{REMOTE_SCHEME}{socket.getfqdn() if host in _EVERYWHERE else host}:{port}"


def _remote(where: Where) -> Access:
    from shmq.spark.access.remote import connect_remote  # an asyncio client, which few workers need

    return connect_remote(where)


def _noted(access: Access, kind: str) -> Access:
    if kind not in _told:
        _told.add(kind)
        _log.info("reading from %s on %s: %s", access.broker, socket.gethostname(), kind)
    return access
