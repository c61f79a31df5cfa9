"""Held pulls by themselves: what is watched, and how often that has to be said anew."""

import random
from typing import Any

import pytest

from shmq.daemon.broker.pulls.header import read_pull_header
from shmq.daemon.broker.pulls.waits import HeldPull, PullWaits
from shmq.daemon.logic.requests import Call, Connection
from shmq.protocol.command import Command

NUMBERS = ("queueId", "queueOffset", "maxMsgNums", "sysFlag", "commitOffset", "suspendTimeoutMillis", "subVersion")


def pull(queue: int, offset: int, *, connection_id: int = 1, until_ms: int = 100) -> HeldPull:
    header = read_pull_header({"consumerGroup": "g", "topic": "t", **dict.fromkeys(NUMBERS, "0")})
    return HeldPull(Call(Connection(connection_id, None, 0), Command(code=11), 0), queue, offset, until_ms, header)


@pytest.fixture
def holding() -> PullWaits:
    return PullWaits(held_max=10_000, held_per_connection_max=5_000)


@pytest.mark.parametrize("seed", range(20))
def test_what_is_watched_never_lies_behind_news(holding: PullWaits, seed: int) -> None:
    chance = random.Random(seed)
    waiting: list[HeldPull] = []
    watched, version = holding.watch(), holding.version
    for _ in range(400):
        step = chance.random()
        if step < 0.5 or not waiting:
            waiting.append(pull(chance.randrange(4), chance.randrange(8), connection_id=chance.randrange(3)))
            holding.add(waiting[-1])
        elif step < 0.7:
            holding.move(chance.choice(waiting), chance.randrange(8), 0)
        else:
            holding.remove(waiting.pop(chance.randrange(len(waiting))))
        if holding.version != version:
            watched, version = holding.watch(), holding.version
        for held in waiting:
            assert watched[held.queue] <= held.next_offset
        if chance.random() < 0.1:
            watched = holding.watch()
            lowest = {
                queue: min(h.next_offset for h in waiting if h.queue == queue) for queue in {h.queue for h in waiting}
            }
            assert watched == lowest
    for connection_id in range(3):
        of_connection = [held for held in waiting if held.call.connection.connection_id == connection_id]
        assert holding.of_connection(connection_id) == sorted(of_connection, key=waiting.index)
    for held in waiting:
        holding.remove(held)
    assert holding.watch() == {} and holding.has_room(1) and list(holding.queues) == []


def test_many_pulls_of_one_queue_are_one_thing_to_watch(holding: PullWaits) -> None:
    for connection_id in range(5000):
        holding.add(pull(0, 7, connection_id=connection_id))
    assert holding.version == 1 and holding.watch() == {0: 7}
    for held in holding.of(0):
        holding.remove(held)
    assert holding.version == 1


def test_who_stops_waiting_or_comes_back_for_later_changes_nothing(holding: PullWaits) -> None:
    pulls = [pull(queue, 3) for queue in range(1000)]
    for held in pulls:
        holding.add(held)
    version, _ = holding.version, holding.watch()
    for held in pulls:
        holding.move(held, 4, 0)
        holding.remove(held)
        holding.add(pull(held.queue, 5))
    assert holding.version == version
    assert set(holding.watch().values()) == {5}
    holding.add(pull(9, 4))
    assert holding.version == version + 1


def test_a_change_looks_at_no_other_pull(holding: PullWaits, monkeypatch: pytest.MonkeyPatch) -> None:
    reads = 0

    class Counted(HeldPull):
        __slots__ = ()

        def __getattribute__(self, name: str) -> Any:
            nonlocal reads
            reads += name == "next_offset"
            return super().__getattribute__(name)

    pulls = [
        Counted(*(getattr(held, name) for name in ("call", "queue", "next_offset", "until_ms", "header")))
        for held in (pull(0, offset) for offset in range(4000))
    ]
    for held in pulls:
        holding.add(held)
    holding.watch()
    for held in pulls:
        holding.remove(held)
    assert reads <= 4 * len(pulls)


def test_offsets_without_a_waiting_pull_do_not_pile_up(holding: PullWaits) -> None:
    holding.add(pull(0, 0))
    for offset in range(1, 5000):
        passing = pull(0, offset)
        holding.add(passing)
        holding.remove(passing)
    assert len(holding._queues[0].heap) < 100
    assert holding.watch() == {0: 0}
