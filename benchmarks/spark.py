"""The command `python -m benchmarks.spark`: what reading with Spark reaches of what Spark can do at all.

Spark's side is in `brokers/spark_arena.py`, the rivals are in `brokers/spark_sources.py`. Options and output are those
of `python -m benchmarks.local`; the exit code is 1 when a must does not hold.
"""

from __future__ import annotations

import multiprocessing
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import shmq
from benchmarks.brokers.spark_arena import Arena, repeating
from benchmarks.command import run
from benchmarks.workload import Figure, Sample, Workload

CEILING = "ready-made batches"
KIB_ROWS = 1_500_000  # 1.9 GB of log
SMALL_ROWS = 4_000_000
ROWS_MIN = 10_000
ROUNDS_BEFORE = 1  # the JVM compiles what it runs
WHOLE_MUST = 0.8
COUNT_MUST = 0.6
TAG_MUST = 5.0
ARCHIVE_MUST = 2.0
OVERHEAD_MUST = 1.3
APPEND_MUST = 1.5
TRIGGER_ROWS = 200
TRIGGERS = 40
PRODUCERS = 2
BURST = 200
BURST_EACH_S = 0.01
PRODUCE_S = 8.0


def workloads(arena: Arena) -> list[Workload]:
    """Every workload, in the order of the table."""
    table = [_whole(arena), _count(arena), _tags(arena), _archive(arena), _overhead(arena), _appends(arena)]
    return [replace(workload, rounds_before=ROUNDS_BEFORE) for workload in table]


def _rows(full: int, effort: float) -> int:
    return max(ROWS_MIN, int(full * effort))


def _timed(action: Callable[[], object], rows: int) -> Sample:
    begin = time.perf_counter()
    action()
    return {"rate": rows / (time.perf_counter() - begin)}


def _into_nothing(frame: Any) -> None:
    frame.write.format("noop").mode("overwrite").save()


def _whole(arena: Arena) -> Workload:
    """All columns of 1 KiB messages, from load() to the last row."""

    def ours(effort: float) -> Sample:
        rows = _rows(KIB_ROWS, effort)
        topic = arena.topic(1024, rows)
        return _timed(lambda: _into_nothing(arena.load(topic)), rows)

    def ceiling(effort: float) -> Sample:
        rows = _rows(KIB_ROWS, effort)
        frame = arena.ready_made(arena.topic(1024, rows))
        return _timed(lambda: _into_nothing(frame), rows)

    figure = Figure("spark_read_1kib", "rate", "row/s", is_rate=True, musts={CEILING: WHOLE_MUST})
    return Workload("spark_read_1kib", ours, [figure], {CEILING: ceiling})


def _count(arena: Arena) -> Workload:
    """count() of 100 byte messages."""

    def ours(effort: float) -> Sample:
        rows = _rows(SMALL_ROWS, effort)
        topic = arena.topic(100, rows)
        return _timed(lambda: _expect(arena.load(topic).count(), rows), rows)

    def ceiling(effort: float) -> Sample:
        rows = _rows(SMALL_ROWS, effort)
        frame = arena.ready_made(arena.topic(100, rows))
        return _timed(lambda: _expect(frame.count(), rows), rows)

    figure = Figure("spark_count_100b", "rate", "row/s", is_rate=True, musts={CEILING: COUNT_MUST})
    return Workload("spark_count_100b", ours, [figure], {CEILING: ceiling})


def _tags(arena: Arena) -> Workload:
    """One tag of a hundred, chosen by an option, against reading everything."""

    def of(**options: str) -> Callable[[float], Sample]:
        def read(effort: float) -> Sample:
            rows = _rows(SMALL_ROWS, effort)
            topic = arena.topic(100, rows)
            return _timed(lambda: _into_nothing(arena.load(topic, **options)), rows)

        return read

    figure = Figure("spark_tag_1_percent", "rate", "row/s", is_rate=True, musts={"unfiltered": TAG_MUST})
    return Workload("spark_tag_1_percent", of(tags="rare"), [figure], {"unfiltered": of()})


def _archive(arena: Arena) -> Workload:
    """A topic to Parquet files: by the job, into a Delta table, and by Spark's own sink fed by the same source."""

    def job(effort: float) -> Sample:
        from shmq.spark.jobs.archive import ArchiveSettings, run_archive

        rows = _rows(KIB_ROWS, effort)
        columns = tuple(arena.load(arena.topic(1024, rows)).columns)
        with arena.folder() as path:
            source = {"store": arena.broker.url, "topic": arena.topic(1024, rows), "startingOffsets": "earliest"}
            settings = ArchiveSettings(path, source, columns=columns, partition_by=("topic",), compression="snappy")
            sample = _timed(lambda: run_archive(arena.spark, settings), rows)
            _expect(arena.spark.read.parquet(f"{path}/topic=*").count(), rows)
        return sample

    def sink(effort: float) -> Sample:
        rows = _rows(KIB_ROWS, effort)
        given = {"store": arena.broker.url, "topic": arena.topic(1024, rows), "startingOffsets": "earliest"}
        stream = arena.spark.readStream.format("shmq").options(**given).load()
        with arena.folder() as path:
            writer = stream.writeStream.format("parquet").partitionBy("topic").trigger(availableNow=True)
            options = {"path": f"{path}/data", "checkpointLocation": f"{path}/checkpoint"}
            sample = _timed(lambda: writer.options(**options).start().awaitTermination(), rows)
            _expect(arena.spark.read.parquet(f"{path}/data").count(), rows)
        return sample

    figure = Figure("spark_archive", "rate", "row/s", is_rate=True, musts={"Spark's Parquet sink": ARCHIVE_MUST})
    return Workload("spark_archive", job, [figure], {"Spark's Parquet sink": sink})


def _overhead(arena: Arena) -> Workload:
    """A micro-batch of 200 rows, against one of a source that does nothing."""

    def triggers(effort: float) -> int:
        return max(5, int(TRIGGERS * effort))

    def ours(effort: float) -> Sample:
        topic = arena.topic(100, _rows(SMALL_ROWS, effort))
        given = {"store": arena.broker.url, "topic": topic, "startingOffsets": "earliest"}
        stream = arena.spark.readStream.format("shmq").options(**given, maxOffsetsPerTrigger=TRIGGER_ROWS)
        return {"ms": arena.batch_ms(stream.load(), triggers(effort))}

    def empty(effort: float) -> Sample:
        stream = arena.spark.readStream.format("empty").option("ddl", "queue_offset bigint, body binary")
        return {"ms": arena.batch_ms(stream.load(), triggers(effort))}

    figure = Figure("spark_micro_batch", "ms", "ms", musts={"empty source": OVERHEAD_MUST})
    return Workload("spark_micro_batch", ours, [figure], {"empty source": empty})


def _appends(arena: Arena) -> Workload:
    """send() of local producers while Spark reads, against the same without Spark."""

    def with_spark(effort: float) -> Sample:
        topic = arena.topic(1024, _rows(KIB_ROWS, effort))
        with repeating(lambda: _into_nothing(arena.load(topic))):
            return _send_times(arena.broker.url, effort)

    def without(effort: float) -> Sample:
        return _send_times(arena.broker.url, effort)

    figure = Figure("append_p99_with_spark", "p99_us", "us", musts={"without Spark": APPEND_MUST})
    return Workload("append_with_spark", with_spark, [figure], {"without Spark": without})


def _send_times(url: str, effort: float) -> Sample:
    """Produce in bursts from several processes; the 99th percentile of all their sends."""
    seconds = max(0.5, PRODUCE_S * effort)
    context = multiprocessing.get_context("spawn")
    with context.Pool(PRODUCERS) as pool:
        taken = pool.starmap(send_in_bursts, [(url, seconds)] * PRODUCERS)
    durations = sorted(each for part in taken for each in part)
    return {"p99_us": durations[len(durations) * 99 // 100] / 1000}


def send_in_bursts(url: str, seconds: float) -> list[int]:
    """Send `BURST` messages of 256 bytes every `BURST_EACH_S`; returns what each send took, in nanoseconds."""
    taken, body, clock = [], b"x" * 256, time.perf_counter_ns
    with shmq.connect(url) as mq:
        send, end = mq.producer().send, time.monotonic() + seconds
        while time.monotonic() < end:
            for _ in range(BURST):
                begin = clock()
                send("appends", body)
                taken.append(clock() - begin)
            time.sleep(BURST_EACH_S)
    return taken[len(taken) // 10 :]


def _expect(found: int, rows: int) -> None:
    if found != rows:
        raise RuntimeError(f"Spark counted {found} rows, {rows} were produced")


def main(given: Sequence[str] | None = None) -> int:
    """Run what the command line asks for; returns the exit code."""
    with Arena() as arena:
        return run("python -m benchmarks.spark", "reading with Spark, measured", workloads(arena), given)


if __name__ == "__main__":
    sys.exit(main())
