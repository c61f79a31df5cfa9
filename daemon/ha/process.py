"""The process of a broker that has to do with another host: it ships the log to slaves, or copies a master's, or both.

    --ha-listen     slaves connect there, and get the log: shipping.py
    --role slave    a thread gets the log of the master: following.py

Rules: (1) what waits here for another host holds nobody up, because appends do not know that there are slaves;
(2) when the segments are given up it ends, and is started again with the new ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading

from shmq.daemon.bridge.event_loop import run_loop, stop_event
from shmq.daemon.bridge.sockets.tcp_listener import TcpListener
from shmq.daemon.bridge.store.tables import StoreTables
from shmq.daemon.bridge.surroundings import UMASK
from shmq.daemon.event_log import EventLog
from shmq.daemon.exit_code import DONE, exit_code_of
from shmq.daemon.ha.following import Following
from shmq.daemon.ha.leader import LogSpan
from shmq.daemon.ha.master_tables import MasterTables
from shmq.daemon.ha.shipping import Shipping
from shmq.daemon.options import Options, parse_address, parse_networks
from shmq.daemon.tether import Tether
from shmq.delay_levels import DelayLevels
from shmq.errors import BrokerNotRunning, ShmqError
from shmq.shm.access import access_rights
from shmq.shm.addresses import read_addresses, write_addresses
from shmq.shm.core import Store
from shmq.shm.instance import Instance, read_instance
from shmq.shm.place import Place
from shmq.shm.presence import attach_presence, detach_presence
from shmq.shm.segment import open_store

HA = "ha"  # the name of our address
_LOOK_SECONDS = 0.5
_STOP_SECONDS = 3.0  # the supervisor waits five


def run_replication(place: Place, options: Options, *, tether: Tether, log: EventLog) -> int:
    """Ship, follow, or both, until SIGTERM; return the exit status."""
    os.umask(UMASK)
    with contextlib.ExitStack() as open_things:
        try:
            listener = _listener(options, read_addresses(place.ha_path).get(HA, "")) if options.ha_listen else None
            if listener is not None:
                open_things.callback(listener.close)
            instance, store = _open(place, open_things, is_slave=options.is_slave)
            following = _following(options, instance, store, open_things, log) if options.is_slave else None
        except ShmqError as error:
            log("ha.failed", reason=str(error), hint=error.hint)
            tether.failed(error)
            return exit_code_of(error)
        return run_loop(_serve(place, options, listener, store, following, tether, log), log)


def _open(place: Place, open_things: contextlib.ExitStack, *, is_slave: bool) -> tuple[Instance, Store]:
    instance = read_instance(place.instance_path)
    if instance is None:
        raise BrokerNotRunning(f"{place.instance_path} names no segments", hint="start the broker: shmq serve")
    store = open_store(instance, writable=is_slave, uid=os.geteuid(), observing=not is_slave)
    open_things.callback(store.close)
    attach_presence(instance)
    open_things.callback(detach_presence, instance)
    return instance, store


def _listener(options: Options, address_before: str) -> TcpListener:
    host, port = parse_address(options.ha_listen, name="ha_listen")
    if port == 0 and address_before:
        with contextlib.suppress(ShmqError):
            return TcpListener(host, parse_address(address_before)[1])
    return TcpListener(host, port)


def _following(
    options: Options, instance: Instance, store: Store, open_things: contextlib.ExitStack, log: EventLog
) -> threading.Thread:
    """The thread that follows; not started yet. It is told to stop, and waited for, before the store is closed."""
    stopping = threading.Event()
    tables = MasterTables(parse_address(options.master, name="master"), StoreTables(store, instance, access_rights()))
    levels = DelayLevels(options.delay_levels)
    following = Following(options.master_ha_address, store, tables, levels, stopping, log)
    thread = threading.Thread(target=following.run, name="following", daemon=True)

    def stop() -> None:
        stopping.set()
        if thread.ident is not None:
            thread.join(_STOP_SECONDS)
        if thread.is_alive():
            os._exit(DONE)  # it waits for the master, and would find the store closed

    open_things.callback(stop)
    return thread


async def _serve(
    place: Place,
    options: Options,
    listener: TcpListener | None,
    store: Store,
    following: threading.Thread | None,
    tether: Tether,
    log: EventLog,
) -> int:
    stop = stop_event(tether.stopping)
    serving: asyncio.Task[None] | None = None
    if listener is not None:
        serving = asyncio.create_task(_shipping(options, store, log).serve(listener.socket))
        access = access_rights()
        write_addresses(place.ha_path, {HA: str(listener.address)}, mode=access.read_mode, gid=access.gid)
        log("ha.listens", address=str(listener.address))
    if following is not None:
        following.start()
    tether.ready()
    try:
        while not stop.is_set() and not store.retired and (serving is None or not serving.done()):
            if following is not None and not following.is_alive():
                break
            log.tick()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), _LOOK_SECONDS)
    finally:
        if serving is not None:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)
    return DONE


def _shipping(options: Options, store: Store, log: EventLog) -> Shipping:
    file_bytes = int(store.head["file_bytes"])

    def span() -> LogSpan:
        # The end first: what retention takes meanwhile makes the span shorter, never longer than it is.
        end = store.log_end
        return LogSpan(store.log_begin, end, file_bytes)

    return Shipping(span, options.store_path, parse_networks(options.ha_allow), log)
