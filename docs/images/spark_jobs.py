"""Makes the pictures and sample reports of docs/spark-jobs.md: a small shop on a broker of its own, every job over it.

python docs/images/spark_jobs.py FOLDER [JOB …]      writes spark-lag.png, spark-dlq.png, … and *.json; some jobs only
"""

from __future__ import annotations

import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from shmq.errors import Reject
from shmq.spark.jobs.archive import ArchiveSettings, run_archive
from shmq.spark.jobs.commands.job import write_report
from shmq.spark.jobs.dlq import DlqSettings, run_dlq
from shmq.spark.jobs.driver.session import open_session
from shmq.spark.jobs.lag import LagSettings, run_lag
from shmq.spark.jobs.ledger import ledger_line
from shmq.spark.jobs.plots import draw
from shmq.spark.jobs.reconcile import ReconcileSettings, run_reconcile
from shmq.spark.jobs.replay import ReplaySettings, run_replay
from shmq.testing import Broker

MESSAGES = 20_000
LAG_SECONDS = 60.0
CAUSES = ("card 4711 declined", "customer 17 is unknown", "stock of 99 is empty")


def produce(mq: Any, ledger: Path, ended: threading.Event) -> None:
    """Send orders, some of which no consumer will like, and write down what was acknowledged."""
    choose = random.Random(1)
    with ledger.open("w") as file:
        for number in range(MESSAGES):
            body = b"order %d" % number if choose.random() > 0.01 else b"bad order %d" % number
            receipt = mq.send("orders", body, key=str(number), tag=choose.choice(("paid", "sent")))
            file.write(ledger_line(receipt, body, key=str(number)))
            if number % 200 == 199 and ended.wait(0.25):
                return


def main(folder: Path, wanted: list[str]) -> None:
    """Run everything once, or what is wanted."""
    folder.mkdir(exist_ok=True, parents=True)
    with tempfile.TemporaryDirectory() as scratch, Broker(file_bytes=64 << 20) as broker:
        ledger, archive = Path(scratch, "ledger.jsonl"), str(Path(scratch, "archive"))
        with broker.connect(trace=True) as mq, open_session("pictures", "local[2]") as spark:
            mq.admin.create_topic("orders", queues=4)
            mq.admin.create_topic("orders-again", queues=4)
            listener = mq.listener("orders", group="billing", attempts_max=1)

            @listener
            def bill(message: Any) -> None:
                time.sleep(0.002)  # a slow group: it falls behind, then catches up
                if message.body.startswith(b"bad"):
                    raise Reject(random.choice(CAUSES))

            mq.start()
            ended = threading.Event()
            producer = threading.Thread(target=produce, args=(mq, ledger, ended))
            producer.start()
            source = {"store": broker.url, "topics": "orders"}
            jobs: dict[str, Callable[[], dict[str, Any]]] = {
                "lag": lambda: (
                    run_lag(spark, LagSettings(source, "billing", LAG_SECONDS, 0.5), told=print) | {"late": []}
                ),
                "archive": lambda: run_archive(
                    spark, ArchiveSettings(archive, {**source, "maxBytesPerTrigger": "1m"}), told=print
                ),
                "reconcile": lambda: run_reconcile(spark, ReconcileSettings(source, archive, (str(ledger),))),
                "replay": lambda: run_replay(
                    spark, ReplaySettings(source, "orders-again", "july", archive, where="tags = 'paid'", rate=1000.0)
                ),
                "dlq": lambda: run_dlq(spark, DlqSettings({"store": broker.url}, samples=1)),
            }
            reports = []
            for name, job in jobs.items():
                if name != "lag":  # which looks on while orders come
                    producer.join()
                if name in wanted or not wanted:
                    reports.append(job())
    for report in reports:
        write_report(folder / f"spark-{report['job']}.json", {"dry_run": False, **report})
        draw(report, str(folder / f"spark-{report['job']}.png"))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
