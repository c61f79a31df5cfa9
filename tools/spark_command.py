"""`shmq spark`: the jobs over the PySpark source, by name; each is imported when it is called.

No job is imported here, so that help, completion and every other command work without PySpark.
"""

from __future__ import annotations

from shmq.tools.command import Lazy, LazyGroup

_JOBS = "Jobs"

spark = LazyGroup(
    "spark",
    table={
        "archive": Lazy("shmq.spark.jobs.commands.archive:archive", "Topics to a Delta table, exactly once.", _JOBS),
        "replay": Lazy("shmq.spark.jobs.commands.replay:replay", "An archive or a topic to a topic, in order.", _JOBS),
        "reconcile": Lazy("shmq.spark.jobs.commands.reconcile:reconcile", "Gaps, duplicates, archive, ledger.", _JOBS),
        "lag": Lazy("shmq.spark.jobs.commands.lag:lag", "Lag over time, latency as percentiles.", _JOBS),
        "dlq": Lazy("shmq.spark.jobs.commands.dlq:dlq", "Dead letters by cause; send them again.", _JOBS),
    },
    help="Jobs on Spark: on this host's processors, or with --master on a cluster.\n\n"
    "They need: pip install 'shmq[spark]', and Java 17",
)
