"""A worker whose address space is limited reads and writes what fits, and says what limits it where it does not."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pytest

from shmq.spark.access import segments
from shmq.spark.access.memory_limit import explained, memory_explained
from shmq.spark.options import parse_options
from shmq.spark.scan.reader import ShmqReader
from shmq.spark.sink.connection import find_broker
from shmq.spark.sink.options import parse_sink_options
from shmq.spark.sink.writer import ShmqWriter, Writing
from shmq.testing import Broker
from tests.spark.cluster import Driver, DriverError

ROWS = 4000
ENOUGH = 2 << 30
SCARCE = 1 << 19
LARGE_FILE = 256 << 20
LARGER_FILE, LIMIT = 3 << 29, "2g"  # a Python worker with pyarrow has half a GiB or more of the limit already


@pytest.fixture(scope="module")
def limited_topic(mq: Any) -> str:
    for number in range(ROWS):
        mq.send("limited", b"%d" % number + b"x" * 1000)
    return "limited"


def in_child(room: int, work: Callable[[], object]) -> str:
    """What a process says that may use so much more address space than it has."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            segments._attached.clear()  # as in a worker that has just been forked
            used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (used + room, used + room))
            said = str(work())
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        os.write(write_end, said.encode()[:4000])
        os._exit(0)
    os.close(write_end)
    said = os.read(read_end, 4096).decode()
    os.close(read_end)
    os.waitpid(child, 0)
    return said


def reads(broker: Any, topic: str, access: str = "shm") -> Callable[[], object]:
    reader = ShmqReader(parse_options({"store": broker.url, "topic": topic, "access": access}), ("body",))
    parts = reader.partitions()

    def work() -> object:
        return sum(batch.num_rows for part in parts for batch in reader.read(part))

    return work


def writes(broker: Any) -> Callable[[], object]:
    options = parse_sink_options({"store": broker.url, "topic": "limited-sink", "access": "shm"})
    writer = ShmqWriter(Writing(options, ("body",), find_broker(options)[1]))
    batch = pyarrow.record_batch({"body": [b"y" * 1000] * ROWS})

    def work() -> object:
        message: Any = writer.write(iter([batch]))
        return message.rows

    return work


def test_what_fits_is_read_and_written(broker: Any, limited_topic: str) -> None:
    assert in_child(ENOUGH, reads(broker, limited_topic)) == str(ROWS)
    assert in_child(ENOUGH, writes(broker)) == str(ROWS)


@pytest.mark.parametrize("side", ["source", "sink"])
def test_what_does_not_fit_names_the_setting_and_the_cure(broker: Any, limited_topic: str, side: str) -> None:
    said = in_child(SCARCE, reads(broker, limited_topic) if side == "source" else writes(broker))
    assert said.startswith("SegmentError") and "spark.executor.pyspark.memory" in said and "raise it" in said, said


def test_a_log_file_that_does_not_fit_is_read_over_tcp_where_that_may_be() -> None:
    with Broker(file_bytes=LARGE_FILE, tcp=True) as large, large.connect() as connection:
        for number in range(ROWS):
            connection.send("limited", b"%d" % number)
        said = in_child(LARGE_FILE - (16 << 20), reads(large, "limited"))
        assert said.startswith("SegmentError") and "spark.executor.pyspark.memory" in said, said
        assert in_child(LARGE_FILE - (16 << 20), reads(large, "limited", "auto")) == str(ROWS)


@pytest.mark.peer
def test_a_session_with_the_setting_reads_over_tcp_or_says_so(tmp_path: Path) -> None:
    """Spark sets the limit itself; the rows are those of a session without it."""
    with Broker(file_bytes=LARGER_FILE, tcp=True) as large, large.connect() as connection:
        for number in range(ROWS):
            connection.send("limited", b"%d" % number)
        session = Driver(tmp_path, "local[2]", **{"spark.executor.pyspark.memory": LIMIT})
        try:
            found = session.call("tests.spark.calls:totals", options={"store": large.url, "topic": "limited"})
            assert (found["rows"], found["places"]) == (ROWS, ROWS)
            assert found["bytes"] == sum(len(b"%d" % number) for number in range(ROWS))
            with pytest.raises(DriverError) as refused:
                options = {"store": large.url, "topic": "limited", "access": "shm"}
                session.call("tests.spark.calls:totals", options=options)
        finally:
            session.end()
    said = str(refused.value)
    assert "2048 MiB of address space (spark.executor.pyspark.memory)" in said and "set option access=remote" in said


def test_without_a_limit_an_error_stays_what_it_was() -> None:
    def fails() -> Any:
        yield 1
        raise MemoryError("no limit of Spark's")

    with pytest.raises(MemoryError, match="no limit of Spark's"):
        list(explained(fails()))
    with pytest.raises(KeyError), memory_explained():
        raise KeyError("not about memory")
