"""Owns the rule by which the members of a group share the queues of a topic: RocketMQ's average allocation.

It does not know sockets, clocks or memory: ids and queues in, queues out. Every member computes the same answer from
the same list, so no member has to be told what the others read.

    8 queues, 3 members        a: 0 1 2     b: 3 4 5     c: 6 7
    2 queues, 3 members        a: 0         b: 1         c: nothing

Rules:
    (1) the shares of all members together are all queues, each exactly once;
    (2) shares are runs of neighbouring queues, and differ in size by one at most;
    (3) members with smaller ids have the larger shares.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

QueueT = TypeVar("QueueT")


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
