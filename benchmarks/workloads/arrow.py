"""The workload of topics as Arrow batches: a query of DuckDB over `mq.arrow`, from the call to its answer.

duckdb_bodies    count(*) and the sum of the bodies' bytes of ten million messages of 100 bytes, whose log is read
                 from memory; checksums of the records are looked at, as everywhere
"""

from __future__ import annotations

import contextlib
import time
from functools import cached_property
from typing import Final

import shmq
from benchmarks.workload import Figure, PeerAbsent, Sample, Workload
from shmq.testing import Broker

MESSAGES, MESSAGES_MIN = 10_000_000, 20_000
BODY_BYTES, QUEUES, BATCH = 100, 4, 1000
ROWS_EACH_S: Final = 5e6
QUERY: Final = "select count(*), sum(octet_length(body)) from topic"


class Filled:
    """A broker with one topic for each number of messages; filled when it is first asked for."""

    def __init__(self) -> None:
        self._resources = contextlib.ExitStack()
        self._topics: dict[int, str] = {}

    def __enter__(self) -> Filled:
        return self

    def __exit__(self, *error: object) -> None:
        self._resources.close()

    @cached_property
    def connection(self) -> shmq.Connection:
        """A connection to the broker, which is started for it."""
        broker = self._resources.enter_context(Broker(small=False, populate_bytes=1 << 30))
        return self._resources.enter_context(shmq.connect(broker.url))

    def topic(self, messages: int) -> str:
        """Return a topic with so many messages of BODY_BYTES in QUEUES queues."""
        if messages not in self._topics:
            name = self._topics[messages] = f"bodies-{messages}"
            self.connection.admin.create_topic(name, queues=QUEUES)
            bodies = [bytes(BODY_BYTES)] * BATCH
            for _ in range(messages // BATCH):
                self.connection.send_batch(name, bodies)
        return self._topics[messages]


def _duckdb_bodies(filled: Filled, effort: float) -> Sample:
    """Rows a second of the query."""
    try:
        import duckdb
    except ImportError as error:
        raise PeerAbsent("pip install 'shmq[sql]'") from error
    messages = max(MESSAGES_MIN, int(MESSAGES * effort)) // BATCH * BATCH
    topic = filled.topic(messages)
    with duckdb.connect() as database:
        begin = time.perf_counter()
        database.register("topic", filled.connection.arrow(topic, columns=["body"]))
        found = database.execute(QUERY).fetchall()
        seconds = time.perf_counter() - begin
    if found != [(messages, messages * BODY_BYTES)]:
        raise RuntimeError(f"{found} was counted instead of {messages} messages of {BODY_BYTES} bytes")
    return {"rate": messages / seconds}


def workloads(filled: Filled) -> list[Workload]:
    """Return the workload with its bound."""
    limits = {"5 million rows a second": ROWS_EACH_S}
    figure = Figure("duckdb_bodies_100b", "rate", "row/s", is_rate=True, limits=limits)
    return [Workload("duckdb_bodies", lambda effort: _duckdb_bodies(filled, effort), [figure])]
