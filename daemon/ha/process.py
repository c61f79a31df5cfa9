"""The process of a broker that has to do with another host: it ships the log to slaves.

    --ha-listen     slaves connect there, and get the log: shipping.py

Rules: (1) what waits here for another host holds nobody up, because appends do not know that there are slaves;
(2) when the segments are given up it ends, and is started again with the new ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import os

from shmq.daemon.bridge.event_loop import run_loop, stop_event
from shmq.daemon.bridge.sockets.tcp_listener import TcpListener
from shmq.daemon.bridge.surroundings import UMASK
from shmq.daemon.event_log import EventLog
from shmq.daemon.exit_code import DONE, exit_code_of
from shmq.daemon.ha.leader import LogSpan
from shmq.daemon.ha.shipping import Shipping
from shmq.daemon.options import Options, parse_address, parse_networks
from shmq.daemon.tether import Tether
from shmq.errors import BrokerNotRunning, ShmqError
from shmq.shm.access import access_rights
from shmq.shm.addresses import read_addresses, write_addresses
from shmq.shm.core import Store
from shmq.shm.instance import read_instance
from shmq.shm.place import Place
from shmq.shm.segment import open_store

HA = "ha"  # the name of our address
_LOOK_SECONDS = 0.5


def run_replication(place: Place, options: Options, *, tether: Tether, log: EventLog) -> int:
    """Serve slaves until SIGTERM; return the exit status."""
    os.umask(UMASK)
    try:
        listener = _listener(options, read_addresses(place.ha_path).get(HA, ""))
        store = _open(place)
    except ShmqError as error:
        log("ha.failed", reason=str(error), hint=error.hint)
        tether.failed(error)
        return exit_code_of(error)
    with contextlib.closing(listener), contextlib.closing(store):
        return run_loop(_serve(place, options, listener, store, tether, log), log)


def _open(place: Place) -> Store:
    instance = read_instance(place.instance_path)
    if instance is None:
        raise BrokerNotRunning(f"{place.instance_path} names no segments", hint="start the broker: shmq serve")
    return open_store(instance, writable=False, observing=True)


def _listener(options: Options, address_before: str) -> TcpListener:
    host, port = parse_address(options.ha_listen, name="ha_listen")
    if port == 0 and address_before:
        with contextlib.suppress(ShmqError):
            return TcpListener(host, parse_address(address_before)[1])
    return TcpListener(host, port)


async def _serve(
    place: Place, options: Options, listener: TcpListener, store: Store, tether: Tether, log: EventLog
) -> int:
    stop = stop_event(tether.stopping)
    access = access_rights()
    file_bytes = int(store.head["file_bytes"])

    def span() -> LogSpan:
        # The end first: what retention takes meanwhile makes the span shorter, never longer than it is.
        end = store.log_end
        return LogSpan(store.log_begin, end, file_bytes)

    shipping = Shipping(span, options.store_path, parse_networks(options.ha_allow), log)
    serving = asyncio.create_task(shipping.serve(listener.socket))
    write_addresses(place.ha_path, {HA: str(listener.address)}, mode=access.read_mode, gid=access.gid)
    log("ha.listens", address=str(listener.address))
    tether.ready(ha=str(listener.address))
    try:
        while not stop.is_set() and not serving.done() and not store.retired:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), _LOOK_SECONDS)
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
    return DONE
