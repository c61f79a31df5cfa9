"""Opens what every bridge process needs: segments, log, settings, security and TCP ports; and waits for its end.

Both kinds of bridge, primary and worker, are made of these parts; `open_surroundings` opens them in order and an exit
stack closes them in the opposite one.

    segments -> presence -> TCP ports -> tables, log, settings -> (logic) -> log watch -> serve -> SIGTERM
                                                                               |
                                                                               +-> segments retired: to be started again
"""

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from shmq.addresses import Address, parse_address
from shmq.daemon.bridge.bridge import Bridge
from shmq.daemon.bridge.figures import BridgeFigures
from shmq.daemon.bridge.limits import BridgeLimits, limits_of
from shmq.daemon.bridge.logic import Logic
from shmq.daemon.bridge.pull_path import Plans, PullPath
from shmq.daemon.bridge.send_path import SendPath
from shmq.daemon.bridge.sockets.security import Security, open_security
from shmq.daemon.bridge.sockets.tcp_listener import TcpListener
from shmq.daemon.bridge.store.durable_news import DurableNews
from shmq.daemon.bridge.store.log import StoreLog, outcome_of
from shmq.daemon.bridge.store.log_watch import LogWatch
from shmq.daemon.bridge.store.parting import find_parting
from shmq.daemon.bridge.store.tables import StoreTables
from shmq.daemon.bridge.upstream import Upstreams
from shmq.daemon.broker.log import Wanted
from shmq.daemon.broker.records.message_id import host_bytes
from shmq.daemon.broker.settings import BrokerSettings, Parting
from shmq.daemon.counters import own_counters
from shmq.daemon.event_log import EventLog
from shmq.daemon.tether import Tether
from shmq.errors import SegmentError, ShmqError
from shmq.exit_code import ExitCode
from shmq.options.broker import Options
from shmq.protocol.codes import Request, Role
from shmq.shm.access import UMASK, access_rights
from shmq.shm.core import (
    ACK_CONFIRMED,
    READ_ONLY_FILES_LOST,
    READ_ONLY_FLUSH_FAILED,
    BrokerLog,
    BrokerTables,
    Store,
    process_start,
)
from shmq.shm.counters import BRIDGE
from shmq.shm.instance import Instance, read_instance, store_identity
from shmq.shm.place import Place
from shmq.shm.presence import attach_presence, detach_presence
from shmq.shm.segment import open_store
from shmq.store.layout import StoreLayout
from shmq.store.lineage.epochs import load_epochs
from shmq.version import __version__

_IPV4_HOST_BYTES = 8
_REFUSED_AT_VIP = (Request.PULL_MESSAGE, Request.LITE_PULL_MESSAGE)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a bridge process is made of."""

    place: Place
    options: Options
    limits: BridgeLimits
    log: EventLog
    instance: Instance
    store: Store
    tables: StoreTables
    store_log: StoreLog
    settings: BrokerSettings
    listeners: list[TcpListener]
    security: Security
    sends: SendPath
    figures: BridgeFigures


class WaitingLogic(Logic, Protocol):
    """The logic of a bridge: it waits for the log, and knows what pulls that repeat get."""

    @property
    def plans(self) -> Plans:
        """What pulls that repeat get."""

    @property
    def wanted(self) -> Wanted:
        """What waiting requests wait for in the log; the caller watches it from now on."""

    @property
    def wanted_version(self) -> object:
        """A value that differs when `wanted` does, and costs less."""


def run_guarded(
    options: Options,
    limits: BridgeLimits | None,
    log: EventLog,
    tether: Tether,
    serve: Callable[[BridgeLimits, contextlib.ExitStack], int],
) -> int:
    """Run a bridge process and return its exit status; a failure is one line in the log, and told to the tether."""
    try:
        os.umask(UMASK)
        with contextlib.ExitStack() as open_things:
            return serve(limits or limits_of(options), open_things)
    except ShmqError as error:
        return tether.failed(error, log, "bridge.failed")


def open_surroundings(
    place: Place,
    options: Options,
    limits: BridgeLimits,
    log: EventLog,
    open_things: contextlib.ExitStack,
    *,
    listen: Callable[[], list[TcpListener]],
    number: int = 0,
) -> Surroundings:
    """Open everything; `open_things` closes it.

    Args:
        listen: makes the TCP listeners, the main one first.
        number: which of the bridges this is; the primary one is 0.

    Raises:
        ShmqError: there are no segments, a port is taken, or what protects the ports cannot be used.
    """
    security = open_security(options, log)
    instance = read_instance(place.instance_path)
    if instance is None:
        raise SegmentError(f"{place.instance_path} does not exist: no broker has made segments", hint="shmq serve")
    store = open_store(instance, writable=True, uid=os.geteuid())
    open_things.callback(store.close)
    attach_presence(instance)
    open_things.callback(detach_presence, instance)
    listeners = listen()
    for listener in listeners:
        open_things.callback(listener.close)
    tables = StoreTables(store, instance, access_rights(), place)
    settings = _settings(options, instance, store, listeners)
    _set_store_host(store, settings, listeners)
    store_log = StoreLog(store, report=lambda text: log("log.damaged", text=text))
    sends = SendPath(store_log, settings)
    figures = BridgeFigures(own_counters(instance, BRIDGE + number, log))
    return Surroundings(
        place, options, limits, log, instance, store, tables, store_log, settings, listeners, security, sends, figures
    )


def _settings(options: Options, instance: Instance, store: Store, listeners: list[TcpListener]) -> BrokerSettings:
    advertised = None
    if options.advertise and listeners:
        advertised = Address(*parse_address(options.advertise, name="advertise", port=listeners[0].address.port))
    in_force, origins = _in_force(options)
    return BrokerSettings(
        options=in_force,
        origins=origins,
        broker_name=instance.broker_name,
        version=__version__,
        abi=instance.abi,
        generation=instance.generation,
        pid_namespace=instance.pid_namespace,
        instance=instance.to_object(),
        auto_create=options.auto_create and not options.is_slave,
        broker_id=options.broker_id,
        is_slave=options.is_slave,
        slave_reads_bytes=options.slave_reads_bytes,
        default_queues=options.default_queues,
        wait_durable=bool(store.head["flush_sync"]),
        confirms=store.head["ack_rule"] == ACK_CONFIRMED,
        parting=_parting(options, store),
        delay_levels=options.delay_levels,
        timer_max_delay_seconds=options.timer_max_delay_seconds,
        retention_hours=options.retention_hours,
        movable_clock=options.clock != "host",
        uses_tls=options.tls_mode != "disabled",
        cluster=options.cluster,
        store_identity=store_identity(instance),
        serves_tcp=bool(listeners),
        advertised=advertised,
    )


def _parting(options: Options, store: Store) -> Parting | None:
    """Return from where on clients may have read another log; a sync-master may have been alone with the end of its."""
    if options.is_slave:
        return None
    epochs = load_epochs(StoreLayout(options.store_path, access_rights()))
    return find_parting(store, epochs, now_ms=time.time_ns() // 1_000_000)


def _in_force(options: Options) -> tuple[dict[str, Any], dict[str, str]]:
    """Return what the options have come to, and where it comes from."""
    in_force, origins = asdict(options), dict(options.origins)
    del in_force["origins"]
    in_force |= {"store": str(options.store_path), "runtime_dir": str(options.place.runtime_dir)}
    by_role = {
        "flush": "sync" if options.flush_sync else "async",
        "auto_create": options.auto_create and not options.is_slave,
    }
    for name, value in by_role.items():
        if in_force[name] != value:
            in_force[name], origins[name] = value, f"the role {options.role}"
    return in_force, origins


def _set_store_host(store: Store, settings: BrokerSettings, listeners: list[TcpListener]) -> None:
    """Let records say where the broker is reached: tools read it out of a message and connect there."""
    if listeners:
        host = host_bytes(settings.advertised or listeners[0].address)
        if len(host) == _IPV4_HOST_BYTES and host != store.head["store_host"]:
            BrokerTables(store).set_store_host(host)


def bridge_of(around: Surroundings, logic: WaitingLogic, upstreams: Upstreams | None = None) -> Bridge:
    """Return the bridge in front of a logic."""
    return Bridge(
        logic,
        around.log,
        limits=around.limits,
        security=around.security,
        sends=around.sends,
        pulls=PullPath(around.store, logic.plans, around.security.admission),
        upstreams=upstreams,
        figures=around.figures,
        standing_clock=around.tables.standing_clock,
    )


def watch_log(around: Surroundings, bridge: Bridge, logic: WaitingLogic, open_things: contextlib.ExitStack) -> None:
    """Let appends of other processes, and flushes, reach those who wait for them in the logic."""
    store, tables = around.store, around.tables
    pid = os.getpid()
    slot = tables.client_put(pid, process_start(pid), Role.BOTH)
    open_things.callback(tables.client_drop, slot)
    store.use_client(slot, tables.client_generation(slot))

    def news(queues: Sequence[int]) -> None:
        bridge.arrived(queues)
        bridge.flushed(store.safe_end)
        bridge.settle()

    watch = LogWatch(
        store,
        BrokerLog(store),
        news=news,
        failed=lambda error: around.log("log.unwatched", reason=str(error), hint=error.hint),
    )
    open_things.callback(watch.close)
    disk = DurableNews(store, lambda: _tell_of_disk(store, bridge))
    open_things.callback(disk.close)
    bridge.call_to_want(disk.want, lambda end: outcome_of(store, end))
    bridge.call_when_settled(lambda: watch.publish(logic.wanted), version=lambda: logic.wanted_version)


def _tell_of_disk(store: Store, bridge: Bridge) -> None:
    bridge.flushed(store.safe_end)
    if store.read_only in (READ_ONLY_FLUSH_FAILED, READ_ONLY_FILES_LOST):
        bridge.flush_failed()


def listen_on_tcp(around: Surroundings, bridge: Bridge) -> None:
    """Accept from the TCP listeners."""
    for number, listener in enumerate(around.listeners):
        bridge.listen(listener.socket, refused=_REFUSED_AT_VIP if number else ())


async def serve_until_stopped(around: Surroundings, tick: Callable[[], None], stop: asyncio.Event) -> int:
    """Look at the clock about once a second until the end; return the exit status."""
    store, log = around.store, around.log
    while not stop.is_set():
        tick()
        log.tick()
        store.forget_pages()
        if store.retired:
            log("bridge.retired", generation=f"{store.head['generation']:016x}")
            return ExitCode.TEMPORARY
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), around.limits.tick_interval)
    log("bridge.stopped")
    return ExitCode.DONE
