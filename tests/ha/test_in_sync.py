"""The in-sync set: who joins, who leaves, and what is confirmed meanwhile. Time is an argument."""

from __future__ import annotations

import random

from shmq.daemon.ha.in_sync import (
    BEHIND_BYTES_MAX,
    BEHIND_MS_MAX,
    CAUGHT_UP_MS,
    GRACE_MS,
    InSyncSet,
    State,
    Verdict,
)
from tests.tables.rows import every_row


class World:
    """A log, the core's confirmed end, and the set that sets it."""

    def __init__(self, in_sync_min: int = 1) -> None:
        self.now = GRACE_MS + 1  # begun long ago
        self.end = self.confirmed = 0
        self.set = InSyncSet(in_sync_min, 0)

    @property
    def verdict(self) -> Verdict:
        return self.set.verdict(self.now)

    def say(self) -> None:
        """Do what the core does: it never confirms less than before."""
        end = self.verdict.end
        self.confirmed = max(self.confirmed, self.end if end is None else min(end, self.end))
        self.set.confirmed(self.confirmed)

    def report(self, name: str, flushed: int) -> None:
        self.set.report(name, flushed, self.end, self.now)
        self.say()

    def pass_ms(self, milliseconds: int) -> None:
        self.now += milliseconds
        self.set.tick(self.end, self.now)
        self.say()


def test_alone_nothing_is_confirmed_in_the_first_moments_and_then_all() -> None:
    alone = InSyncSet(1, 0)
    assert alone.verdict(GRACE_MS - 1) == Verdict(0, 0, False)
    assert alone.verdict(GRACE_MS) == Verdict(None, 0, False)


def test_two_disks_are_asked_for_as_long_as_there_is_one() -> None:
    world = World(in_sync_min=2)
    assert world.verdict == Verdict(0, 0, True)
    world.report("a", 0)
    assert world.verdict == Verdict(0, 1, False)
    world.set.gone("a")
    assert world.verdict == Verdict(0, 0, True)


def test_a_replica_joins_when_it_has_the_log_and_is_counted_when_it_has_what_is_confirmed() -> None:
    world = World()
    world.end = 100
    world.say()
    assert world.confirmed == 100
    world.report("a", 60)
    assert world.set.states() == {"a": State.LEARNER} and world.verdict.end is None
    world.end = 130
    world.now += CAUGHT_UP_MS
    world.set.report("a", 100, world.end, world.now)  # what there was when it came
    assert world.set.states() == {"a": State.JOINING}
    world.confirmed = 110  # a flush had read the words before
    world.say()
    assert world.verdict == Verdict(100, 0, False), "it is not counted, and holds confirmation"
    world.report("a", 110)
    assert world.verdict == Verdict(110, 1, False)


def test_one_that_is_always_a_moment_behind_joins_and_stays() -> None:
    world = World()
    ends = [world.end]
    for _ in range(3000):
        world.now += 1
        world.end += 1000
        ends.append(world.end)
        world.report("slow", ends[-10] if len(ends) >= 10 else 0)
        world.set.tick(world.end, world.now)
    assert world.set.states() == {"slow": State.IN_SYNC}


def test_one_that_stands_still_leaves_after_two_seconds_of_sends() -> None:
    world = World()
    world.report("a", 0)
    world.pass_ms(60_000)
    assert world.verdict.replicas == 1, "nothing was sent: it has everything"
    world.end = 10
    world.pass_ms(BEHIND_MS_MAX)
    assert world.verdict == Verdict(0, 1, False) and world.confirmed == 0
    world.pass_ms(1)
    assert world.verdict == Verdict(None, 0, False)
    world.pass_ms(10_000)
    world.report("a", 10)
    assert world.verdict == Verdict(10, 1, False)


def test_one_that_is_too_many_bytes_behind_leaves_at_once() -> None:
    world = World()
    world.report("a", 0)
    world.end = BEHIND_BYTES_MAX
    world.pass_ms(0)
    assert world.verdict.replicas == 1
    world.end += 1
    world.pass_ms(0)
    assert world.verdict.replicas == 0


def test_the_slowest_member_says_how_far_and_a_learner_nothing() -> None:
    world = World()
    world.report("a", 0)
    world.report("b", 0)
    world.end = 50
    world.report("a", 50)
    world.report("b", 30)
    world.report("learner", 1)
    assert world.verdict == Verdict(30, 2, False)
    world.set.gone("b")
    assert world.verdict == Verdict(50, 1, False)


@every_row("in_sync_min", [1, 2])
@every_row("seed", range(200))
def test_no_counted_replica_ever_lacks_what_is_confirmed(seed: int, in_sync_min: int) -> None:
    choice = random.Random(seed)
    world, disks = World(in_sync_min), {}
    for _ in range(400):
        name = choice.choice("abc")
        match choice.randrange(6):
            case 0:
                world.end += choice.randrange(1, 1 << choice.randrange(1, 29))
            case 1 | 2:
                if name in disks:
                    disks[name] = choice.choice((world.end, choice.randint(disks[name], world.end)))
                    world.report(name, disks[name])
            case 3:
                disks.setdefault(name, choice.randint(0, world.end))
                world.report(name, disks[name])
            case 4:
                world.pass_ms(choice.choice((1, 100, 3000)))
            case _:
                if choice.random() < 0.1:
                    disks.pop(name, None)
                    world.set.gone(name)
                    world.say()
        states = world.set.states()
        assert world.confirmed <= world.end
        for name, state in states.items():
            assert state is not State.IN_SYNC or disks[name] >= world.confirmed, (name, world.confirmed, disks)
        assert world.verdict.lacks_replicas == (1 + world.verdict.replicas < in_sync_min)
