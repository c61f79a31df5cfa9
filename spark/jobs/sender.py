"""Archived or dead messages sent again, in an executor: in order, at a limited rate, each once.

    rows of one source queue, in order ─▶ lock ─▶ what of it is in the target already? ─▶ send the rest

Rules: (1) the log is the only record of what was sent, because a progress table beside it could not change in the same
instant: every message carries the run's name and where it came from (SHMQ_RUN, SHMQ_FROM), and a task that begins reads
them back, so a killed task neither loses nor repeats a message, and neither does a broker that dies under it; (2) one
task at a time sends from a source queue: a file lock sees to it, and a task that outlived its driver cannot send beside
its successor on the same host; (3) a message that came from the target does not go back.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from shmq import connect
from shmq.errors import (
    ConnectError,
    MeasuredError,
    PermissionDenied,
    RequestTimeout,
    SendTimeout,
    ShmqError,
    UsageError,
    VersionMismatch,
)
from shmq.message import DEAD_LETTER_REASON
from shmq.plain_file import open_plain
from shmq.properties import RESERVED_PROPERTIES
from shmq.shm.descriptors import above_standard
from shmq.spark.access.way import open_place
from shmq.spark.options import full_url, parse_options
from shmq.spark.scan.reader import ShmqReader
from shmq.spark.schema import refused
from shmq.words import escaped, sent_again

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RUN: Final = "SHMQ_RUN"
FROM: Final = "SHMQ_FROM"
COLUMNS: Final = ("topic", "queue_id", "queue_offset", "body", "tags", "keys", "properties", "flag")
_BURST_SECONDS: Final = 0.05
_PATIENCE_SECONDS: Final = 60.0  # with a broker that is started again, or is full
_PAUSE_SECONDS: Final = 0.5
_STAMPS: Final = ("topic", "queue_id", "queue_offset", "properties")


@dataclass(frozen=True)
class Sending:
    """The settings of sending; plain data. Rates are messages a second, of one task."""

    place: dict[str, str]  # options of the source that say which broker
    run: str
    target: str | None  # None: each row to its origin, a dead letter's topic
    rate: float = 0.0
    same_queue: bool = True
    targets: tuple[str, ...] = ()  # without a target: every topic a row may go to
    dry: bool = False  # only count

    def __call__(self, rows: Iterable[Any]) -> Iterator[dict[str, Any]]:
        """Send the rows of one partition, and yield the counts of each source queue."""
        with contextlib.closing(_Sender(self)) as sender:
            for row in rows:
                sender.take(row)
            sender.end()
        yield from sender.results


class _Sender:
    """One task's work, source queue by source queue."""

    def __init__(self, sending: Sending) -> None:
        self._sending = sending
        self._mq: Any = None
        self._queue: tuple[str, int] | None = None
        self._free = contextlib.ExitStack()  # holds the lock of the queue
        self._sent = Sent(sending.place, sending.run, (sending.target,) if sending.target else sending.targets)
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
        elif self._sent.has(target, queue, row["queue_offset"]):
            self._counts["in_already"] += 1
        else:
            if not self._sending.dry:
                self._pace()
                self._send_once(target, row, {**_kept(properties), RUN: self._sending.run, FROM: stamp}, properties)
            self._counts["sent"] += 1

    def end(self) -> None:
        """Write the last queue's counts down and let go of it."""
        if self._queue is not None:
            seconds = round(time.monotonic() - self._began, 3)
            topic, queue_id = self._queue
            self.results.append({"topic": topic, "queue_id": queue_id, **self._counts, "seconds": seconds})
            self._free.close()
        self._queue = None

    def close(self) -> None:
        """Let go of everything; harmless twice."""
        self._free.close()
        if self._mq is not None:
            self._mq.close()
        self._mq = None

    def _change(self, queue: tuple[str, int]) -> None:
        self.end()
        self._queue, self._began = queue, time.monotonic()
        self._counts = dict.fromkeys(self._counts, 0)
        if not self._sending.dry:
            self._free.enter_context(alone(f"{self._sending.run}-{queue[0]}-{queue[1]}"))
        self._sent.read_on()  # behind the lock: no other sender works on this queue now

    def _pace(self) -> None:
        """Wait for the next place; what was not used for more than a moment is lost."""
        if not self._sending.rate:
            return
        now = time.monotonic()
        self._at = max(self._at + 1 / self._sending.rate, now - _BURST_SECONDS)
        if self._at > now:
            time.sleep(self._at - now)

    def _send_once(self, target: str, row: Any, stamped: dict[str, str], properties: dict[str, str]) -> None:
        """Send, and send again to a broker that was away; first look whether it has got the message after all."""
        until = time.monotonic() + _PATIENCE_SECONDS
        while True:
            try:
                if self._mq is None:
                    self._mq = connect(full_url(self._sending.place.get("store")))
                    self._sent.read_on()
                    if self._sent.has(target, (row["topic"], row["queue_id"]), row["queue_offset"]):
                        return
                self._send(target, row, stamped, properties)
                return
            except (ConnectError, MeasuredError, SendTimeout, RequestTimeout) as error:
                if time.monotonic() > until or isinstance(error, PermissionDenied | VersionMismatch):
                    raise
            if self._mq is not None:
                with contextlib.suppress(ShmqError):
                    self._mq.close()
            self._mq = None
            time.sleep(_PAUSE_SECONDS)

    def _send(self, target: str, row: Any, stamped: dict[str, str], properties: dict[str, str]) -> None:
        group = escaped("message_group", properties.get("__SHARDINGKEY") or row["keys"] or "")
        place: dict[str, Any] = {"queue_id": row["queue_id"]} if self._sending.same_queue else {}
        if not self._sending.same_queue:
            place["message_group"] = group or f"{row['topic']}/{row['queue_id']}"
        self._mq.send(
            target,
            bytes(row["body"]),
            flag=row["flag"] or 0,
            **{**sent_again({**stamped, "TAGS": row["tags"] or "", "KEYS": row["keys"] or ""}), **place},
        )


class Sent:
    """The messages a run has sent, by the properties of what lies in its targets; each message is read once."""

    def __init__(self, place: dict[str, str], run: str, targets: tuple[str, ...]) -> None:
        self._place = place
        self._run = run
        self._targets = targets
        self._read: dict[str, dict[str, int]] = {}  # as startingOffsets: a queue that is not named begins at its first
        self._found: dict[tuple[str, str], set[int]] = {}  # (target, queue a message came from): its offsets there

    def has(self, target: str, source: tuple[str, int], offset: int) -> bool:
        """Say whether a message was in the target when it was read."""
        return offset in self._found.get((target, f"{source[0]}/{source[1]}"), ())

    def read_on(self) -> None:
        """Read what came into the targets since the last time."""
        access = open_place(self._place)
        there = set(access.topics())
        targets = [name for name in self._targets if name in there]
        if not targets:
            return
        start = {name: self._read[name] for name in targets if name in self._read}
        options = {**self._place, "topics": ",".join(targets), "failOnDataLoss": "false"}
        options |= {"startingOffsets": json.dumps(start)} if start else {}
        reader = ShmqReader(parse_options(options), _STAMPS)
        for part in reader.partitions():
            for batch in reader.read(part):
                self._note(batch)

    def _note(self, batch: Any) -> None:
        columns = (batch.column(name).to_pylist() for name in _STAMPS)
        for topic, queue_id, offset, properties in zip(*columns, strict=True):
            read = self._read.setdefault(topic, {})
            read[str(queue_id)] = max(offset + 1, read.get(str(queue_id), 0))
            known = dict(properties or ())
            source, _, number = known.get(FROM, "").rpartition("/")
            if known.get(RUN) == self._run and number.isdecimal():
                self._found.setdefault((topic, source), set()).add(int(number))


def origin_of(properties: dict[str, str]) -> str:
    """Return the topic a dead letter was sent to first; empty when it does not say."""
    return properties.get("DLQ_ORIGIN_TOPIC") or properties.get("RETRY_TOPIC") or properties.get("REAL_TOPIC") or ""


@contextlib.contextmanager
def alone(name: str) -> Iterator[None]:
    """Be the only one on this host with this name, for the length of a with block."""
    folder = Path(tempfile.gettempdir()) / f"shmq-sending-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    with above_standard:
        path = folder / name.replace("/", "_").replace("%", "_")
        file = open(open_plain(path, os.O_WRONLY | os.O_CREAT), "ab")  # noqa: SIM115 - what is done alone is not ours
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def check_session(spark: SparkSession) -> None:
    """Refuse a session that may run two attempts of one task at a time: what sees to it that one sends is a host's.

    Raises:
        UsageError: it speculates.
    """
    if str(spark.conf.get("spark.speculation", "false")).lower() == "true":
        raise refused(
            "spark.speculation=true runs tasks twice, and what a task sends is sent", "--conf spark.speculation=false"
        )


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
    """The sender's own properties, without those that RocketMQ, the burial or an earlier run added."""
    dropped = {RUN, FROM, DEAD_LETTER_REASON}
    return {k: v for k, v in properties.items() if v and k not in RESERVED_PROPERTIES and k not in dropped}


def sent_report(rows: Iterable[dict[str, Any]], *, dry: bool = False) -> dict[str, Any]:
    """Return the counts of all tasks; of a dry run what would have been sent counts as `messages`."""
    named = [{"messages" if dry and name == "sent" else name: value for name, value in row.items()} for row in rows]
    queues = sorted(named, key=lambda each: (each["topic"], each["queue_id"]))
    counts = ("messages" if dry else "sent", "in_already", "loops")
    return {
        **{name: sum(each[name] for each in queues) for name in counts},
        "queues": [each for each in queues if any(each[name] for name in counts)],
    }
