"""A bridge process beside the primary one: the same TCP ports, for sends, pulls and offsets.

What its logic does not serve itself goes to the primary bridge. That one must have been ready before, so that the ports
are known.
"""

import asyncio
import contextlib
from functools import partial

from shmq.addresses import parse_address
from shmq.daemon.bridge.event_loop import run_loop, stop_event
from shmq.daemon.bridge.group_link import GroupLink
from shmq.daemon.bridge.limits import BridgeLimits
from shmq.daemon.bridge.sockets.tcp_listener import TcpListener, listen_with_vip
from shmq.daemon.bridge.surroundings import (
    Surroundings,
    bridge_of,
    listen_on_tcp,
    open_surroundings,
    run_guarded,
    serve_until_stopped,
    watch_log,
)
from shmq.daemon.bridge.upstream import Upstreams
from shmq.daemon.broker.clients.relays import RelayedGroups
from shmq.daemon.broker.worker import WorkerLogic
from shmq.daemon.event_log import EventLog
from shmq.daemon.tether import Tether
from shmq.errors import BrokerNotRunning
from shmq.options.broker import Options
from shmq.shm.addresses import read_addresses
from shmq.shm.place import Place


def run_worker(
    place: Place,
    options: Options,
    number: int,
    *,
    limits: BridgeLimits | None = None,
    tether: Tether | None = None,
    log: EventLog | None = None,
) -> int:
    """Serve the TCP ports of a broker, beside its primary bridge, until SIGTERM; return the exit status.

    Args:
        number: which of the bridges this is; the primary one is 0.
        tether: told that the bridge serves, or why it cannot.
    """
    tether = tether or Tether()
    log = log or EventLog(f"bridge-{number}", options.log_format)

    def serve(limits: BridgeLimits, open_things: contextlib.ExitStack) -> int:
        listen = partial(_tcp_listeners, place, options)
        around = open_surroundings(place, options, limits, log, open_things, listen=listen, number=number)
        return run_loop(_serve(around, tether), log)

    return run_guarded(options, limits, log, tether, serve)


async def _serve(around: Surroundings, tether: Tether) -> int:
    stop = stop_event(tether.stopping)
    groups = RelayedGroups()
    logic = WorkerLogic(around.tables, around.store_log, around.settings, groups, admission=around.security.admission)
    upstreams = Upstreams(around.place.socket_path)
    bridge = bridge_of(around, logic, upstreams)
    link = GroupLink(around.place.socket_path, groups, around.settings, renewed=upstreams.tell_again)
    with contextlib.ExitStack() as open_things:
        open_things.callback(link.close)
        open_things.callback(upstreams.close)
        open_things.callback(bridge.close)
        await _first(stop, link.linked)
        watch_log(around, bridge, logic, open_things)
        listen_on_tcp(around, bridge)
        around.log("bridge.ready", broker=around.listeners[0].address)
        tether.ready()
        return await serve_until_stopped(around, bridge.tick, stop)


async def _first(*events: asyncio.Event) -> None:
    """Wait until one of them is set."""
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()


def _tcp_listeners(place: Place, options: Options) -> list[TcpListener]:
    """The ports of the primary bridge."""
    address = read_addresses(place.addresses_path).get("broker")
    if address is None:
        raise BrokerNotRunning(f"{place.addresses_path} does not say where the primary bridge listens")
    host, port = parse_address(options.listen, name="listen")
    if port == 0:
        return [TcpListener(host, parse_address(address)[1], is_shared=True)]
    return listen_with_vip(host, port, is_shared=True)
