"""The process of a broker whose master is elected: it ships the log to slaves, copies the leader's, and elects.

    event loop          slaves and their reports; `shmq cluster`; links.json twice a second
    elector's thread    the election, and what it does to this broker (station.py)
    following           copies the leader's log

It ends, and is started again, when the segments are given up; and when it can take no part in the election any more,
because then it may not take messages either. SIGTERM hands over first, or leaves the set of those in sync.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time

import msgspec

from shmq.addresses import parse_address
from shmq.daemon.bridge.event_loop import run_loop, stop_event
from shmq.daemon.bridge.sockets.tcp_listener import TcpListener
from shmq.daemon.bridge.store.tables import StoreTables
from shmq.daemon.event_log import EventLog
from shmq.daemon.ha.elected.counting import ElectedCounting
from shmq.daemon.ha.elected.station import Station
from shmq.daemon.ha.elected.switch import ElectedSwitch
from shmq.daemon.ha.election.member import Role, Status
from shmq.daemon.ha.election.policy import RESIGN_MS, Identity, Policy
from shmq.daemon.ha.election.reach import reach_of
from shmq.daemon.ha.elector import Elector
from shmq.daemon.ha.etcd.client import Etcd, EtcdOptions
from shmq.daemon.ha.growth import Growth
from shmq.daemon.ha.leader import LogSpan
from shmq.daemon.ha.log_file import LogFile
from shmq.daemon.ha.meeting import Side
from shmq.daemon.ha.process import open_listener, open_segments, own_side, say_where, warn_of_unproven
from shmq.daemon.ha.shipping import Shipping
from shmq.daemon.ha.slave.following import Elected, Following
from shmq.daemon.ha.slave.kept_commits import KeptCommits
from shmq.daemon.ha.slave.master_state import MasterState
from shmq.daemon.ha.slave.master_tables import MasterTables
from shmq.daemon.ha.switch_socket import SwitchSocket
from shmq.daemon.ha.telling import Telling
from shmq.daemon.ha.trust import Trust, open_trust
from shmq.daemon.switched import Switched
from shmq.daemon.tether import Tether
from shmq.delay_levels import DelayLevels
from shmq.errors import ShmqError
from shmq.exit_code import ExitCode
from shmq.options.broker import Options
from shmq.shm.access import UMASK, access_rights
from shmq.shm.core import Store
from shmq.shm.instance import Instance
from shmq.shm.links import ElectionState
from shmq.shm.place import Place
from shmq.store.layout import StoreLayout
from shmq.store.lineage.epochs import load_epochs
from shmq.store.lineage.standing import load_identity

USER_VARIABLE, PASSWORD_VARIABLE = "SHMQ_ETCD_USER", "SHMQ_ETCD_PASSWORD"
_LOOK_SECONDS = 0.1
_TELL_SECONDS = 0.5
_HAND_OVER_SECONDS = RESIGN_MS / 1000 + 0.5  # the supervisor waits five
_ROLES = {role: role.name.lower() for role in Role}


def run_elected(place: Place, switched: Switched, *, tether: Tether, log: EventLog) -> int:
    """Take part in the election, ship and follow, until SIGTERM or new segments; return the exit status."""
    os.umask(UMASK)
    options = switched.options
    with contextlib.ExitStack() as open_things:
        try:
            etcd = Etcd(_etcd_options(options), options.cluster, options.broker_name)
            open_things.callback(etcd.close)
            listener = open_listener(options, "")
            open_things.callback(listener.close)
            trust = open_trust(options)
            instance, store = open_segments(place, open_things)
            layout = StoreLayout(options.store_path, access_rights())
            me = own_side(options, layout, store)
        except ShmqError as error:
            return tether.failed(error, log, "ha.failed")
        member = ElectedBroker(place, switched, instance, store, me, layout, etcd, log, trust)
        return run_loop(member.serve(listener, tether), log)


def _etcd_options(options: Options) -> EtcdOptions:
    return EtcdOptions(
        options.etcd_endpoints,
        user=os.environ.get(USER_VARIABLE, ""),
        password=os.environ.get(PASSWORD_VARIABLE, ""),
        ca=options.etcd_ca,
        certificate=options.etcd_cert,
        key=options.etcd_key,
    )


class ElectedBroker:
    """One broker of the group; lives inside one event loop."""

    def __init__(
        self,
        place: Place,
        switched: Switched,
        instance: Instance,
        store: Store,
        me: Side,
        layout: StoreLayout,
        etcd: Etcd,
        log: EventLog,
        trust: Trust,
    ) -> None:
        self._trust = trust
        self._place, self._instance, self._store = place, instance, store
        self._me, self._layout, self._log = me, layout, log
        self._options = options = switched.options
        self._is_sync = options.confirms
        self._failed = False
        self._status: Status | None = None
        self._growth = Growth(store)
        self._kept = KeptCommits(StoreTables(store, instance, access_rights()))
        self._station = Station(
            place,
            switched,
            layout,
            store,
            log,
            follower=self._follower,
            say=self._say,
            changed=self._changed,
            ended=self._end_soon,
            failed=self._fail,
        )
        policy = Policy(self._is_sync, options.in_sync_min if self._is_sync else 1)
        self._elector = Elector(Identity(me.store, reach_of(options).text), policy, me.epoch, etcd, self._station)
        self._station.joined, self._station.heard = self._elector.was_cut, self._elector.hears
        counting = ElectedCounting(
            log,
            is_sync=self._is_sync,
            hears=self._elector.hears,
            gone=self._elector.gone,
            in_sync=lambda: self._status.in_sync if self._status is not None else frozenset(),
        )
        self._shipping = Shipping(
            self._span,
            self._growth,
            lambda: LogFile(store),
            trust,
            log,
            counting=counting,
            me=self._side,
        )
        self._telling = Telling(
            place.links_path,
            access_rights(),
            lambda: self._station.role,
            lambda: max(self._station.epoch, self._me.epoch),
            self._shipping.replicas,
            self._master_state,
            log,
            election=self._election,
        )

    async def serve(self, listener: TcpListener, tether: Tether) -> int:
        """Serve until told to stop."""
        self._loop = asyncio.get_running_loop()
        self._ending, stop = asyncio.Event(), stop_event(tether.stopping)
        serving = asyncio.create_task(self._shipping.serve(listener.socket))
        say_where(self._place, str(listener.address), self._log)
        warn_of_unproven(self._options, self._log)
        self._station.rest("it has not been elected yet")
        thread = threading.Thread(target=self._elect, name="elects", daemon=True)
        commands = SwitchSocket(self._place, ElectedSwitch(self._elector, self._store, self._leader_end))
        await commands.open()
        thread.start()
        self._telling.tell(self._store, _now_ms())
        tether.ready()
        try:
            while not (stop.is_set() or self._ending.is_set() or self._store.retired or serving.done()):
                await commands.look(self._log)
                await self._look(stop)
            if stop.is_set() and not self._store.retired:
                self._elector.stop()
                until = time.monotonic() + _HAND_OVER_SECONDS
                while thread.is_alive() and time.monotonic() < until:
                    await asyncio.sleep(_LOOK_SECONDS)
        finally:
            self._elector.end()
            await asyncio.to_thread(thread.join, _HAND_OVER_SECONDS)
            await commands.close()
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)
            self._growth.close()
            if thread.is_alive() or not await asyncio.to_thread(self._station.close):
                os._exit(ExitCode.DONE)  # a thread waits for another host, and would find the store closed
        return ExitCode.UNEXPECTED if self._failed else ExitCode.DONE

    async def _look(self, stop: asyncio.Event) -> None:
        self._log.tick()
        with contextlib.suppress(ShmqError):
            self._status = await asyncio.to_thread(self._elector.status)
        self._telling.tell(self._store, _now_ms())
        waits = [asyncio.ensure_future(event.wait()) for event in (stop, self._ending)]
        await asyncio.wait(waits, timeout=_TELL_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()

    def _elect(self) -> None:
        try:
            self._elector.run()
        except Exception as error:
            self._fail(error)

    # What the station wants, in any thread

    def _follower(self, options: Options, elected: Elected) -> Following:
        own = StoreTables(self._store, self._instance, access_rights())
        tables = MasterTables(parse_address(options.master, name="master"), own, self._kept)
        return Following(
            options.master_ha_address,
            self._store,
            tables,
            DelayLevels(options.delay_levels),
            self._layout,
            self._log,
            me=self._known(),
            elected=elected,
            trust=self._trust,
        )

    def _say(self, store: str, message: bytes) -> None:
        self._loop.call_soon_threadsafe(self._shipping.say, store, message)

    def _changed(self, reason: str) -> None:
        cure = "a slave connects again by itself"
        self._loop.call_soon_threadsafe(self._shipping.end_links, reason, cure)

    def _fail(self, error: Exception) -> None:
        self._failed = True
        self._log("ha.election_failed", reason=f"{type(error).__name__}: {error}")
        self._end_soon()

    def _end_soon(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._ending.set)

    # What the leader and other processes read

    def _span(self) -> LogSpan:
        end = self._store.log_end
        return LogSpan(self._store.log_begin, end, int(self._store.head["file_bytes"]), self._store.confirmed_end)

    def _side(self) -> Side:
        return msgspec.structs.replace(self._known(), leads=self._store.standing == 0)

    def _known(self) -> Side:
        """Return who this broker is, as promotions and leaders have left it."""
        identity, epochs = load_identity(self._layout), load_epochs(self._layout)
        self._me = msgspec.structs.replace(self._me, log=identity.log, epochs=epochs, in_sync_min=identity.inSyncMin)
        return self._me

    def _leader_end(self) -> int:
        return self._station.positions().leader_end

    def _master_state(self) -> MasterState | None:
        following = self._station.following
        return following.state if following is not None else None

    def _election(self) -> ElectionState | None:
        status = self._status
        if status is None:
            return None
        return ElectionState(
            _ROLES[status.role],
            self._me.store,
            status.leader,
            status.leader_address,
            " ".join(sorted(status.in_sync)),
            status.kept_ms_ago,
            status.reason,
            status.why,
        )


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
