"""The thresholds of every rule that judges a broker, at every door: from which number on it warns, or worse.

    Thresholds     what the options of `shmq health` and `check` change
    the others     what only this file changes

The marks of the disk are not here: they are the broker's own settings and come with the snapshot.
"""

from typing import NamedTuple

# A broker and its store.
SPARE_SHARE_LEAST = 0.1  # of a file: with less ahead of the log, the keeper has not made the next one in time
QUEUES_WARN_PERCENT, QUEUES_CRIT_PERCENT = 80.0, 95.0  # of the table
DISK_RATIO_WARN = 0.85  # of a broker that does not say its marks: RocketMQ refuses writes at 0.9 by default
# How long after its last time an event is reported.
LOG_LINES_TOLD_SECONDS = 3600.0
INTERNAL_ERRORS_TOLD_SECONDS = RECOVERY_TOLD_SECONDS = LOSSES_TOLD_SECONDS = 86_400.0
REPLICA_GONE_TOLD_SECONDS, REPLICA_REFUSED_TOLD_SECONDS = 86_400.0, 600.0
# Links to other hosts.
SILENT_MS_MAX = 5_000  # a links.json that is older was written by a process that is stopped or dead
ANSWER_SECONDS = 5.0  # a connection that is made and says nothing
HEARD_SECONDS = 8.0  # each end speaks every 5 s at least
LINK_LAG_SECONDS = 10.0
LINK_ERROR_SECONDS = 15.0  # what fails is tried again, and reported again, more often
LEASE_WARN_SECONDS = 3.0  # it is renewed each second


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
    beat_warn: float = 3.0
    beat_crit: float = 10.0
    lock_warn: float = 1.0
    claim_warn: float = 1.0
    gone_warn: float = 60.0
