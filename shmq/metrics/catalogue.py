"""The table of all metrics: name, kind, unit, labels, meaning, and where the number comes from.

Names of our own stand here, RocketMQ's in `rocketmq_families.py`; `gather.py` reads the values.

    rocketmq_…    RocketMQ 5's name as its broker exports it, where the meaning is the same, so that its dashboards work
    shmq_…        what RocketMQ has not, or means otherwise

    base labels   cluster, node_type="broker", node_id=<broker name>: on every sample, as RocketMQ has them

`docs/reference/metrics.md` is compared with this table by a test.
"""

from __future__ import annotations

from shmq.metrics.family import (
    BRIDGE,
    COUNTER,
    DISK_BOUNDS,
    FAST_BOUNDS,
    GAUGE,
    HISTOGRAM,
    INFO,
    KEEPER,
    SCRUB_BYTES,
    SCRUB_DAMAGES,
    SCRUB_REPAIRS,
    SECOND,
    Family,
)
from shmq.metrics.rocketmq_families import ROCKETMQ

_OWN = (
    Family(
        "shmq_broker",
        INFO,
        "What runs here.",
        "head of the segments; `shmq version`",
        ("version", "abi", "generation", "segments", "flush"),
    ),
    Family(
        "shmq_start_time_seconds",
        GAUGE,
        "When the segments were made, seconds since the epoch.",
        "counters segment",
        unit="seconds",
    ),
    Family(
        "shmq_log_end_bytes",
        GAUGE,
        "Log position behind the last record.",
        "control segment; `mqadmin brokerStatus`: commitLogMaxOffset",
        unit="bytes",
    ),
    Family(
        "shmq_log_begin_bytes",
        GAUGE,
        "Log position of the first record retention has left.",
        "control segment; `mqadmin brokerStatus`: commitLogMinOffset",
        unit="bytes",
    ),
    Family(
        "shmq_log_allocated_bytes",
        GAUGE,
        "Log position up to which files exist.",
        "control segment; `ls commitlog`",
        unit="bytes",
    ),
    Family(
        "shmq_appended_messages",
        COUNTER,
        "Records appended by anybody since the segments were made.",
        "control segment; `mqadmin brokerStatus`: putMessageTimesTotal",
    ),
    Family(
        "shmq_appended_bytes",
        COUNTER,
        "Bytes of these records.",
        "control segment; `mqadmin brokerStatus`: putMessageSizeTotal",
        unit="bytes",
    ),
    Family(
        "shmq_append_busy",
        COUNTER,
        "Appends given up at their deadline because the lock or a claim was taken.",
        "control segment; `mqadmin brokerStatus`: putMessageFailedTimes",
    ),
    Family("shmq_lock_acquisitions", COUNTER, "Times the append lock was taken.", "control segment"),
    Family(
        "shmq_lock_holder_deaths",
        COUNTER,
        "Processes that died holding the append lock; each was repaired.",
        "control segment",
    ),
    Family("shmq_lock_held", GAUGE, "1 while somebody holds the append lock.", "word of the mutex"),
    Family("shmq_claims", COUNTER, "Long records and reservations that were filled in place.", "control segment"),
    Family(
        "shmq_claims_evicted", COUNTER, "Of these, taken away because they stood in the others' way.", "control segment"
    ),
    Family("shmq_claim_open", GAUGE, "1 while a claim is open.", "control segment"),
    Family("shmq_log_rolls", COUNTER, "Changes to the next log file.", "control segment"),
    Family("shmq_wakeups", COUNTER, "Sleeping readers woken by a writer or by each other.", "readers segment"),
    Family(
        "shmq_read_only",
        GAUGE,
        "1 with the reason while nothing can be stored.",
        "control segment; `shmq health`",
        ("reason",),
    ),
    Family(
        "shmq_frames", GAUGE, "Unit frames of 4096 bytes: in use, reserved, and at most.", "control segment", ("state",)
    ),
    Family("shmq_queues", GAUGE, "Queues of all topics.", "topic table"),
    Family(
        "shmq_segment_bytes",
        GAUGE,
        "Size of a segment, and how much of it takes memory.",
        "fstat; `ls -s /dev/shm`",
        ("segment", "state"),
        "bytes",
    ),
    Family(
        "shmq_shm_bytes", GAUGE, "The memory file system: used and free.", "statvfs; `df /dev/shm`", ("state",), "bytes"
    ),
    Family("shmq_disk_bytes", GAUGE, "The store's disk: used and free.", "statvfs; `df`", ("state",), "bytes"),
    Family(
        "shmq_clients",
        GAUGE,
        "Attached connections of this host's processes, the bridges' own included.",
        "client slots",
        ("state",),
    ),
    Family(
        "shmq_attached_processes",
        GAUGE,
        "Processes attached, as the kernel counts them; -1 when it cannot be asked.",
        "presence semaphore; `ipcs -s`",
    ),
    Family("shmq_connections", GAUGE, "Connections to the primary bridge.", BRIDGE, ("transport",)),
    Family("shmq_held_pulls", GAUGE, "Pulls that wait for messages.", BRIDGE),
    Family(
        "shmq_records_passed_over",
        COUNTER,
        "Damaged records that were passed over where the primary bridge read them.",
        f"{BRIDGE}; its log: `log.damaged`",
    ),
    Family("shmq_popped_checkpoints", GAUGE, "Pops that are not settled yet.", BRIDGE),
    Family(
        "shmq_subscription_conflicts",
        COUNTER,
        "Heartbeats that disagreed with their group's subscription.",
        f"{BRIDGE}; `shmq group show`",
        ("consumer_group",),
    ),
    Family(
        "shmq_redeliveries",
        COUNTER,
        "Messages given back to be delivered again, or buried.",
        f"{BRIDGE}; `mqadmin statsAll`",
        ("topic", "consumer_group"),
    ),
    Family(
        "shmq_group_lost_messages",
        COUNTER,
        "Messages that cleaning deleted before the group had acknowledged them.",
        "offset slots; `shmq health`",
        ("topic", "consumer_group", "is_retry", "is_system"),
    ),
    Family("shmq_transactions_settled", COUNTER, "Transactions that ended, wherever.", "end of the op queue"),
    Family(
        "shmq_request_latency_seconds",
        HISTOGRAM,
        "Time from a request's turn to its answer, by class; plain sends included, held pulls not.",
        BRIDGE,
        ("class",),
        "seconds",
        FAST_BOUNDS,
        SECOND,
    ),
    Family("shmq_requests_failed", COUNTER, "Requests answered with an error.", BRIDGE, ("class",)),
    Family(
        "shmq_flush_latency_seconds",
        HISTOGRAM,
        "Time of a flush of the log.",
        KEEPER,
        (),
        "seconds",
        DISK_BOUNDS,
        SECOND,
    ),
    Family(
        "shmq_dispatch_latency_seconds",
        HISTOGRAM,
        "Longest time that units written in a round had waited for their files.",
        KEEPER,
        (),
        "seconds",
        DISK_BOUNDS,
        SECOND,
    ),
    Family("shmq_flush_failures", COUNTER, "Flushes that failed; the first one ends all writing.", KEEPER),
    Family(
        "shmq_keeper_beat_age_seconds",
        GAUGE,
        "Time since the keeper's last sign of life.",
        "control segment",
        unit="seconds",
    ),
    Family(
        "shmq_beat_age_seconds",
        GAUGE,
        "Time since a process did its regular work: it may live and be stuck.",
        "a word each writes about once a second; what feeds systemd's watchdog",
        ("role",),
        "seconds",
    ),
    Family(
        "shmq_recovery_time_seconds",
        GAUGE,
        "When the last recovery ended, seconds since the epoch.",
        KEEPER,
        unit="seconds",
    ),
    Family("shmq_recovery_messages", GAUGE, "Records the last recovery read.", f"{KEEPER}; `shmq serve`'s first lines"),
    Family("shmq_recovery_damages", GAUGE, "Unreadable ranges of the log the last recovery found.", KEEPER),
    Family(
        SCRUB_BYTES,
        COUNTER,
        "Bytes of log and units that the scrubber compared with their checksums.",
        KEEPER,
        unit="bytes",
    ),
    Family(SCRUB_DAMAGES, COUNTER, "Unreadable ranges of the log the scrubber found.", KEEPER),
    Family(SCRUB_REPAIRS, COUNTER, "Units and tables the scrubber found wrong and had written again.", KEEPER),
    Family("shmq_records_damaged", COUNTER, "Records that readers left out because they are damaged.", KEEPER),
    Family("shmq_units_mended", COUNTER, "Units that readers found wrong and that were written again.", KEEPER),
    Family("shmq_process_up", GAUGE, "1 while a process of the broker lives.", "instance.json and /proc", ("role",)),
    Family(
        "shmq_process_cpu_seconds",
        COUNTER,
        "Processor time of a process of the broker.",
        "/proc/PID/stat",
        ("role",),
        "seconds",
    ),
    Family(
        "shmq_process_resident_memory_bytes",
        GAUGE,
        "Resident memory of it, shared pages included.",
        "/proc/PID/statm",
        ("role",),
        "bytes",
    ),
    Family("shmq_process_open_fds", GAUGE, "Its open descriptors.", "/proc/PID/fd", ("role",)),
    Family("shmq_process_threads", GAUGE, "Its threads.", "/proc/PID/stat", ("role",)),
    Family("shmq_counters_refused", GAUGE, "Counters that found no room in the counters segment.", "counters segment"),
    Family("shmq_scrape_duration_seconds", GAUGE, "Time it took to gather all this.", "the exporter", unit="seconds"),
)

FAMILIES: dict[str, Family] = {family.name: family for family in (*ROCKETMQ, *_OWN)}
