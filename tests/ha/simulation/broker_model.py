"""A broker: the machine under test, and around it a log, a disk, a link, senders and readers, all simple.

The core is on this host too, and goes on while the machine's process is stopped: it appends and gives receipts for as
long as it was allowed to, by the host's own clock.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from shmq.daemon.ha.election.coordination import Answer, Commit, Request, StateKey, View
from shmq.daemon.ha.election.effects import (
    Allow,
    Ask,
    Effect,
    Finished,
    Follow,
    Message,
    OldEpoch,
    Position,
    Promise,
    Promote,
    Rest,
    Tell,
)
from shmq.daemon.ha.election.member import Member, Role
from shmq.daemon.ha.election.policy import PROMISE_MS, Identity
from tests.ha.simulation.checker import Violation
from tests.ha.simulation.log_model import NUMBER_BITS, LogModel, Record
from tests.ha.simulation.world import Host

if TYPE_CHECKING:
    from tests.ha.simulation.group import Group

TICK_MS = 100
WORK_MS = 100
ANSWER_MS = 1_000
SILENCE_MS = 2_500
HEARTBEAT_MS = 500
RECEIPT_MS = 40
STOP_MS = 3_000  # what an orderly stop may take
OTHERS_FIRST_MS = 5_000  # who could not begin an epoch leaves the next one to the others for so long, at least


class Connection:
    """A follower's stream from a leader; broken when anything of it was lost."""

    def __init__(self, leader: Broker, follower: Broker, epoch: int) -> None:
        self.leader, self.follower, self.epoch = leader, follower, epoch
        self.is_broken = False  # closed: both ends know
        self.is_silent = False  # nothing passes any more, and neither end knows
        self.is_welcomed = False  # the follower knows where it is to be cut
        self.is_open = False  # it was cut, and is shipped to
        self.shipped = 0
        self.shipped_ms = self.reported_ms = -1_000
        self.confirmed_told = -1
        self.heard_leader_ms = self.heard_follower_ms = leader.group.world.now
        self.arrives = {leader: 0, follower: 0}

    @property
    def is_well(self) -> bool:
        return self.is_open and not (self.is_broken or self.is_silent)


class Broker:
    """One host. `core` is stopped only with the whole host, `host` also by itself: it is the machine's process."""

    def __init__(self, group: Group, name: str) -> None:
        self.group, self.name = group, name
        self.host, self.core = Host(), Host()
        self.disk_number = 0
        self.clock_offset = 0
        self.clock_stood = False
        self.is_filled = False  # its disk takes nothing for a while
        self.stays_full = False  # it takes nothing until the schedule ends
        self.rate = group.world.chance.choice((1.0, 1.0, 1.005, 0.995))
        self.log = LogModel()
        self.group.checker.disks[self.uuid] = self.log
        self.member: Member
        self.is_running = False

    @property
    def uuid(self) -> str:
        return f"{self.name}.{self.disk_number}"

    @property
    def now(self) -> int:
        return int(self.group.world.now * self.rate) + self.clock_offset + 1_000_000

    @property
    def is_full(self) -> bool:
        return self.is_filled or self.stays_full

    # Lives

    def start(self) -> None:
        """Begin a life on the disk as it is."""
        for host in (self.host, self.core):
            host.life += 1
            host.is_up, host.is_stopped = True, False
            host.waiting.clear()
        self.is_running = True
        self.confirmed = self.shown = min(self.log.confirmed_on_disk, self.log.end)
        self.leading = 0  # the epoch in which the core appends
        self.following: Follow | None = None
        self.allowed_ms = 0
        self.lacks_replicas = False
        self.pending: list[tuple[int, Record]] = []
        self.link: Connection | None = None
        self.links: dict[str, Connection] = {}
        self.leader_end = 0
        self.is_flushing = True
        self.campaigns_from: int | None = None
        self.promised_until = self.promised_epoch = 0
        self.gave_back_ms: int | None = None
        me = Identity(self.uuid, self.name)
        self.member = Member(me, self.group.policy, self.log.epoch, self.now, is_empty=not self.log.end)
        world = self.group.world
        world.after(self.group.flush_ms(), self.core, self._flushed)  # what a recovery has found
        world.after(world.chance.randrange(TICK_MS), self.host, self._tick)
        world.after(world.chance.randrange(WORK_MS), self.core, self._work)

    def kill(self, *, loses_unflushed: bool) -> None:
        """End every process of this host."""
        for host in (self.host, self.core):
            host.life += 1
            host.is_up = host.is_stopped = False
            host.waiting.clear()
        self.is_running = False
        self.group.checker.forgets(self.uuid)
        if loses_unflushed:
            self.group.checker.cuts(self.log.records[self.log.durable :])
            self.log.lose_unflushed()
        for link in [*self.links.values(), *([self.link] if self.link else [])]:
            link.is_broken = True

    def replace_disk(self) -> None:
        """The host comes again with an empty disk."""
        self.group.checker.cuts(self.log.records)
        self.disk_number += 1
        self.is_filled = self.stays_full = False
        self.log = LogModel()
        self.group.checker.disks[self.uuid] = self.log

    # The machine

    def _tick(self) -> None:
        world = self.group.world
        world.after(TICK_MS, self.host, self._tick)
        self.member.log(self.log.end, self.leader_end, self.now)
        self.member.tick(self.now)
        self.do()
        self._look_at_links()
        self._show(self.leading or self.log.epoch)

    def _look_at_links(self) -> None:
        now = self.group.world.now
        for uuid, link in list(self.links.items()):
            if link.is_broken or now - link.heard_follower_ms > SILENCE_MS:
                self._drop(uuid, link)
        link_up = self.link
        if link_up is not None:
            if link_up.is_broken or now - link_up.heard_leader_ms > SILENCE_MS:
                link_up.is_broken = True
                self.link = None
            elif link_up.is_welcomed and now - link_up.reported_ms >= HEARTBEAT_MS:
                self._report(link_up)
        elif self.following is not None:
            self._connect(self.following)

    def _drop(self, uuid: str, link: Connection) -> None:
        link.is_broken = True
        if self.links.get(uuid) is link:
            del self.links[uuid]
            self.member.gone(uuid, self.now)
            self.do()

    def do(self) -> None:
        """Do what the machine wants, until it wants nothing."""
        while effects := self.member.take():
            for effect in effects:
                self._do(effect)
        self._confirm()

    def _do(self, effect: Effect) -> None:
        if isinstance(effect, Ask):
            self._ask(effect.number, effect.request)
        elif isinstance(effect, Allow):
            if effect.until_ms and not self.leading:
                raise Violation("unbegun", f"{self.uuid} is allowed to append, and has begun no epoch")
            self.allowed_ms = effect.until_ms
        elif isinstance(effect, Tell):
            self._tell(effect.peer, effect.message)
        elif isinstance(effect, Promote):
            self._promote(effect)
        elif isinstance(effect, Follow):
            self._rest()
            self.campaigns_from = None
            self.following = effect
            self._connect(effect)
        elif isinstance(effect, Rest):
            self._rest()
        elif isinstance(effect, Finished):
            self.group.finished(self)
        self.member.log(self.log.end, self.leader_end, self.now)

    def _promote(self, effect: Promote) -> None:
        self._rest()
        gave_back_ms, now = self.gave_back_ms, self.group.world.now
        if gave_back_ms is not None and now - gave_back_ms < OTHERS_FIRST_MS and effect.why != "forced by hand":
            raise Violation("again", f"{self.uuid} is elected {now - gave_back_ms} ms after it gave its place back")
        if self.is_full:
            self.gave_back_ms = now
            self.group.checker.gives_back(effect.epoch)
            self.member.unable("the disk is full", self.now)
            return
        self.campaigns_from = None
        self.group.checker.leads(effect.epoch, self.log, effect.why)
        self.log.begin_epoch(effect.epoch)
        self.leading = effect.epoch
        self.group.led(self, effect.epoch)
        self.member.promoted(self.now)

    def _rest(self) -> None:
        self.leading = self.allowed_ms = 0
        self.following = None
        self.pending.clear()
        if self.link is not None:
            self.link.is_broken = True
            self.link = None
        for uuid, link in list(self.links.items()):
            link.is_broken = True
            del self.links[uuid]

    def _ask(self, number: int, request: Request) -> None:
        if isinstance(request, Commit) and request.transaction.leader is not None:
            state: StateKey | None = request.transaction.state
            if state is not None:
                self.campaigns_from = state.epoch
                if self.now < self.promised_until and state.why != "forced by hand":
                    view = self.group.store.state
                    if view is None or (view.epoch == self.promised_epoch and view.successor != self.uuid):
                        raise Violation("promised", f"{self.uuid} campaigns for {state.epoch}")
        self.group.ask(self, request, partial(self._answer, [number]))

    def _answer(self, number: list[int], answer: Answer | None) -> None:
        if number:
            self.member.answered(number.pop(), answer, self.now)
            if self.member.role is not Role.CAMPAIGNING:
                self.campaigns_from = None
            self.do()

    def seen(self, view: View) -> None:
        """A watch has brought something."""
        self.member.seen(view, self.now)
        self.do()

    def _tell(self, peer: str, message: Message) -> None:
        if isinstance(message, Promise):
            self.promised_until, self.promised_epoch = self.now + PROMISE_MS, message.epoch
        link = self.links.get(peer) or (self.link if self.link and self.link.leader.uuid == peer else None)
        if link is not None:
            other = link.follower if link.leader is self else link.leader
            self.group.send(link, self, other, other.hears, link, self.uuid, message)

    def hears(self, link: Connection, peer: str, message: Message) -> None:
        """A message of a peer has come."""
        self._heard(link)
        self.member.heard(peer, message, self.now)
        self.do()
        if isinstance(message, Promise):
            self.group.ambush.promised(self)

    def _heard(self, link: Connection) -> None:
        if link.leader is self:
            link.heard_follower_ms = self.group.world.now
        else:
            link.heard_leader_ms = self.group.world.now

    def hand_over(self) -> None:
        """An operator has this broker hand over to the best member."""
        self.member.log(self.log.end, self.leader_end, self.now)
        self.member.hand_over("", self.now)
        self.do()

    def stop_in_order(self) -> None:
        """An operator stops this broker; what does not end in time is killed."""
        self.member.log(self.log.end, self.leader_end, self.now)
        self.member.stop(self.now)
        self.group.world.after(STOP_MS, self.host, self.group.finished, self)
        self.do()

    # The link

    def _connect(self, leader: Follow) -> None:
        other = self.group.brokers[leader.address]
        link = self.link = Connection(other, self, leader.epoch)
        self.group.send(link, self, other, other.greeted, link, self.uuid, list(self.log.epochs), self.log.end)

    def greeted(self, link: Connection, uuid: str, epochs: list[tuple[int, int]], end: int) -> None:
        """A follower wants the log."""
        if link.epoch != self.leading:
            if link.epoch > self.leading and self.leading:
                self.member.heard(uuid, OldEpoch(link.epoch, False), self.now)
                self.do()
            self.group.send(link, self, link.follower, link.follower.turned_away, link)
            return
        old = self.links.get(uuid)
        if old is not None:
            self._drop(uuid, old)
            if self.leading != link.epoch:
                return
        self.links[uuid] = link
        cut = self.log.common_end(epochs, end)
        link.shipped = cut
        link.heard_follower_ms = self.group.world.now
        self.group.send(link, self, link.follower, link.follower.welcomed, link, cut, list(self.log.epochs))

    def turned_away(self, link: Connection) -> None:
        """The leader does not lead this epoch."""
        link.is_broken = True

    def welcomed(self, link: Connection, cut: int, epochs: list[tuple[int, int]]) -> None:
        """The leader says where this log stops being a part of its own."""
        self._heard(link)
        link.is_welcomed = True
        self.group.world.after(self.group.cut_ms(), self.host, self._cut, link, cut, epochs)

    def _cut(self, link: Connection, cut: int, epochs: list[tuple[int, int]]) -> None:
        if link is not self.link or self.member.follows != link.epoch:
            return
        if self.is_full:
            self._give_up(link)
            return
        link.is_open = True
        self.group.checker.cuts(self.log.cut(cut, epochs), cut, link.epoch)
        self.confirmed, self.shown = min(self.confirmed, cut), min(self.shown, cut)
        self.member.cut(link.epoch)
        self._report(link)

    def _report(self, link: Connection) -> None:
        epoch = self.member.acknowledges
        if epoch is None or epoch != link.epoch:
            return
        if self.campaigns_from is not None and epoch < self.campaigns_from:
            raise Violation(
                "acknowledged", f"{self.uuid} acknowledges {epoch}, and campaigns for {self.campaigns_from}"
            )
        link.reported_ms = self.group.world.now
        position = Position(epoch, self.log.end, self.log.durable)
        self.group.send(link, self, link.leader, link.leader.hears, link, self.uuid, position)

    def _ship(self, link: Connection) -> None:
        now = self.group.world.now
        if not link.is_open or link.is_broken:
            return
        if (
            link.shipped == self.log.end
            and link.confirmed_told == self.confirmed
            and now - link.shipped_ms < HEARTBEAT_MS
        ):
            return
        records = self.log.records[link.shipped :]
        begin, link.shipped = link.shipped, self.log.end
        link.confirmed_told, link.shipped_ms = self.confirmed, now
        end = self.log.end
        follower = link.follower
        self.group.send(
            link, self, follower, follower.shipped, link, begin, records, self.confirmed, end, self.log.epochs
        )

    def shipped(
        self,
        link: Connection,
        begin: int,
        records: list[Record],
        confirmed: int,
        end: int,
        epochs: list[tuple[int, int]],
    ) -> None:
        """A part of the leader's log has come."""
        self._heard(link)
        if link is not self.link or self.member.acknowledges != link.epoch:
            return
        if self.is_full and records:
            self._give_up(link)
            return
        assert begin == self.log.end, (begin, self.log.end)
        for position, record in enumerate(records, begin):
            self.group.checker.writes(position, record)
        self.log.records += records
        if len(epochs) != len(self.log.epochs):
            self.log.epochs = [(epoch, start) for epoch, start in epochs if start <= self.log.end]
        self.leader_end = end
        self.confirmed = max(self.confirmed, min(confirmed, self.log.end))
        self._show(link.epoch)
        if self.log.durable < end and not self.is_flushing:
            self.is_flushing = True
            self.group.world.after(self.group.flush_ms(), self.core, self._flushed)

    def _give_up(self, link: Connection) -> None:
        """What has come cannot be stored: the follower asks for it again, later."""
        link.is_broken = True
        self.link = None

    def _flushed(self) -> None:
        if self.is_full:
            self.group.world.after(TICK_MS, self.core, self._flushed)
            return
        self.is_flushing = False
        self.log.durable = self.log.end
        if self.link is not None and self.link.is_welcomed and not self.host.is_stopped:
            self._report(self.link)

    # The core

    def _work(self) -> None:
        """Flush what was stored the last time, store something new, and ship it."""
        world = self.group.world
        world.after(WORK_MS, self.core, self._work)
        if not self.leading:
            return
        if not self.is_full:
            self.log.durable = self.log.end
        if self.may_append() and not self.is_full and not self.lacks_replicas and self.group.is_loaded:
            for _ in range(world.chance.randrange(3)):
                self._append()
        if not self.host.is_stopped:
            self._confirm()
            for link in list(self.links.values()):
                self._ship(link)

    def may_append(self) -> bool:
        """Whether the core takes a record now."""
        return bool(self.leading) and self.now < self.allowed_ms

    def _append(self) -> None:
        record = self.leading << NUMBER_BITS | self.group.next_number()
        position = self.log.end
        self.log.records.append(record)
        self.group.checker.writes(position, record)
        if self.group.policy.is_sync:
            self.pending.append((position, record))
        else:
            self.group.world.after(RECEIPT_MS, self.core, self._give_receipt, self.leading, position, record)

    def _give_receipt(self, epoch: int, position: int, record: Record) -> None:
        """The second look: a process that was stopped between storing and answering gives no receipt."""
        if self.may_append() and self.leading == epoch:
            self.group.checker.acknowledges(epoch, position, record, clock_stood=self.clock_stood)

    def _confirm(self) -> None:
        verdict = self.member.verdict()
        if verdict is None:
            return
        if not self.leading:
            raise Violation("unbegun", f"{self.uuid} may confirm up to {verdict.end}, and has begun no epoch")
        self.lacks_replicas = verdict.lacks_replicas
        durable = self.log.durable
        end = durable if verdict.end is None else min(verdict.end, durable)
        if end > self.confirmed:
            if self.group.policy.is_sync:
                self.group.checker.confirms(self.leading, self.log, self.confirmed, end)
            self.confirmed = end
            self.log.confirmed_on_disk = min(end, self.group.world.chance.choice((end, self.log.confirmed_on_disk)))
            while self.pending and self.pending[0][0] < end:
                position, record = self.pending.pop(0)
                self.group.checker.acknowledges(self.leading, position, record, clock_stood=self.clock_stood)
        self.member.confirmed(self.confirmed)
        self._show(self.leading)

    def _show(self, epoch: int) -> None:
        """Readers see what the machine lets them see."""
        if self.group.policy.is_sync:
            visible = self.member.visible_end(self.confirmed, self.log.durable)
            if visible > self.shown:
                self.group.checker.confirms(epoch, self.log, self.shown, visible, why="seen")
                self.shown = visible
