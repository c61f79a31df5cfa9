"""From which number on something is worth a warning, or worse.

The marks of the disk are not here: they are the broker's own settings and come with the snapshot.
"""

from typing import NamedTuple

from shmq.shm.liveness import KEEPER_BEAT_CRITICAL_SECONDS, KEEPER_BEAT_WARNING_SECONDS


class Thresholds(NamedTuple):
    """Bounds that are reached at equality; None switches one off.

    Attributes:
        lag_warn, lag_crit: ready messages of a group (those its subscription selects; lag where that is unknown).
        age_warn, age_crit: seconds that the oldest ready message has waited; off by default.
        idle_warn: seconds that a member with nothing in hand may leave ready messages alone.
        stuck_warn, stuck_crit: seconds without progress of a member that has messages in hand: its handler runs.
        shm_warn, shm_crit: percent of /dev/shm in use.
        memory_warn, memory_crit: percent of the control group's memory limit that cannot be reclaimed.
        behind_warn, behind_crit: bytes that the flush is behind.
        beat_warn, beat_crit: seconds since the keeper's last round; it is there to make one each second.
        lock_warn: seconds that a running process may hold the append lock.
        claim_warn: seconds that a claim may stay open.
        gone_warn: seconds that a member's end without leaving its group is worth a warning while others go on.
    """

    lag_warn: int | None = 10_000
    lag_crit: int | None = 100_000
    age_warn: float | None = None
    age_crit: float | None = None
    idle_warn: float | None = 1.0
    stuck_warn: float | None = 60.0
    stuck_crit: float | None = None
    shm_warn: float = 80.0
    shm_crit: float = 95.0
    memory_warn: float = 90.0
    memory_crit: float = 97.0
    behind_warn: int = 64 << 20
    behind_crit: int = 1 << 30
    beat_warn: float = KEEPER_BEAT_WARNING_SECONDS
    beat_crit: float = KEEPER_BEAT_CRITICAL_SECONDS
    lock_warn: float = 1.0
    claim_warn: float = 1.0
    gone_warn: float = 60.0
