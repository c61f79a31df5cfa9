"""A streaming query's source with the engine played by the test: offsets go through JSON as through a checkpoint."""

from __future__ import annotations

import json
from typing import Any

from pyspark.sql.streaming.datasource import ReadAllAvailable

from shmq.spark.options import parse_options
from shmq.spark.scan.stream import ShmqStreamReader

COLUMNS = ("queue_id", "queue_offset", "body")
SENT = 40


def fill(mq: Any, topic: str, first: int = 0) -> None:
    """Make a topic of two queues with so many messages, which are numbers."""
    mq.admin.create_topic(topic, queues=2)
    for number in range(first, first + SENT):
        mq.send(topic, b"%d" % number, queue_id=number % 2)


class Query:
    """Plays Spark's engine for one query, its checkpoint included."""

    def __init__(self, broker: Any, topic: str | None, **options: Any) -> None:
        texts = {name: str(value) for name, value in options.items()} | ({"topic": topic} if topic else {})
        self._options = parse_options({"store": broker.url, **texts}, stream=True)
        self.start()

    def start(self) -> None:
        """Begin in a new process, as after a crash."""
        self.reader = ShmqStreamReader(self._options, COLUMNS)

    def begin(self) -> dict[str, Any]:
        return json.loads(json.dumps(self.reader.initialOffset()))

    def step(self, at: dict[str, Any], *, everything: bool = False) -> tuple[dict[str, Any], list[bytes]]:
        """One batch: the new offset and what it holds."""
        limit = ReadAllAvailable() if everything else self.reader.getDefaultReadLimit()
        end = json.loads(json.dumps(self.reader.latestOffset(at, limit)))
        return end, self.batch(at, end)

    def batch(self, start: dict[str, Any], end: dict[str, Any]) -> list[bytes]:
        return self.read(self.reader.partitions(start, end))

    def read(self, parts: list[Any]) -> list[bytes]:
        return [row["body"] for part in parts for batch in self.reader.read(part) for row in batch.to_pylist()]
