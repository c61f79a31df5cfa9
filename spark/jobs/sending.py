"""Owns sending archived or dead messages again, in an executor: in order, at most so fast, each once.

    rows of one source queue, in order ─▶ lock ─▶ what of it is in the target already? ─▶ send the rest

It does not know which rows are meant. Rules: (1) the log is the only record of what was sent: every message carries
the run's name and where it came from (SHMQ_RUN, SHMQ_FROM), and a task that begins reads them back, so a killed task
neither loses nor repeats a message; (2) one task at a time sends from a source queue: a file lock sees to it, and
a task that outlived its driver cannot send beside its successor; (3) a message that came from the target does not go
back.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from shmq import connect
from shmq.errors import TopicNotFound, UsageError
from shmq.message import DEAD_LETTER_REASON, RESERVED_PROPERTIES
from shmq.spark.attach import full_url
from shmq.spark.jobs.place import open_place
from shmq.spark.options import parse_options
from shmq.spark.reader import ShmqReader

RUN: Final = "SHMQ_RUN"
FROM: Final = "SHMQ_FROM"
COLUMNS: Final = ("topic", "queue_id", "queue_offset", "body", "tags", "keys", "properties", "flag")
_BURST_SECONDS: Final = 0.05


@dataclass(frozen=True)
class Sending:
    """How rows are sent; plain data. Rates are messages a second, of one task."""

    place: dict[str, str]  # options of the source that say which broker
    run: str
    target: str | None  # None: each row to its origin, a dead letter's topic
    rate: float = 0.0
    same_queue: bool = True

    def __call__(self, rows: Iterable[Any]) -> Iterator[dict[str, Any]]:
        """Send the rows of one partition, and yield the counts of each source queue."""
        with connect(full_url(self.place.get("store"))) as mq:
            sender = _Sender(self, mq)
            for row in rows:
                sender.take(row)
            sender.end()
        yield from sender.results


class _Sender:
    """One task's work, source queue by source queue."""

    def __init__(self, sending: Sending, mq: Any) -> None:
        self._sending = sending
        self._mq = mq
        self._queue: tuple[str, int] | None = None
        self._lock: Any = None
        self._done: set[tuple[str, str]] = set()  # (target, SHMQ_FROM) of this run
        self._counts = {"sent": 0, "in_already": 0, "loops": 0}
        self._began = self._at = time.monotonic()
        self.results: list[dict[str, Any]] = []

    def take(self, row: Any) -> None:
        """Send one row, unless it was sent."""
        queue = (row["topic"], row["queue_id"])
        if queue != self._queue:
            self._change(queue)
        properties = dict(row["properties"] or ())
        target = self._sending.target or origin_of(properties)
        stamp = f"{row['topic']}/{row['queue_id']}/{row['queue_offset']}"
        if properties.get(FROM, "").rpartition("/")[0].rpartition("/")[0] == target:
            self._counts["loops"] += 1
        elif (target, stamp) in self._done:
            self._counts["in_already"] += 1
        else:
            self._pace()
            self._send(target, row, {**_kept(properties), RUN: self._sending.run, FROM: stamp}, properties)
            self._counts["sent"] += 1

    def end(self) -> None:
        """Write the last queue's counts down and let go of it."""
        if self._queue is not None:
            seconds = time.monotonic() - self._began
            topic, queue_id = self._queue
            self.results.append({"topic": topic, "queue_id": queue_id, **self._counts, "seconds": seconds})
            self._lock.__exit__(None, None, None)
        self._queue = None

    def _change(self, queue: tuple[str, int]) -> None:
        self.end()
        self._queue, self._began = queue, time.monotonic()
        self._counts = dict.fromkeys(self._counts, 0)
        self._lock = alone(f"{self._sending.run}-{queue[0]}-{queue[1]}")
        self._lock.__enter__()
        prefix = f"{queue[0]}/{queue[1]}/"
        self._done = {(topic, stamp) for topic, stamp in self._sent_before(queue[0]) if stamp.startswith(prefix)}

    def _sent_before(self, source: str) -> set[tuple[str, str]]:
        """What this run sent before, by all its targets."""
        place, run = self._sending.place, self._sending.run
        if self._sending.target is not None:
            return stamps_in(place, run, topic=self._sending.target)
        return stamps_in(place, run, topicPattern=r"(?!%DLQ%|%RETRY%|rmq_|RMQ_|SCHEDULE_).*")

    def _pace(self) -> None:
        """Wait for the next place; what was not used for more than a moment is lost."""
        if not self._sending.rate:
            return
        now = time.monotonic()
        self._at = max(self._at + 1 / self._sending.rate, now - _BURST_SECONDS)
        if self._at > now:
            time.sleep(self._at - now)

    def _send(self, target: str, row: Any, stamped: dict[str, str], properties: dict[str, str]) -> None:
        group = properties.get("__SHARDINGKEY")
        place: dict[str, Any] = {"queue_id": row["queue_id"]} if self._sending.same_queue else {}
        if not self._sending.same_queue:
            place["message_group"] = group or row["keys"] or f"{row['topic']}/{row['queue_id']}"
        self._mq.send(
            target,
            bytes(row["body"]),
            tag=row["tags"] or None,
            keys=(row["keys"] or "").split() or None,
            properties=stamped,
            flag=row["flag"] or 0,
            **place,
        )


def stamps_in(place: dict[str, str], run: str, **where: str) -> set[tuple[str, str]]:
    """Return (topic, SHMQ_FROM) of the messages a run has sent."""
    reader = ShmqReader(parse_options({**place, **where}), ("topic", "properties"))
    found: set[tuple[str, str]] = set()
    try:
        parts = reader.partitions()
    except (TopicNotFound, UsageError):
        return found
    for part in parts:
        for batch in reader.read(part):
            for topic, properties in zip(*(batch.column(name).to_pylist() for name in batch.schema.names), strict=True):
                known = dict(properties or ())
                if known.get(RUN) == run:
                    found.add((topic, known.get(FROM, "")))
    return found


def origin_of(properties: dict[str, str]) -> str:
    """Return the topic a dead letter was sent to first; empty when it does not say."""
    return properties.get("DLQ_ORIGIN_TOPIC") or properties.get("RETRY_TOPIC") or properties.get("REAL_TOPIC") or ""


@contextmanager
def alone(name: str) -> Iterator[None]:
    """Be the only one on this host with this name, for the length of a with block."""
    folder = Path(tempfile.gettempdir()) / f"shmq-sending-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    with open(folder / name.replace("/", "_").replace("%", "_"), "ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def check_target(place: dict[str, str], target: str, *, queues: int, same_queue: bool) -> None:
    """Check that a target can take what is meant for it.

    Raises:
        UsageError: it does not exist, or has too few queues to keep each message in its own.
    """
    there = len(open_place(place).queues(target))
    if same_queue and there < queues:
        raise UsageError(
            f"topic {target} has {there} queues, the messages come from {queues}",
            hint=f"shmq topic create {target} --queues {queues}, or order by key: --order key",
        )


def _kept(properties: dict[str, str]) -> dict[str, str]:
    """What the sender chose, without what RocketMQ, the burial or an earlier run added."""
    dropped = {RUN, FROM, DEAD_LETTER_REASON}
    return {k: v for k, v in properties.items() if v and k not in RESERVED_PROPERTIES and k not in dropped}


def sent_report(rows: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Return the counts of all tasks."""
    queues = sorted(rows, key=lambda each: (each["topic"], each["queue_id"]))
    return {
        **{name: sum(each[name] for each in queues) for name in ("sent", "in_already", "loops")},
        "queues": [each for each in queues if each["sent"] or each["in_already"] or each["loops"]],
    }
