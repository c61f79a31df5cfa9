"""Divides the queues of a topic among the members of a group: all of RocketMQ's rules, as pure functions.

Every member computes the same answer from the same list, so no member needs to know what the others read; members of
one group must therefore use one rule.

    8 queues, 3 members      average      a: 0 1 2     b: 3 4 5     c: 6 7         the default, here and in RocketMQ
                             circle       a: 0 3 6     b: 1 4 7     c: 2 5
    consistent_hash          each queue to the next of 10 points a member has on a ring: few queues move
    machine_room:x,y         average over the queues of brokers called x@… and y@…
    config:0,3               exactly these queues of the sorted list, whatever the other members

Rules:
    (1) average, circle and consistent_hash: the shares of all members together are all queues, each exactly once;
    (2) average: shares are runs of neighbouring queues, differ in size by one at most, smaller ids have larger ones;
    (3) the same members and queues give the shares that RocketMQ's Java client computes.
"""

from __future__ import annotations

import bisect
import hashlib
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, Protocol, TypeVar

from shmq.errors import UsageError

QueueT = TypeVar("QueueT")

STRATEGIES = ("average", "circle", "consistent_hash", "machine_room:IDC,…", "config:0,3,…")
_POINTS = 10  # of one member on the ring


class Strategy(Protocol):
    """One of the rules."""

    def __call__(self, members: Iterable[str], member: str, queues: Sequence[QueueT], /) -> list[QueueT]: ...


def strategy_of(text: str) -> Strategy:
    """Return the rule of a name.

    Raises:
        UsageError: there is none of this name.
    """
    name, _, argument = text.partition(":")
    words = [word.strip() for word in argument.split(",") if word.strip()]
    if name == "machine_room" and words:
        return partial(allocate_by_machine_room, frozenset(words))
    if name == "config" and words and all(word.isdecimal() for word in words):
        return partial(allocate_by_config, [int(word) for word in words])
    plain: dict[str, Strategy] = {
        "average": allocate,
        "circle": allocate_in_circle,
        "consistent_hash": allocate_by_consistent_hash,
    }
    if name not in plain or argument:
        raise UsageError(f"the allocation {text!r} does not exist", hint=f"one of {', '.join(STRATEGIES)}")
    return plain[name]


def allocate(members: Iterable[str], member: str, queues: Sequence[QueueT]) -> list[QueueT]:
    """Return the share of `member`; empty when it is not in the list or there are more members than queues.

    Args:
        members: client ids in any order; duplicates count once.
        queues: in the order of their queue ids, the same for all members.
    """
    ranking = sorted(set(members))
    if member not in ranking:
        return []
    rank = ranking.index(member)
    share, larger = divmod(len(queues), len(ranking))
    first = rank * share + min(rank, larger)
    return list(queues[first : first + share + (1 if rank < larger else 0)])


def allocate_in_circle(members: Iterable[str], member: str, queues: Sequence[QueueT]) -> list[QueueT]:
    """Return every n-th queue, beginning with the one of the member's rank."""
    ranking = sorted(set(members))
    return list(queues[ranking.index(member) :: len(ranking)]) if member in ranking else []


def allocate_by_consistent_hash(members: Iterable[str], member: str, queues: Sequence[QueueT]) -> list[QueueT]:
    """Return the queues whose next point on the ring is the member's."""
    ring = sorted(
        {_point(f"{name}-{number}"): name for name in sorted(set(members)) for number in range(_POINTS)}.items()
    )
    points = [point for point, _ in ring]

    def owner(queue: Any) -> str:
        # Java's MessageQueue.toString() is what its client hashes.
        text = f"MessageQueue [topic={queue.topic}, brokerName={queue.brokerName}, queueId={queue.queueId}]"
        return ring[bisect.bisect_left(points, _point(text)) % len(ring)][1]

    return [queue for queue in queues if owner(queue) == member] if ring else []


def _point(text: str) -> int:
    return int.from_bytes(hashlib.md5(text.encode(), usedforsecurity=False).digest()[:4], "big")


def allocate_by_machine_room(
    rooms: frozenset[str], members: Iterable[str], member: str, queues: Sequence[QueueT]
) -> list[QueueT]:
    """Return the member's part of the queues whose broker name begins with one of the rooms and an @."""
    ranking = sorted(set(members))
    if member not in ranking:
        return []
    near = [queue for queue in queues if _room(queue) in rooms]
    rank, (share, left) = ranking.index(member), divmod(len(near), len(ranking))
    # As Java does it: equal runs first, what is left over one by one behind them.
    mine = near[rank * share : (rank + 1) * share]
    return mine + ([near[rank + share * len(ranking)]] if rank < left else [])


def _room(queue: Any) -> str:
    room, at, _ = queue.brokerName.partition("@")
    return str(room) if at else ""


def allocate_by_config(
    numbers: Sequence[int], members: Iterable[str], member: str, queues: Sequence[QueueT]
) -> list[QueueT]:
    """Return the queues at these places of the list; the other members do not matter."""
    del members, member
    return [queues[number] for number in numbers if number < len(queues)]
