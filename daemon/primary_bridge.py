"""The primary bridge process: control socket, TCP ports and name server, until its supervisor stops it.

`run_bridge` opens everything in the order below and closes it in the opposite one.

    segments open -> broker -> listen (TCP, then the socket appears: ready) -> serve -> SIGTERM -> socket gone -> end
                                                                       |
                                                                       +-> segments retired: end, to be started again

A failure is one line in the log and a status that says what kind it was.
"""

import contextlib
import time
from dataclasses import replace
from functools import partial

from shmq.addresses import parse_address
from shmq.daemon.bridge.bridge import Bridge
from shmq.daemon.bridge.event_loop import run_loop, stop_event
from shmq.daemon.bridge.limits import BridgeLimits
from shmq.daemon.bridge.sockets.tcp_listener import TcpListener, listen_with_vip
from shmq.daemon.bridge.sockets.unix_listener import Listener
from shmq.daemon.bridge.store.index import StoreIndex
from shmq.daemon.bridge.surroundings import (
    Surroundings,
    bridge_of,
    listen_on_tcp,
    open_surroundings,
    run_guarded,
    serve_until_stopped,
    watch_log,
)
from shmq.daemon.broker.broker import Broker
from shmq.daemon.event_log import EventLog
from shmq.daemon.nameserver.service import NameService, start_name_service
from shmq.daemon.tether import Tether
from shmq.errors import ShmqError, StoreError
from shmq.options.broker import Options
from shmq.protocol.roster import roster_text
from shmq.shm.access import access_rights
from shmq.shm.addresses import read_addresses, write_addresses
from shmq.shm.core import READ_ONLY_FENCED
from shmq.shm.place import Place
from shmq.shm.replacing import remove_file, replace_text


def run_bridge(
    place: Place,
    options: Options,
    *,
    limits: BridgeLimits | None = None,
    tether: Tether | None = None,
    log: EventLog | None = None,
) -> int:
    """Serve the control socket and the TCP ports of a broker until SIGTERM; return the exit status.

    The segments must exist: `place.instance_path` describes them. The socket appears when requests are served.

    Args:
        tether: told that the bridge serves, or why it cannot.
    """
    tether = tether or Tether()
    log = log or EventLog("bridge", options.log_format)
    before = read_addresses(place.addresses_path)

    def serve(limits: BridgeLimits, open_things: contextlib.ExitStack) -> int:
        if options.bridges > 1:  # every connection of the others may need one here
            passed_on = limits.tcp_connections_max * (options.bridges - 1)
            limits = replace(limits, connections_max=limits.connections_max + passed_on)
        around = open_surroundings(
            place,
            options,
            limits,
            log,
            open_things,
            listen=lambda: _tcp_listeners(options, before.get("broker", "")) if options.tcp else [],
        )
        index = StoreIndex(around.store, around.instance, access_rights())
        open_things.callback(index.close)
        broker = Broker(
            around.tables,
            around.settings,
            now_ms=time.monotonic_ns() // 1_000_000,
            log=around.store_log,
            index=index,
            admission=around.security.admission,
            figures=around.figures,
        )
        return run_loop(_serve(around, broker, before.get("nameserver", ""), tether), log)

    return run_guarded(options, limits, log, tether, serve)


async def _serve(around: Surroundings, broker: Broker, nameserver_before: str, tether: Tether) -> int:
    stop = stop_event(tether.stopping)
    bridge = bridge_of(around, broker)
    bridge.tick()  # slots of processes that died while no bridge ran are free before the first client asks
    with contextlib.ExitStack() as open_things:
        open_things.callback(bridge.close)
        watch_log(around, bridge, broker, open_things)  # local members wait here too: for a pop, for the disk
        name_service = None
        if around.listeners:
            name_service = await _listen_for_clients(around, bridge, nameserver_before, open_things)
        control = _listen_for_processes(around, bridge, open_things)
        tether.ready()

        def tick() -> None:
            bridge.tick()
            if (before := control.look(around.log)) is not None:
                bridge.listen_instead(before, control.socket)
                before.close()
            _publish_roster(around, broker)
            if name_service is not None:
                name_service.tick()

        return await serve_until_stopped(around, tick, stop)


def _is_fenced(around: Surroundings) -> bool:
    return not around.options.is_slave and around.store.standing == READ_ONLY_FENCED


async def _listen_for_clients(
    around: Surroundings, bridge: Bridge, nameserver_before: str, open_things: contextlib.ExitStack
) -> NameService:
    """Open the TCP ports, and make them known."""
    listen_on_tcp(around, bridge)
    broker = around.listeners[0].address
    name_service = start_name_service(
        around.options,
        around.tables,
        around.log,
        broker=broker,
        address_before=nameserver_before,
        limits=around.limits,
        security=bridge.security,
        is_fenced=partial(_is_fenced, around),
    )
    open_things.callback(name_service.close)
    if name_service.registration is not None:
        bridge.wait_for_routes(name_service.registration)
    await name_service.wait_until_registered()
    path, access = around.place.addresses_path, access_rights()
    open_things.callback(lambda: remove_file(path))
    addresses = {"broker": str(broker)} | name_service.addresses
    write_addresses(path, addresses, mode=access.read_mode, gid=access.gid)
    around.log("bridge.listens", **addresses)
    return name_service


def _listen_for_processes(around: Surroundings, bridge: Bridge, open_things: contextlib.ExitStack) -> Listener:
    """Open the control socket; it comes last, because who sees it may expect the rest."""
    path, access = around.place.socket_path, access_rights()
    control = Listener(path, mode=access.mode, gid=access.gid)
    open_things.callback(control.close)
    bridge.listen(control.socket)
    around.log("bridge.ready", socket=path, generation=f"{around.settings.generation:016x}")
    return control


def _publish_roster(around: Surroundings, broker: Broker) -> None:
    """Say who is connected where it can be read while we are stopped, hung or dead."""
    roster = broker.roster(time.monotonic_ns() // 1_000_000, around.security.state)
    if roster is not None:
        access = access_rights()
        try:
            replace_text(around.place.roster_path, roster_text(roster), mode=access.read_mode, gid=access.gid)
        except StoreError as error:
            around.log("roster.not_written", reason=str(error))


def _tcp_listeners(options: Options, address_before: str) -> list[TcpListener]:
    """The main port and the VIP port; a port the kernel chose for a bridge that was killed is taken again."""
    host, port = parse_address(options.listen, name="listen")
    is_shared = options.bridges > 1
    if port == 0 and address_before:
        with contextlib.suppress(ShmqError):
            return [TcpListener(host, parse_address(address_before)[1], is_shared=is_shared)]
    if is_shared and not address_before:
        # A shared port lets any process of our user in; none may be there before the first of ours.
        for listener in listen_with_vip(host, port):
            listener.close()
    return listen_with_vip(host, port, is_shared=is_shared)
