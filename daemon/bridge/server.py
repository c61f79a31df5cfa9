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
import importlib
import os
import resource
import signal
import time
from collections.abc import Callable, Coroutine
from typing import Any

from shmq.daemon.bridge.bridge import Bridge
from shmq.daemon.bridge.limits import BridgeLimits
from shmq.daemon.bridge.listener import Listener
from shmq.daemon.bridge.store_tables import StoreTables
from shmq.daemon.bridge.tcp_listener import TcpListener, listen_with_vip
from shmq.daemon.broker.broker import Broker
from shmq.daemon.broker.settings import BrokerSettings
from shmq.daemon.event_log import EventLog
from shmq.daemon.exit_code import DONE, TEMPORARY, exit_code_of
from shmq.daemon.options import Options, parse_address
from shmq.daemon.tether import Tether
from shmq.errors import SegmentError, ShmqError
from shmq.protocol.codes import Request
from shmq.shm.access import access_rights
from shmq.shm.addresses import read_addresses, write_addresses
from shmq.shm.core import Store
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
        _raise_descriptor_limit(limits.connections_max + _DESCRIPTORS_SPARE)
        return _open_and_serve(place, options, limits, log, tether)
    except ShmqError as error:
        log("bridge.failed", reason=str(error), hint=error.hint)
        tether.failed(error)
        return exit_code_of(error)


def _open_and_serve(place: Place, options: Options, limits: BridgeLimits, log: EventLog, tether: Tether) -> int:
    instance = read_instance(place.instance_path)
    if instance is None:
        raise SegmentError(f"{place.instance_path} does not exist: no broker has made segments", hint="shmq serve")
    store = open_store(instance, writable=True, uid=os.geteuid())
    try:
        attach_presence(instance)
        try:
            broker = Broker(
                StoreTables(store, instance, access_rights()),
                _settings(options, instance, store),
                now_ms=time.monotonic_ns() // 1_000_000,
            )
            return _run_loop(_serve(place, options, limits, log, store, broker, tether), log)
        finally:
            detach_presence(instance)
    finally:
        store.close()


def _run_loop(main: Coroutine[Any, Any, int], log: EventLog) -> int:
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        loop = runner.get_loop()
        # Faults in callbacks end their connection; the loop's own report would be many lines a second.
        loop.set_exception_handler(
            lambda _, context: log("loop.error", reason=repr(context.get("exception") or context))
        )
        return runner.run(main)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    """uvloop's event loop where it is installed: the same behaviour in half the time."""
    try:
        factory: Callable[[], asyncio.AbstractEventLoop] = importlib.import_module("uvloop").new_event_loop
    except ImportError:
        return asyncio.new_event_loop
    return factory


def _settings(options: Options, instance: Instance, store: Store) -> BrokerSettings:
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
    )


async def _serve(
    place: Place,
    options: Options,
    limits: BridgeLimits,
    log: EventLog,
    store: Store,
    broker: Broker,
    tether: Tether,
) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    bridge = Bridge(broker, log, limits=limits)
    bridge.tick()  # slots of processes that died while no bridge ran are free before the first client asks
    with contextlib.ExitStack() as open_things:
        open_things.callback(bridge.close)
        _listen(bridge, place, options, log, open_things)
        tether.ready()
        while not stop.is_set():
            bridge.tick()
            if store.retired:
                log("bridge.retired", generation=f"{store.head['generation']:016x}")
                return TEMPORARY
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), limits.tick_interval)
    log("bridge.stopped")
    return DONE


def _listen(bridge: Bridge, place: Place, options: Options, log: EventLog, open_things: contextlib.ExitStack) -> None:
    """Open every door; the control socket comes last, because who sees it may expect the others."""
    access = access_rights()
    addresses: dict[str, str] = {}
    if options.tcp:
        for number, listener in enumerate(_tcp_listeners(place, options)):
            open_things.callback(listener.close)
            bridge.listen(listener.socket, refused=_REFUSED_AT_VIP if number else ())
            addresses.setdefault("broker", str(listener.address))
        open_things.callback(lambda: place.addresses_path.unlink(missing_ok=True))
        write_addresses(place.addresses_path, addresses, mode=access.read_mode, gid=access.gid)
    control = Listener(place.socket_path, mode=access.mode, gid=access.gid)
    open_things.callback(control.close)
    bridge.listen(control.socket)
    log("bridge.ready", socket=place.socket_path, **addresses)


def _tcp_listeners(place: Place, options: Options) -> list[TcpListener]:
    """The main port and the VIP port; a port the kernel chose for a bridge that was killed is taken again."""
    host, port = parse_address(options.listen, name="listen")
    if port == 0 and (before := read_addresses(place.addresses_path).get("broker")):
        with contextlib.suppress(ShmqError):
            return [TcpListener(host, parse_address(before)[1])]
    return listen_with_vip(host, port)


def _raise_descriptor_limit(wanted: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
