"""The switch by hand, at the broker that is switched. Only its replication process does this.

    promote, at a slave        is the master alive? · stop following · flush · note of the role · epoch file · offsets
                               that are ahead of the log fall · the core takes records (shmq_lead) · bridges start
                               again: as after a kill they make timers, transactions and POP from log and offsets
    demote, at a master        the core takes none (shmq_fence_off) · note of the role · slaves get the rest · the
                               segments are given up: the keeper makes new ones over renewed files, which follow; where
                               the logs part is found when both meet

    the master, seen from a slave            promote
    takes messages                           is refused
    takes none, has more than is here        waits for it, then is refused
    takes none, and nothing that is missing  is done
    answers nothing, was heard of before     waits as long as a demoted one takes to start again, then is done
    answers nothing, was never heard of      is refused: what it has, and its epoch, are unknown here

    the broker that is named, seen from a master     demote
    ships its log to this host                       is done
    listens, and says nothing yet                    is done: a stock one is slow to speak, and one of ours stands still
    ships none, or refuses this host                 waits as long as one takes to start again, then is refused

Rules: (1) the note comes before the epoch and the epoch before the first record of it: a process that finds a note
carries it out (`finish_promotion`); without the note a broker goes on as what it was; (2) what is refused
can be forced, and says what may be lost; (3) an epoch is above each that this slave or its master knows. Where
neither is known, it leaves out one number: that of the promotion that made a master of the other.
"""

from __future__ import annotations

import contextlib
import signal
import socket
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from shmq.addresses import parse_address
from shmq.daemon.event_log import EventLog
from shmq.daemon.ha.meeting import Side, read_side
from shmq.daemon.ha.proving import prove_to_master
from shmq.daemon.ha.slave.master_state import MasterState
from shmq.daemon.ha.stream import GREETING, REFUSAL, FrameReader, pack_report, read_refusal
from shmq.daemon.ha.trust import Trust
from shmq.daemon.switched import Switched
from shmq.errors import ProtocolError, ShmqError, StoreError, UsageError
from shmq.options.broker import Options
from shmq.shm.core import ACK_CONFIRMED, READ_ONLY_FOLLOWER, KeeperStore, ReplicaStore, Store
from shmq.shm.instance import read_instance
from shmq.shm.liveness import is_alive, signal_proven
from shmq.shm.place import Place
from shmq.store.atomic import sync_directory
from shmq.store.layout import StoreLayout
from shmq.store.lineage.cutting import met_epoch, withdraw_wishes
from shmq.store.lineage.epochs import EPOCH_MAX, Epoch, load_epochs, store_epochs, with_epoch
from shmq.store.lineage.standing import Role, load_identity, store_role
from shmq.store.tables import LoweredOffset, lower_offsets

_PROBE_SECONDS = 1.5
_RESTART_SECONDS = 8.0
_CATCH_UP_SECONDS = 8.0
_FENCE_SECONDS = 0.5
_BRIDGE_SECONDS = 3.0
_LOOK_SECONDS = 0.005
_ASK_SECONDS = 0.2
_READ_BYTES = 1 << 16


class Request(msgspec.Struct, frozen=True):
    """What `shmq cluster` asks for."""

    verb: str
    force: bool = False
    master: str = ""
    master_ha: str = ""


class _Seen(NamedTuple):
    """The master, as far as can be seen from here."""

    is_there: bool
    leads: bool  # it takes messages
    end: int  # of its log
    epoch: int  # its newest; 0: it did not say


class SilentError(TimeoutError):
    """A replication port that listens has said nothing in time."""

    def __init__(self, message: str) -> None:
        super().__init__(message)


class Switching:
    """The switches of one broker.

    Args:
        store: mapped writable.
        stop_following: ends the thread that follows; of a slave.
        copy_offsets: asks the master how far groups are; of a slave.
        note_known_pops: notes behind which pops that is not known.
        master: what this slave's thread knows of it; None of a master.
        slowest_slave: up to where the slowest connected slave has the log; None: there is none.
        ended: called when this process has to start again with the new role.
        trust, me: with whom this slave's master is asked as the slave asks it.
    """

    def __init__(
        self,
        place: Place,
        switched: Switched,
        layout: StoreLayout,
        store: Store,
        log: EventLog,
        *,
        stop_following: Callable[[], None],
        copy_offsets: Callable[[], None],
        note_known_pops: Callable[[], None],
        master: MasterState | None,
        slowest_slave: Callable[[], int | None],
        ended: Callable[[], None],
        trust: Trust,
        me: Side,
    ) -> None:
        self._trust, self._me = trust, me
        self._place = place
        self._switched = switched
        self._options = switched.options
        self._layout = layout
        self._store = store
        self._replica = ReplicaStore(store)
        self._log = log
        self._stop_following = stop_following
        self._copy_offsets, self._note_known_pops = copy_offsets, note_known_pops
        self._master = master
        self._slowest_slave = slowest_slave
        self._ended = ended

    def answer(self, request: Request) -> dict[str, Any]:
        """Do what is asked for.

        Raises:
            ShmqError: it cannot be, or is refused.
        """
        if request.verb == "promote":
            return self.promote(force=request.force)
        if request.verb == "demote":
            return self.demote(request.master, request.master_ha, force=request.force)
        raise UsageError(f"{request.verb[:32]!r} is no switch", hint="shmq cluster --help")

    def promote(self, *, force: bool) -> dict[str, Any]:
        """Make this slave the master."""
        if self._master is None:
            raise UsageError("this broker is the master already", hint="shmq health says what it is")
        began = time.monotonic()
        master = self._look_at_master(self._master, force=force)
        was_heard_of = self._master.heard_ms is not None
        if not force:
            self._refuse_unknown(master, was_heard_of=was_heard_of)
            self._refuse_beside(master)
        in_sync_min = self._in_sync_min(force=force)
        self._stop_following()
        try:
            facts = self._take_over(master, in_sync_min, was_heard_of=was_heard_of)
        except Exception:
            self._ended()  # and follow again; or end the promotion, where it was noted
            raise
        facts |= {"forced": master.leads or (force and not was_heard_of), "seconds": round(time.monotonic() - began, 3)}
        self._log("ha.promoted", **facts)
        self._ended()
        return {**facts, "old_master": self._options.master}

    def _take_over(self, master: _Seen, in_sync_min: int, *, was_heard_of: bool) -> dict[str, Any]:
        """Lead from the log's end on, now that no master is followed."""
        if master.is_there:
            with contextlib.suppress(OSError, ShmqError):  # else some messages are read twice
                self._copy_offsets()
        missing = max(0, master.end - self._store.log_end)
        self._note_known_pops()
        KeeperStore(self._store).flush()
        epochs = load_epochs(self._layout)
        met = met_epoch(self._layout)  # of a master whose log parted from this one, which then has fewer epochs
        known = max(epochs[-1].number, self._store.epoch, master.epoch, met)
        epoch = known + (1 if was_heard_of or master.epoch else 2)
        if epoch > EPOCH_MAX:
            raise StoreError(
                f"no epoch is left: the last one is {EPOCH_MAX}",
                hint="promote a host whose epoch is lower: shmq cluster status",
            )
        role = "sync-master" if in_sync_min else "master"
        withdraw_wishes(self._layout)
        store_role(self._layout, Role(self._switched.configured, role, epoch=epoch, inSyncMin=in_sync_min))
        confirms = in_sync_min > 0
        for topic, group, was, now in finish_promotion(self._layout, self._store, epoch, confirms=confirms):
            self._log("ha.offset_lowered", topic=topic, group=group, was=was, now=now)
        if not self._store.retired:
            self._restart_bridges()
        return {
            "epoch": epoch,
            "log_end": self._beginning_of(epoch),
            "missing_bytes": missing,
            "master_answered": master.is_there,
        }

    def demote(self, master: str, master_ha: str, *, force: bool) -> dict[str, Any]:
        """Make this master a slave of another broker."""
        if self._options.is_slave:
            raise UsageError(
                f"this broker is a slave of {self._options.master} already",
                hint="another master is said with shmq serve --role slave --master HOST:PORT",
            )
        parse_address(master, name="master")
        role = Role(self._switched.configured, "slave", master, master_ha)
        options = self._options.replaced(role="slave", master=master, master_ha=master_ha, in_sync_min=1)
        if not force:
            self._refuse_unshipped(options)
        began = time.monotonic()
        has_led = self._store.standing == 0
        is_quiet = self._replica.fence_off(master, _FENCE_SECONDS)
        log_end = self._store.log_end
        try:
            store_role(self._layout, role)
        except ShmqError:
            if has_led:  # nothing has changed but the fence
                self._replica.lead(load_epochs(self._layout)[-1].number)
            raise
        seconds = round(time.monotonic() - began, 3)
        facts: dict[str, Any] = {
            "master": master,
            "log_end": log_end,
            "behind_bytes": self._slaves_get_the_rest(log_end),
            "lock_was_free": is_quiet,
            "seconds": seconds,
        }
        KeeperStore(self._store).set_retired()  # the keeper ends, and comes again as a slave's
        self._log("ha.demoted", **facts)
        self._ended()
        return facts

    def _refuse_unshipped(self, options: Options) -> None:
        """Refuse where this broker could follow none; one that may be about to start again is waited for.

        Raises:
            UsageError: none ships its log there, or not to this host, or it is this broker itself.
        """
        host, port = options.master_ha_address
        where = options.master_ha or f"{host}:{port}"
        forced = "here --force, and it is followed as soon as it ships its log to this host"
        until = time.monotonic() + _RESTART_SECONDS
        while True:
            try:
                side = ask_side((host, port), self._trust, self._me)
                break
            except SilentError as error:
                plain = self._trust.refuses_plain(host)  # as a stock master is, which speaks late
                if plain is None:
                    return
                reason, cure = f"what listens at {where} has not proven the secret: {error}", plain[1]
            except OSError as error:
                reason = f"no broker ships its log at {where}: {error.strerror or error}"
                cure = f"there: shmq serve with --ha-listen {where}, and --ha-allow with the address of this host"
            except ProtocolError as error:
                reason, cure = f"{where} ships this broker no log: {error}", error.hint
            if time.monotonic() >= until:
                raise UsageError(reason, hint=f"{cure}; or {forced}" if cure else forced)
            time.sleep(_ASK_SECONDS)
        if side is not None and side.store and side.store == self._me.store:
            raise UsageError(
                f"what answers at {where} is this broker itself",
                hint="correct --master and --master-ha: they name the broker that becomes the master",
            )

    def _slaves_get_the_rest(self, log_end: int) -> int:
        """Wait until every connected slave has the log; return how much the slowest one lacks after a while.

        One of them is about to be promoted, and while this broker starts again it can be asked for nothing.
        """
        until = time.monotonic() + _CATCH_UP_SECONDS
        while (has := self._slowest_slave()) is not None and has < log_end and time.monotonic() < until:
            time.sleep(_LOOK_SECONDS)
        return max(0, log_end - has) if has is not None else 0

    def _beginning_of(self, epoch: int) -> int:
        """Where an epoch begins: it may have records already, or begin only with the new segments."""
        newest = load_epochs(self._layout)[-1]
        return newest.start if newest.number == epoch else self._store.log_end

    def _look_at_master(self, known: MasterState, *, force: bool) -> _Seen:
        """Ask the master; one that may be about to start again, as after a demotion, is waited for."""
        began = time.monotonic()
        lived = began if known.lived_ms is None else known.lived_ms / 1000
        while True:
            now = time.monotonic()
            is_over = now >= began + _RESTART_SECONDS
            with contextlib.suppress(OSError, ProtocolError):
                side = ask_side(self._options.master_ha_address, self._trust, self._me)
                if side is not None:
                    return _Seen(True, side.leads, max(known.master_end, side.end), side.epoch)
                is_over = True  # a stock one, which takes messages as long as it lives
            try:
                socket.create_connection(parse_address(self._options.master, name="master"), _PROBE_SECONDS).close()
            except OSError:
                if force or is_over or now >= lived + _RESTART_SECONDS:
                    return _Seen(False, False, known.master_end, 0)
            else:
                if is_over:
                    return _Seen(True, True, known.master_end, 0)
            time.sleep(_LOOK_SECONDS)

    def _refuse_unknown(self, master: _Seen, *, was_heard_of: bool) -> None:
        """Refuse where it is unknown what the master has.

        Raises:
            UsageError: the master does not answer, and never has since this slave started.
        """
        if not master.is_there and not was_heard_of:
            raise UsageError(
                f"{self._options.master} does not answer, and this slave has not heard of it since it started: what"
                " that one has stored is not known here",
                hint=f"start {self._options.master} again, or this slave as one of another master; or here --force,"
                " and what is not here is cut off when it comes back",
            )

    def _in_sync_min(self, *, force: bool) -> int:
        """On how many disks this log's masters have what they acknowledge; 0: they wait for no slave.

        Raises:
            UsageError: no slave could connect here.
        """
        in_sync_min = load_identity(self._layout).inSyncMin
        if in_sync_min and not self._options.ha_listen and not force:
            raise UsageError(
                "the master of this log waits for slaves before it acknowledges, and none could connect here",
                hint="start this slave with --ha-listen HOST:PORT; or here --force: it then does not wait for slaves",
            )
        return in_sync_min if self._options.ha_listen else 0

    def _refuse_beside(self, master: _Seen) -> None:
        """Refuse where the master could still send what would be lost.

        Raises:
            UsageError: it takes messages, or has some that do not come.
        """
        until = time.monotonic() + _CATCH_UP_SECONDS
        while master.is_there and not master.leads and self._store.log_end < master.end and time.monotonic() < until:
            time.sleep(_LOOK_SECONDS)
        missing = max(0, master.end - self._store.log_end)
        cure = f"here --force, and {missing} bytes and what it stores from now on are cut off when it comes back"
        if master.leads:
            raise UsageError(
                f"the master {self._options.master} is alive, and has {missing} bytes that are not here: two masters"
                " would take messages, and those of one be lost",
                hint=f"there: shmq cluster demote --master HOST:PORT of this broker; or {cure}",
            )
        if master.is_there and missing:
            raise UsageError(
                f"{self._options.master} takes no messages any more, and has {missing} bytes that have not come here"
                f" within {_CATCH_UP_SECONDS:g} s",
                hint=f"see what shmq cluster status says of it here, and try again; or {cure}",
            )

    def _restart_bridges(self) -> None:
        with contextlib.suppress(ShmqError):
            instance = read_instance(self._place.instance_path)
            marks = instance.processes if instance is not None else {}
            bridges = [mark for role, mark in marks.items() if role.startswith("bridge")]
            for mark in bridges:
                signal_proven(mark, signal.SIGTERM)
            until = time.monotonic() + _BRIDGE_SECONDS
            while any(map(is_alive, bridges)) and time.monotonic() < until:
                time.sleep(_LOOK_SECONDS)


def finish_promotion(layout: StoreLayout, store: Store, epoch: int, *, confirms: bool) -> list[LoweredOffset]:
    """Carry out what the note of a promotion says; harmless where it was. Returns the offsets that were set back.

    Args:
        confirms: this master waits for slaves. What is visible before they have it is said where segments are made: so
            those of a slave are given up, and the keeper ends the promotion with new ones.

    Raises:
        ShmqError: the disk refuses, or a newer epoch was heard of.
    """
    if confirms and store.head["ack_rule"] != ACK_CONFIRMED:
        KeeperStore(store).set_retired()
        return []
    layout.follows.unlink(missing_ok=True)
    sync_directory(layout.root)
    epochs = load_epochs(layout)
    if epoch > epochs[-1].number:
        store_epochs(layout, with_epoch(epochs, Epoch(epoch, store.log_end)))
    if store.standing != READ_ONLY_FOLLOWER:
        return []
    lowered = lower_offsets(store)
    ReplicaStore(store).lead(epoch)
    return lowered


def ask_side(address: tuple[str, int], trust: Trust, me: Side) -> Side | None:
    """Ask who ships at an address; None: one who does not say it.

    Raises:
        OSError: no broker does, or one that is just ending.
        SilentError: it listens, and has not said in time what it is.
        ProtocolError: it refuses this host, or what it says cannot be.
    """
    frames = FrameReader()
    with socket.create_connection(address, _PROBE_SECONDS) as connection:
        until = time.monotonic() + _PROBE_SECONDS
        proven = None
        if trust.secret:
            try:
                proven = prove_to_master(connection, trust, me, seconds=_PROBE_SECONDS)
            except ProtocolError as error:
                if time.monotonic() >= until:
                    raise SilentError(str(error)) from error
                raise
            if proven is None:
                return None
        connection.sendall(pack_report(GREETING))
        while (left := until - time.monotonic()) > 0:
            connection.settimeout(left)
            try:
                data = connection.recv(_READ_BYTES)
            except TimeoutError:
                break
            if not data:
                raise ConnectionResetError("it ended the connection before it said what it is")
            for frame in frames.feed(data):
                if frame.log_position == REFUSAL:
                    reason, cure = read_refusal(bytes(frame.data))
                    raise ProtocolError(f"it refuses this host: {reason}", hint=cure)
                side = read_side(bytes(frame.data)) if frame.data else None
                if side is not None and proven is not None:
                    proven.check(side)
                return side
    raise SilentError("it has not said in time what it is")
