"""The process of a broker that has to do with another host: it ships the log to slaves, or copies a master's, or both.

    --ha-listen     slaves connect there, and get the log: shipping.py
    --role sync-master   what they have on their disks is what is acknowledged: confirming.py, in_sync.py
    --role slave    a thread gets the log of the master: following.py

Rules: (1) what waits here for another host delays no sender, because appends do not know that there are slaves;
(2) when the segments are given up it ends, and is started again with the new ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from functools import partial

import msgspec

from shmq.addresses import parse_address
from shmq.daemon.bridge.event_loop import run_loop, stop_event
from shmq.daemon.bridge.sockets.tcp_listener import TcpListener
from shmq.daemon.bridge.store.tables import StoreTables
from shmq.daemon.event_log import EventLog
from shmq.daemon.ha.confirming import Confirming
from shmq.daemon.ha.growth import Growth
from shmq.daemon.ha.leader import LogSpan
from shmq.daemon.ha.log_file import LogFile
from shmq.daemon.ha.meeting import Side
from shmq.daemon.ha.replicas import Replicas
from shmq.daemon.ha.shipping import Shipping
from shmq.daemon.ha.slave.following import Following
from shmq.daemon.ha.slave.master_tables import MasterTables
from shmq.daemon.ha.switch_socket import SwitchSocket
from shmq.daemon.ha.switching import Switching, finish_promotion
from shmq.daemon.ha.telling import Telling
from shmq.daemon.ha.trust import Trust, is_open_unproven, open_trust
from shmq.daemon.switched import Switched
from shmq.daemon.tether import Tether
from shmq.delay_levels import DelayLevels
from shmq.errors import BrokerNotRunning, ShmqError
from shmq.exit_code import ExitCode
from shmq.options.broker import Options
from shmq.shm.access import UMASK, access_rights
from shmq.shm.addresses import HA_ADDRESS, read_addresses, write_addresses
from shmq.shm.core import ReplicaStore, Store
from shmq.shm.instance import Instance, read_instance
from shmq.shm.place import Place
from shmq.shm.presence import attach_presence, detach_presence
from shmq.shm.segment import open_store
from shmq.store.layout import StoreLayout
from shmq.store.lineage.epochs import load_epochs
from shmq.store.lineage.standing import own_identity

_LOOK_SECONDS = 0.5
_ANSWER_SECONDS = 0.05  # for the answer to a switch to leave
_STOP_SECONDS = 3.0  # the supervisor waits five


def run_replication(place: Place, switched: Switched, *, tether: Tether, log: EventLog) -> int:
    """Ship, follow, or both, until SIGTERM or a switch; return the exit status."""
    os.umask(UMASK)
    options = switched.options
    layout = StoreLayout(options.store_path, access_rights())
    with contextlib.ExitStack() as open_things:
        try:
            listener = (
                open_listener(options, read_addresses(place.ha_path).get(HA_ADDRESS, "")) if options.ha_listen else None
            )
            if listener is not None:
                open_things.callback(listener.close)
            trust = open_trust(options)
            instance, store = open_segments(place, open_things)
            if switched.epoch and not store.retired:
                finish_promotion(layout, store, switched.epoch, confirms=options.is_sync_master)  # mostly it was
            me = own_side(options, layout, store)
            own_port = listener.address.port if listener is not None else 0
            following = (
                _Follower(options, instance, store, me, layout, log, trust, own_port) if options.is_slave else None
            )
            if following is not None:
                open_things.callback(following.end)
        except ShmqError as error:
            return tether.failed(error, log, "ha.failed")
        return run_loop(_serve(place, switched, listener, store, me, layout, following, tether, log, trust), log)


def open_segments(place: Place, open_things: contextlib.ExitStack) -> tuple[Instance, Store]:
    """Map the broker's segments until `open_things` are closed; raises ShmqError."""
    instance = read_instance(place.instance_path)
    if instance is None:
        raise BrokerNotRunning(f"{place.instance_path} names no segments", hint="start the broker: shmq serve")
    store = open_store(instance, writable=True, uid=os.geteuid())
    open_things.callback(store.close)
    attach_presence(instance)
    open_things.callback(detach_presence, instance)
    return instance, store


def open_listener(options: Options, address_before: str) -> TcpListener:
    """Listen for slaves, at the port of before where any will do; raises ShmqError."""
    host, port = parse_address(options.ha_listen, name="ha_listen")
    if port == 0 and address_before:
        with contextlib.suppress(ShmqError):
            return TcpListener(host, parse_address(address_before)[1])
    return TcpListener(host, port)


def warn_of_unproven(options: Options, log: EventLog) -> None:
    """Say it where slaves on other hosts can connect without proving who they are."""
    if is_open_unproven(options):
        log(
            "ha.unproven",
            address=options.ha_listen,
            reason="no slave and no master proves who it is on this link",
            hint="--ha-secret-file FILE on both hosts",
        )


def own_side(options: Options, layout: StoreLayout, store: Store) -> Side:
    """The identity of this broker, as others see it."""
    in_sync_min = options.in_sync_min if options.confirms else 0
    is_following = options.is_slave and not options.etcd
    identity = own_identity(layout, makes_log=not options.is_slave, in_sync_min=None if is_following else in_sync_min)
    return Side(
        cluster=options.cluster,
        broker=options.broker_name,
        store=identity.store,
        log=identity.log,
        file_bytes=int(store.head["file_bytes"]),
        epochs=load_epochs(layout),
        in_sync_min=identity.inSyncMin,
    )


class _Follower:
    """The thread that follows; not started yet. It is stopped, and waited for, before the store is closed."""

    def __init__(
        self,
        options: Options,
        instance: Instance,
        store: Store,
        me: Side,
        layout: StoreLayout,
        log: EventLog,
        trust: Trust,
        own_port: int,
    ) -> None:
        address, own = parse_address(options.master, name="master"), StoreTables(store, instance, access_rights())
        self._tables = MasterTables(address, own)
        self.last_tables = MasterTables(address, own)  # for when the thread has ended
        levels = DelayLevels(options.delay_levels)
        self.following = Following(
            options.master_ha_address, store, self._tables, levels, layout, log, me=me, trust=trust, own_port=own_port
        )
        self.thread = threading.Thread(target=self.following.run, name="following", daemon=True)

    def stop(self) -> None:
        """Let it end; what it still has in hand the core refuses once the log is a master's."""
        self.following.stopping.set()
        if self.thread.ident is not None:
            self.thread.join(_STOP_SECONDS)
        self._tables.end()  # it may wait for a master that stands still, and be answered later

    def note_known_pops(self) -> None:
        """Note for the next master behind which pops the progress is not known here."""
        max(self._tables, self.last_tables, key=lambda tables: tables.known_end).note_known_pops()

    @property
    def is_dead(self) -> bool:
        """Whether it ended without being stopped."""
        return not self.thread.is_alive() and not self.following.stopping.is_set()

    def end(self) -> None:
        """Before the store is closed."""
        self.stop()
        if self.thread.is_alive():
            os._exit(ExitCode.DONE)  # it waits for the master, and would find the store closed


async def _serve(
    place: Place,
    switched: Switched,
    listener: TcpListener | None,
    store: Store,
    me: Side,
    layout: StoreLayout,
    follower: _Follower | None,
    tether: Tether,
    log: EventLog,
    trust: Trust,
) -> int:
    stop, options = stop_event(tether.stopping), switched.options
    state = follower.following.state if follower is not None else None
    replicas: Replicas | None = None
    switching = Switching(
        place,
        switched,
        layout,
        store,
        log,
        stop_following=follower.stop if follower is not None else _nothing,
        copy_offsets=follower.last_tables.copy_offsets if follower is not None else _nothing,
        note_known_pops=follower.note_known_pops if follower is not None else _nothing,
        master=state,
        slowest_slave=lambda: replicas.slowest() if replicas is not None else None,
        ended=partial(_soon, asyncio.get_running_loop(), stop),
        trust=trust,
        me=me,
    )
    commands = SwitchSocket(place, switching)
    serving: asyncio.Task[None] | None = None
    if listener is not None:
        growth = Growth(store)
        shipping = _shipping(options, store, growth, me, log, trust)
        replicas = shipping.replicas
        serving = asyncio.create_task(shipping.serve(listener.socket))
        say_where(place, str(listener.address), log)
    epoch = (lambda: follower.following.epoch) if follower is not None else (lambda: me.epoch)
    telling = Telling(place.links_path, access_rights(), lambda: options.role, epoch, replicas, lambda: state, log)
    await commands.open()
    if follower is not None:
        follower.thread.start()
    telling.tell(store, _now_ms())
    tether.ready()
    try:
        while not stop.is_set() and not store.retired and (serving is None or not serving.done()):
            if follower is not None and follower.is_dead:
                break
            log.tick()
            await commands.look(log)
            telling.tell(store, _now_ms())
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), _LOOK_SECONDS)
    finally:
        await commands.close()
        if serving is not None:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)
            growth.close()
    return ExitCode.DONE


def say_where(place: Place, address: str, log: EventLog) -> None:
    """Write down where slaves get the log."""
    access = access_rights()
    write_addresses(place.ha_path, {HA_ADDRESS: address}, mode=access.read_mode, gid=access.gid)
    log("ha.listens", address=address)


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000


def _soon(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
    """End, once the answer to a switch has left; from any thread."""
    loop.call_soon_threadsafe(loop.call_later, _ANSWER_SECONDS, stop.set)


def _nothing() -> None:
    """The default where no thread follows."""


def _shipping(options: Options, store: Store, growth: Growth, me: Side, log: EventLog, trust: Trust) -> Shipping:
    warn_of_unproven(options, log)
    file_bytes = int(store.head["file_bytes"])
    layout = StoreLayout(options.store_path, access_rights())

    def span() -> LogSpan:
        # The end first: what retention takes meanwhile makes the span shorter, never longer than it is.
        end = store.log_end
        return LogSpan(store.log_begin, end, file_bytes, store.confirmed_end)

    def side() -> Side:
        if options.is_slave:  # its epochs are its master's
            return msgspec.structs.replace(me, epochs=load_epochs(layout))
        return msgspec.structs.replace(me, leads=store.standing == 0)

    def replaced(epoch: int) -> None:
        if store.standing == 0:
            ReplicaStore(store).fence_off("", 0.0)
            log("ha.replaced", epoch=epoch, reason="a slave follows a newer master; nothing is stored here any more")

    confirming = Confirming(store, options.in_sync_min, log) if options.is_sync_master else None
    return Shipping(span, growth, lambda: LogFile(store), trust, log, counting=confirming, me=side, replaced=replaced)
