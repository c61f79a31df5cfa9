"""The bridge process: opens the segments, listens on the control socket, serves until it is told to stop.

Owns the start and the end of the process and what the bridge is made of. It does not know requests or connections.

    segments open -> broker -> listen (TCP, then the socket appears: ready) -> serve -> SIGTERM -> socket gone -> end
                                                                       |
                                                                       +-> segments retired: end, to be started again

A failure is one line in the log and a status that says what kind it was.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass

from shmq.daemon.bridge.bridge import Bridge
from shmq.daemon.bridge.event_loop import run_loop
from shmq.daemon.bridge.limits import BridgeLimits
from shmq.daemon.bridge.listener import Listener
from shmq.daemon.bridge.log_watch import LogWatch
from shmq.daemon.bridge.security import Security
from shmq.daemon.bridge.store_index import StoreIndex
from shmq.daemon.bridge.store_log import StoreLog
from shmq.daemon.bridge.store_tables import StoreTables
from shmq.daemon.bridge.tcp_listener import TcpListener, listen_with_vip
from shmq.daemon.broker.broker import Broker
from shmq.daemon.broker.requests import Address
from shmq.daemon.broker.settings import BrokerSettings
from shmq.daemon.event_log import EventLog
from shmq.daemon.exit_code import DONE, TEMPORARY, exit_code_of
from shmq.daemon.nameserver.service import NameService, start_name_service
from shmq.daemon.options import Options, parse_address
from shmq.daemon.tether import Tether
from shmq.errors import SegmentError, ShmqError
from shmq.protocol.codes import Request, Role
from shmq.shm.access import access_rights
from shmq.shm.addresses import read_addresses, write_addresses
from shmq.shm.core import Store, process_start
from shmq.shm.instance import Instance, read_instance
from shmq.shm.place import Place
from shmq.shm.presence import attach_presence, detach_presence
from shmq.shm.segment import open_store
from shmq.version import __version__

_DESCRIPTORS_SPARE = 256  # beside the connections: segments, log files, the loop's own
_UMASK = 0o077  # whatever is made without a mode of its own is ours alone
_REFUSED_AT_VIP = (Request.PULL_MESSAGE, Request.LITE_PULL_MESSAGE)


def run_bridge(
    place: Place, options: Options, *, limits: BridgeLimits | None = None, tether: Tether | None = None
) -> int:
    """Serve the control socket and the TCP ports of a broker until SIGTERM; return the exit status.

    The segments must exist: `place.instance_path` describes them. The socket appears when requests are served.

    Args:
        tether: told that the bridge serves, or why it cannot.
    """
    tether = tether or Tether()
    log = EventLog("bridge", options.log_format)
    limits = limits or BridgeLimits()
    try:
        os.umask(_UMASK)
        _raise_descriptor_limit(2 * limits.connections_max + _DESCRIPTORS_SPARE)  # the name server's come on top
        return _open_and_serve(place, options, limits, log, tether)
    except ShmqError as error:
        log("bridge.failed", reason=str(error), hint=error.hint)
        tether.failed(error)
        return exit_code_of(error)


@dataclass(frozen=True, slots=True)
class _Opened:
    """What the process is made of."""

    place: Place
    options: Options
    limits: BridgeLimits
    log: EventLog
    store: Store
    tables: StoreTables
    broker: Broker
    listeners: list[TcpListener]
    addresses_before: dict[str, str]
    security: Security


def _open_and_serve(place: Place, options: Options, limits: BridgeLimits, log: EventLog, tether: Tether) -> int:
    security = open_security(options, log)
    instance = read_instance(place.instance_path)
    if instance is None:
        raise SegmentError(f"{place.instance_path} does not exist: no broker has made segments", hint="shmq serve")
    with contextlib.ExitStack() as open_things:
        store = open_store(instance, writable=True, uid=os.geteuid())
        open_things.callback(store.close)
        attach_presence(instance)
        open_things.callback(detach_presence, instance)
        before = read_addresses(place.addresses_path)
        listeners = _tcp_listeners(options, before.get("broker", "")) if options.tcp else []
        for listener in listeners:
            open_things.callback(listener.close)
        tables = StoreTables(store, instance, access_rights())
        index = StoreIndex(store, access_rights())
        open_things.callback(index.close)
        broker = Broker(
            tables,
            _settings(options, instance, store, listeners),
            now_ms=time.monotonic_ns() // 1_000_000,
            log=StoreLog(store, report=lambda text: log("log.damaged", text=text)),
            index=index,
            admission=security.admission,
        )
        opened = _Opened(place, options, limits, log, store, tables, broker, listeners, before, security)
        return run_loop(_serve(opened, tether), log)


def open_security(options: Options, log: EventLog) -> Security:
    """Read the files that protect the TCP ports, and refuse ports that nothing protects.

    Raises:
        UsageError: a file that cannot be used, or an address that others reach without accounts.
    """
    security = Security(acl=options.acl, tls_mode=options.tls_mode, tls_cert=options.tls_cert, tls_key=options.tls_key)
    if options.tcp:
        listens = [options.listen, *([] if options.nameserver_addresses else [options.nameserver_listen])]
        hosts = [parse_address(address)[0] for address in listens]
        security.check_exposure(hosts, log, insecure=options.insecure)
    return security


def _settings(options: Options, instance: Instance, store: Store, listeners: list[TcpListener]) -> BrokerSettings:
    advertised = None
    if options.advertise and listeners:
        advertised = Address(*parse_address(options.advertise, name="advertise", port=listeners[0].address.port))
    return BrokerSettings(
        broker_name=instance.broker_name,
        version=__version__,
        abi=instance.abi,
        generation=instance.generation,
        pid_namespace=instance.pid_namespace,
        instance=instance.to_object(),
        auto_create=options.auto_create,
        default_queues=options.default_queues,
        wait_durable=bool(store.head["flush_sync"]),
        cluster=options.cluster,
        serves_tcp=bool(listeners),
        advertised=advertised,
    )


async def _serve(opened: _Opened, tether: Tether) -> int:
    log, store = opened.log, opened.store
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    bridge = Bridge(opened.broker, log, limits=opened.limits, security=opened.security)
    bridge.tick()  # slots of processes that died while no bridge ran are free before the first client asks
    with contextlib.ExitStack() as open_things:
        open_things.callback(bridge.close)
        if opened.listeners:
            _watch_log(opened, bridge, open_things)
        name_service = _listen(opened, bridge, open_things)
        tether.ready()
        while not stop.is_set():
            bridge.tick()
            if name_service is not None:
                name_service.tick()
            if store.retired:
                log("bridge.retired", generation=f"{store.head['generation']:016x}")
                return TEMPORARY
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), opened.limits.tick_interval)
    log("bridge.stopped")
    return DONE


def _watch_log(opened: _Opened, bridge: Bridge, open_things: contextlib.ExitStack) -> None:
    """Let appends of other processes, and flushes, reach those who wait for them in the broker."""
    store, tables, broker = opened.store, opened.tables, opened.broker
    pid = os.getpid()
    slot = tables.client_put(pid, process_start(pid), Role.BOTH)
    open_things.callback(tables.client_drop, slot)
    store.use_client(slot)

    def news(queues: Sequence[int]) -> None:
        bridge.arrived(queues)
        bridge.flushed(store.durable_end)
        watch.publish(broker.wanted)

    watch = LogWatch(
        store, news=news, failed=lambda error: opened.log("log.unwatched", reason=str(error), hint=error.hint)
    )
    open_things.callback(watch.close)
    bridge.call_when_settled(lambda: watch.publish(broker.wanted), version=lambda: broker.wanted_version)


def _listen(opened: _Opened, bridge: Bridge, open_things: contextlib.ExitStack) -> NameService | None:
    """Open every door; the control socket comes last, because who sees it may expect the others."""
    place, log = opened.place, opened.log
    access = access_rights()
    addresses: dict[str, str] = {}
    name_service = None
    if opened.listeners:
        for number, listener in enumerate(opened.listeners):
            bridge.listen(listener.socket, refused=_REFUSED_AT_VIP if number else ())
        broker = opened.listeners[0].address
        name_service = start_name_service(
            opened.options,
            opened.tables,
            log,
            broker=broker,
            address_before=opened.addresses_before.get("nameserver", ""),
            security=bridge.security,
        )
        open_things.callback(name_service.close)
        addresses = {"broker": str(broker)} | name_service.addresses
        open_things.callback(lambda: place.addresses_path.unlink(missing_ok=True))
        write_addresses(place.addresses_path, addresses, mode=access.read_mode, gid=access.gid)
    control = Listener(place.socket_path, mode=access.mode, gid=access.gid)
    open_things.callback(control.close)
    bridge.listen(control.socket)
    log("bridge.ready", socket=place.socket_path, **addresses)
    return name_service


def _tcp_listeners(options: Options, address_before: str) -> list[TcpListener]:
    """The main port and the VIP port; a port the kernel chose for a bridge that was killed is taken again."""
    host, port = parse_address(options.listen, name="listen")
    if port == 0 and address_before:
        with contextlib.suppress(ShmqError):
            return [TcpListener(host, parse_address(address_before)[1])]
    return listen_with_vip(host, port)


def _raise_descriptor_limit(wanted: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
