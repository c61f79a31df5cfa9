"""Carries out an election at this broker: its log takes messages, follows another one's, or rests.

    rest      the link to the leader ends, nothing is sent to it any more; a log that took messages takes none, and
              acknowledges none
    follow    a log that led: note of the role, the segments are given up, this process starts again as a slave's;
              any other: the note and the name of the leader change, and it is copied
    promote   note of the role · epoch at the log's end · what follows; the bridges start again. No message is taken yet
    allow     a lease is put into the segments, and only then messages are taken

Invariants:
 1. Only the thread of the elector calls what `ElectedBroker` asks for.
 2. A log that has led in these segments never follows in them: a writer that was stopped may still end its append.
 3. What was following has said its last word to its leader when `rest` returns.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable

from shmq.daemon.event_log import EventLog
from shmq.daemon.ha.election.effects import Message, Position
from shmq.daemon.ha.election.message_codec import message_bytes
from shmq.daemon.ha.election.policy import NO_LIMIT_MS
from shmq.daemon.ha.election.reach import Reach, read_reach
from shmq.daemon.ha.elector import Positions
from shmq.daemon.ha.in_sync import Verdict
from shmq.daemon.ha.slave.following import Elected, Following
from shmq.daemon.ha.switching import finish_promotion
from shmq.daemon.switched import Switched, followed, led
from shmq.errors import ShmqError
from shmq.options.broker import Options
from shmq.shm.core import (
    ACK_CONFIRMED,
    READ_ONLY_FENCED,
    READ_ONLY_FOLLOWER,
    KeeperStore,
    ReplicaStore,
    Store,
)
from shmq.shm.instance import read_instance
from shmq.shm.liveness import signal_proven
from shmq.shm.place import Place
from shmq.store.layout import StoreLayout
from shmq.store.lineage.cutting import withdraw_wishes
from shmq.store.lineage.standing import Role, own_identity, store_role

_FENCE_SECONDS = 0.3
_CONFIRM_SECONDS = 0.2
_CONFIRM_AGAIN_SECONDS = 0.1
_THREAD_SECONDS = 1.0


class Station:
    """The `ElectedBroker` of one broker.

    Args:
        store: mapped writable.
        follower: makes what follows a leader.
        say: tells a slave of this broker something, by its store; any thread may call.
        changed: called when slaves have to connect again, because this broker is another one to them.
        ended: called when this process has to start again; `failed`, as a part of it has ended by a defect.
    """

    def __init__(
        self,
        place: Place,
        switched: Switched,
        layout: StoreLayout,
        store: Store,
        log: EventLog,
        *,
        follower: Callable[[Options, Elected], Following],
        say: Callable[[str, bytes], None],
        changed: Callable[[str], None],
        ended: Callable[[], None],
        failed: Callable[[Exception], None],
    ) -> None:
        self._place, self._layout, self._store, self._log = place, layout, store, log
        self._configured = switched.configured
        self._options = switched.options
        self._replica = ReplicaStore(store)
        self._make_follower, self._say, self._changed, self._ended, self._failed = follower, say, changed, ended, failed
        self._refused = ""  # why a leader could not be followed, as it was said last
        self._epoch = switched.epoch
        self._confirmed = 0
        self._confirm_key: Verdict | None = None
        self._confirm_at = 0.0
        self._thread: threading.Thread | None = None
        self.following: Following | None = None
        self._followed: Following | None = None  # since this broker led
        self.joined: Callable[[int], None] = _nothing  # the elector's, which does not exist yet
        self.heard: Callable[[str, Message], None] = _nothing

    @property
    def role(self) -> str:
        """What this broker is now, in RocketMQ's words."""
        return self._options.role

    @property
    def epoch(self) -> int:
        """The epoch of the leader that it follows, or its own."""
        following = self.following
        return max(self._epoch, following.epoch if following is not None else 0)

    # What the elector wants

    def positions(self) -> Positions:
        following = self.following
        leader_end = following.state.master_end if following is not None else 0
        return Positions(self._store.log_end, self._store.durable_end, leader_end)

    def allow(self, until_ms: int, reason: str) -> None:
        """Let the core append until a time of CLOCK_BOOTTIME."""
        if not until_ms:
            self._fence(reason)
            return
        self._replica.lease(0 if until_ms >= NO_LIMIT_MS else until_ms * 1_000_000)
        if self._store.standing == READ_ONLY_FENCED and self._options.role == self._options.group_role:
            self._replica.lead(self._epoch)
            self._log("ha.leads", epoch=self._epoch, log_end=self._store.log_end)

    def promote(self, epoch: int, why: str) -> None:
        """Begin an epoch at the log's end."""
        self._end_following()
        try:
            self._begin(epoch, why)
        except (ShmqError, OSError) as error:
            self._log("ha.promotion_failed", epoch=epoch, reason=str(error), hint="shmq health")
            raise

    def _begin(self, epoch: int, why: str) -> None:
        began = time.monotonic()
        followed, self._followed = self._followed, None
        if followed is not None:
            followed.note_known_pops()
        KeeperStore(self._store).flush()
        role = self._options.group_role
        withdraw_wishes(self._layout)
        store_role(self._layout, Role(self._configured, role, epoch=epoch, inSyncMin=self._in_sync_min))
        self._options, self._epoch = led(self._options, self._in_sync_min), epoch
        own_identity(self._layout, makes_log=True, in_sync_min=self._in_sync_min)
        self._replica.lease(1)  # long over: nothing is taken before the election allows it
        for topic, group, was, now in finish_promotion(self._layout, self._store, epoch, confirms=False):
            self._log("ha.offset_lowered", topic=topic, group=group, was=was, now=now)
        self._fence("")
        self._changed(f"this broker leads in epoch {epoch}")
        self._restart_bridges()
        seconds = round(time.monotonic() - began, 3)
        self._log("ha.promoted", epoch=epoch, why=why, log_end=self._store.log_end, seconds=seconds)

    def follow(self, uuid: str, address: str, epoch: int) -> bool:
        """Begin to copy a leader; False where it could not be noted, as the disk refuses."""
        try:
            reach = read_reach(address)
        except ShmqError as error:
            self._log("ha.no_leader", reason=str(error))
            return True
        self._end_following()
        try:
            is_other = self._note_leader(reach)
        except (ShmqError, OSError) as error:
            if self._refused != str(error):
                self._log("ha.not_followed", master=reach.broker, epoch=epoch, reason=str(error))
            self._refused = str(error)
            return False
        self._refused = ""
        if self._store.standing != READ_ONLY_FOLLOWER:
            self._replica.fence_off(reach.broker, _FENCE_SECONDS)
            self._log("ha.demoted", master=reach.broker, log_end=self._store.log_end, epoch=epoch)
            KeeperStore(self._store).set_retired()  # the keeper ends, and comes again as a slave's
            self._ended()
            return True
        if self._store.leader != reach.broker:
            self._replica.follow(reach.broker)
        if is_other:
            self._restart_bridges()
        self._log("ha.follows", master=reach.broker, epoch=epoch)
        before, elected = self._thread, Elected(uuid, epoch, lambda: self.joined(epoch), lambda m: self.heard(uuid, m))
        following = self.following = self._make_follower(self._options, elected)

        def run() -> None:
            if before is not None:
                before.join()
            try:
                following.run()
            except Exception as error:
                if not following.stopping.is_set():
                    self._failed(error)  # nothing would be copied any more, and the leader may stay for months
                raise

        self._thread = threading.Thread(target=run, name="following", daemon=True)
        self._thread.start()
        return True

    def rest(self, reason: str) -> None:
        """Neither lead nor follow."""
        self._end_following()
        self._replica.lease(1)  # long over: nothing that waits for the disk is acknowledged any more
        if self._store.standing == 0:
            self._fence(reason)
            self._changed(reason)

    def tell(self, peer: str, message: Message) -> None:
        """Say something to a peer, if there is a link."""
        following = self.following
        if following is not None:
            following.say(None if isinstance(message, Position) else message)
        else:
            self._say(peer, message_bytes(message))

    def confirm(self, verdict: Verdict) -> int | None:
        """Tell the core what is on the other disks."""
        store = self._store
        if store.head["ack_rule"] != ACK_CONFIRMED:
            end = store.durable_end if verdict.end is None else min(verdict.end, store.durable_end)
            self._confirmed = max(self._confirmed, end)
            return self._confirmed
        now = time.monotonic()
        if verdict == self._confirm_key and now < self._confirm_at:
            return store.confirmed_end
        confirmed_end = self._replica.confirm(
            verdict.end, verdict.replicas, _CONFIRM_SECONDS, lacks_replicas=verdict.lacks_replicas
        )
        if confirmed_end is not None:
            self._confirm_key, self._confirm_at = verdict, now + _CONFIRM_AGAIN_SECONDS
        return confirmed_end

    # The end

    def close(self) -> bool:
        """End what follows; False: it waits for another host, and would find the store closed."""
        self._end_following()
        if self._thread is not None:
            self._thread.join(_THREAD_SECONDS)
        return self._thread is None or not self._thread.is_alive()

    @property
    def _in_sync_min(self) -> int:
        return self._options.in_sync_min if self._options.confirms else 0

    def _fence(self, reason: str) -> None:
        if self._store.standing == 0:
            self._replica.fence_off("", _FENCE_SECONDS)
            if reason:
                self._log("ha.fenced", reason=reason, log_end=self._store.log_end)

    def _end_following(self) -> None:
        following, self.following = self.following, None
        if following is not None:
            self._followed = following
            following.stop()

    def _note_leader(self, reach: Reach) -> bool:
        """Have every process of this broker start as a slave of a leader; False: they do already."""
        if self._options.is_slave and (self._options.master, self._options.master_ha) == reach:
            return False
        store_role(self._layout, Role(self._configured, "slave", reach.broker, reach.ha))
        self._options = followed(self._options, reach.broker, reach.ha)
        return True

    def _restart_bridges(self) -> None:
        with contextlib.suppress(ShmqError):
            instance = read_instance(self._place.instance_path)
            marks = instance.processes if instance is not None else {}
            for role, mark in marks.items():
                if role.startswith("bridge"):
                    signal_proven(mark, signal.SIGTERM)


def _nothing(*_: object) -> None:
    """The default where nothing is to be called."""
