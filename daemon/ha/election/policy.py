"""The fixed settings of an election, and its times.

    0 s       1 s       2 s       3 s       4 s
    |---------|---------|---------|---------|
    sent      sent                fenced    the store lets the lease expire: another one may be elected
    ^ the last keep-alive that succeeded, from the moment when it was sent

Invariants:
 1. FENCE_MS < LEASE_MS: a master has stopped before another one can begin. What is between them is for clocks that do
    not run at the same speed, and for what was under way.
 2. Both are counted from before the other side begins to count: a keep-alive and a question for a promise from when
    they were sent.
"""

from __future__ import annotations

from dataclasses import dataclass

LEASE_MS = 4_000
KEEP_ALIVE_MS = 1_000
FENCE_MS = 3_000
PROMISE_MS = 4_000  # how long a follower that has promised does not campaign
PROMISE_ASK_MS = 500
PROMISE_FROM_MS = 1_500  # without a keep-alive for this long, promises are asked for
SUCCESSOR_MS = 1_500  # how long the others leave the place to whom it was handed
LAGGING_MS = 300  # who knows that it lacks bytes lets the others campaign first
CAMPAIGN_AGAIN_MS = 500
UNABLE_AGAIN_MS = 10_000  # after an epoch that this broker could not begin
CHANGE_AGAIN_MS = 200
HAND_OVER_MS = 1_000
RESIGN_MS = 2_000  # a leader that stops and could not hand over does not let the others wait for its lease
READ_MS = 2_000
READ_AGAIN_MS = 500
NO_LIMIT_MS = (1 << 63) - 1


@dataclass(frozen=True)
class Identity:
    """One broker of the group, for as long as it has its store.

    Attributes:
        uuid: of the store: an empty disk is another member.
        address: where its peers reach it.
    """

    uuid: str
    address: str


@dataclass(frozen=True)
class Policy:
    """What this group promises.

    Attributes:
        is_sync: a message is acknowledged when every member in sync has it on its disk.
        in_sync_min: disks that have to have it, this host's among them.
    """

    is_sync: bool
    in_sync_min: int = 1
