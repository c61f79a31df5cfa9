"""One schedule: a group, faults at moments that the seed decides, an end of all faults, and what must hold then."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import NamedTuple

from shmq.daemon.ha.election.member import Role
from shmq.daemon.ha.election.policy import Policy
from tests.ha.simulation.broker_model import Broker
from tests.ha.simulation.checker import Violation
from tests.ha.simulation.group import Group
from tests.ha.simulation.recovery import CALM_MS, COMMAND_MS, LOOK_MS, find_leader_beside_full_disk, heal, roles

BEGIN_MS = 3_500  # the first election, and the first set


class Result(NamedTuple):
    """What a schedule was, and did.

    Attributes:
        lost: acknowledged records of an asynchronous group that are in a tail, and not in the log.
        given_up: records given up by force.
        late_receipts: of a host whose clock stood still.
        is_stuck: every store that is in sync is gone, so none may be elected.
        given_back: places of brokers that could not begin their epoch.
        is_led_beside: another broker led while one disk stayed full.
        is_left_alone: one disk stayed full, and no other broker could be elected.
    """

    confirmed: int
    acknowledged: int
    elections: int
    faults: int
    lost: int
    given_up: int
    late_receipts: int
    is_stuck: bool
    given_back: int
    is_led_beside: bool
    is_left_alone: bool


class _Faults:
    def __init__(self, group: Group) -> None:
        self.group = group
        self.chance = group.world.chance
        self.count = 0

    def one(self) -> None:
        """Let something happen."""
        self.count += 1
        weights = [weight for weight, _ in _KINDS]
        self.chance.choices(_KINDS, weights)[0][1](self)

    def some(self) -> Broker:
        """A broker; the leader more often than others."""
        brokers = list(self.group.brokers.values())
        leaders = [broker for broker in brokers if broker.is_running and broker.leading]
        return self.chance.choice(leaders if leaders and self.chance.random() < 0.5 else brokers)

    def span(self) -> int:
        """How long something lasts."""
        return self.chance.choice((200, 800, 2_200, 3_200, 4_500, 6_000)) + self.chance.randrange(600)

    def kill(self) -> None:
        broker = self.some()
        if broker.is_running:
            broker.kill(loses_unflushed=self.chance.random() < 0.5)
            if self.chance.random() < 0.1:
                broker.replace_disk()
        self.group.world.after(self.span(), None, self.group.restart, broker)

    def stop(self) -> None:
        broker = self.some()
        with_core = self.chance.random() < 0.6
        clock_stands = with_core and self.chance.random() < 0.2
        self.group.stop_for(self.span(), broker, with_core=with_core, clock_stands=clock_stands)

    def cut(self) -> None:
        names = [*self.group.brokers, "store"]
        one, other = self.chance.sample(names, 2)
        pairs = {(one, other), (other, one)} if self.chance.random() < 0.6 else {(one, other)}
        if self.chance.random() < 0.2:  # one host is cut off from all others
            pairs = {pair for name in names if name != one for pair in ((one, name), (name, one))}
        self.group.cut_for(self.span(), pairs)

    def outage(self) -> None:
        if not self.group.store.is_down:
            self.group.store.go_down()
            renews = self.chance.random() < 0.5
            self.group.world.after(self.span(), None, lambda: self.group.store.come_up(renews=renews))

    def lose_answers(self) -> None:
        table = self.group.lost_answers if self.chance.random() < 0.5 else self.group.late_requests
        table[self.some().name] = 1 + self.chance.randrange(4)

    def slow(self) -> None:
        what = self.chance.choice(("slow_ms", "store_slow_ms"))
        setattr(self.group, what, self.chance.choice((50, 300, 900)))
        self.group.world.after(self.span(), None, setattr, self.group, what, 0)

    def fill(self) -> None:
        broker = self.some()
        broker.is_filled = True
        self.group.world.after(self.span(), None, setattr, broker, "is_filled", False)

    def fill_for_good(self) -> None:
        self.group.fill_for_good(self.some())

    def command(self) -> None:
        broker = self.some()
        if broker.is_running and not broker.host.is_stopped:
            what = self.chance.random()
            now = broker.now
            broker.member.log(broker.log.end, broker.leader_end, now)
            if what < 0.4:
                broker.member.hand_over("", now)
            elif what < 0.6:
                broker.member.promote(now)
            elif what < 0.95:
                broker.stop_in_order()
            else:
                broker.member.promote(now, is_forced=True)
            broker.do()


_KINDS: list[tuple[int, Callable[[_Faults], None]]] = [
    (20, _Faults.kill),
    (20, _Faults.stop),
    (22, _Faults.cut),
    (8, _Faults.outage),
    (10, _Faults.lose_answers),
    (6, _Faults.slow),
    (8, _Faults.fill),
    (8, _Faults.fill_for_good),
    (14, _Faults.command),
]


def run_schedule(seed: int) -> Result:
    """Run one schedule.

    Raises:
        Violation: a rule was broken.
    """
    chance = random.Random(f"policy {seed}")
    policy = Policy(is_sync=chance.random() < 0.65, in_sync_min=chance.choice((1, 1, 2)))
    group = Group(seed, chance.choice(("AB", "ABC")), policy)
    faults = _Faults(group)
    at = BEGIN_MS
    for _ in range(group.world.chance.randrange(1, 7)):
        group.world.after(at, None, faults.one)
        at += group.world.chance.choice((50, 400, 1_500, 3_000)) + group.world.chance.randrange(300)
    group.world.run(at)
    beside = find_leader_beside_full_disk(group)
    heal(group)
    is_stuck = _find_together(group)
    lost = 0 if is_stuck else _end(group)
    checker = group.checker
    return Result(
        len(checker.confirmed),
        len(checker.acknowledged),
        len(group.elections),
        faults.count + group.ambush.count,
        lost,
        checker.given_up,
        checker.late_receipts,
        is_stuck,
        checker.given_back,
        beside is True,
        beside is False,
    )


def _find_together(group: Group) -> bool:
    """Wait until all are in sync; return whether they never can be."""
    group.world.run(group.world.now + COMMAND_MS)
    until = group.world.now + CALM_MS
    while group.world.now < until:
        group.world.run(group.world.now + LOOK_MS)
        if _is_together(group):
            return False
        for broker in group.brokers.values():
            group.restart(broker)
            if broker.host.is_stopped:
                heal(group)
    state = group.store.state
    stores = {broker.uuid for broker in group.brokers.values()}
    if state is not None and group.store.leader is None and not state.in_sync & stores:
        return True
    raise Violation("stuck", roles(group))


def _is_together(group: Group) -> bool:
    state, brokers = group.store.state, group.brokers.values()
    leaders = [broker for broker in brokers if broker.member.role is Role.LEADING and broker.may_append()]
    return (
        len(leaders) == 1
        and state is not None
        and state.in_sync == {broker.uuid for broker in brokers}
        and all(broker is leaders[0] or (broker.link is not None and broker.link.is_well) for broker in brokers)
    )


def _end(group: Group) -> int:
    """Let the last records get everywhere, and compare."""
    group.is_loaded = False
    group.world.run(group.world.now + 1_500)
    (leader,) = [broker for broker in group.brokers.values() if broker.leading]
    for broker in group.brokers.values():
        if broker.log.records != leader.log.records:
            raise Violation("unequal", f"{broker.uuid} {broker.log.end}, its leader {leader.log.end}")
    if group.policy.is_sync and leader.confirmed != leader.log.end:
        raise Violation("stuck", f"{leader.log.end - leader.confirmed} records are never confirmed")
    return group.checker.ends(leader.log)
