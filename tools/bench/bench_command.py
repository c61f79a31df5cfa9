"""`shmq bench`: throughput and latency between processes of this host, measured through the public API.

`bench.py` has the measurements, `sustained.py` the long one, `synchronous.py` those that wait for the disk;
`bench_answer.py` says what they found, under which conditions, and beside a saved result. Unless a broker is named,
they run on one of their own in a private directory that is removed at the end, so that no log is filled by surprise.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, Any

import click

from shmq.errors import ShmqError, UsageError
from shmq.figures.quantity import rate_text, size_text
from shmq.tools.broker.memory import open_memory
from shmq.tools.command import Call, Command, Size, pass_call
from shmq.tools.terminal.interrupt import ended_in_order
from shmq.tools.terminal.output import Column, Field

if TYPE_CHECKING:
    from shmq.tools.bench.bench_answer import Answer

BENCH_TOPICS = "bench-"  # every topic of a measurement begins so
# The private broker is one for tests, with room for full speed: log files that are seldom rolled over, and queue units
# of some ten million messages.
PRIVATE_BROKER: dict[str, Any] = {"file_bytes": 256 << 20, "frame_max": 65536}

# A broker whose consumed log files go while the measurement runs, as they do on a disk that has reached its mark.
SUSTAINED_BROKER: dict[str, Any] = {"small": False, "disk_warn_percent": 1, "disk_force_percent": 2}
CLIENTS_MIN = 128

SYNCHRONOUS_BROKER: dict[str, Any] = {**PRIVATE_BROKER, "flush": "sync"}
SYNCHRONOUS_PROCESSES = (1, 8, 32)

Measurement = tuple[str, Callable[[str | None], dict[str, float]]]


@click.command(cls=Command)
@click.option("--size", type=Size(), default=256, show_default=True, metavar="SIZE", help="Size of a body.")
@click.option("--count", type=click.IntRange(min=1000), default=300_000, show_default=True, help="Messages to send.")
@click.option("--batch", type=click.IntRange(2, 512), default=32, show_default=True, help="Messages of one batch.")
@click.option("--trips", type=click.IntRange(min=100), default=10_000, show_default=True, help="Round trips to time.")
@click.option(
    "--groups", type=click.IntRange(2, 2000), metavar="N", help="Also: sends while N groups sleep on the topic."
)
@click.option(
    "--sustained", type=click.IntRange(min=3), metavar="SECONDS", help="One long run instead of the short ones."
)
@click.option(
    "--plot", type=click.Path(dir_okay=False, writable=True), metavar="FILE", help="Draw its seconds (.png, .svg)."
)
@click.option("--sync", is_flag=True, help="What waiting for the disk costs, for one process and for many at once.")
@click.option("--running", is_flag=True, help="On the broker that runs (as with --url), not on a private one.")
@click.option("--save", type=click.Path(dir_okay=False), metavar="FILE", help="Keep the result and its conditions.")
@click.option("--against", type=click.Path(dir_okay=False), metavar="FILE", help="Print it beside a saved result.")
@pass_call
def bench(
    call: Call,
    size: int,
    count: int,
    batch: int,
    trips: int,
    groups: int | None,
    sustained: int | None,
    plot: str | None,
    sync: bool,
    running: bool,
    save: str | None,
    against: str | None,
) -> None:
    """Measure throughput and latency between two processes."""
    from shmq.tools.bench.bench_answer import Answer, Files

    files = Files(save, against)
    running = running or call.url is not None
    if sync:
        if sustained is not None or plot is not None:
            raise UsageError("--sync is a measurement of its own", hint="shmq bench --sync")
        _synchronous(call, size, Answer(call.terminal, "sync", files), running=running)
        return
    if sustained is not None:
        _sustained(call, size, sustained, plot, Answer(call.terminal, "sustained", files), running=running)
        return
    if plot is not None:
        raise UsageError("--plot draws the seconds of a long run", hint="shmq bench --sustained 60 --plot seconds.png")
    answer = Answer(call.terminal, "short", files)
    measurements = _measurements(call, size, count, batch, trips, groups)
    private = {**PRIVATE_BROKER, "client_max": max(CLIENTS_MIN, 2 * (groups or 0))}
    with ended_in_order(), _broker(call, private, running=running) as url:
        results = []
        for name, run in measurements:
            call.terminal.say(f"measuring: {name} …")
            figures = _measured(call, run, url)
            results.append({"name": name, **{key.replace(".", ""): value for key, value in figures.items()}})
    document = {
        "private": not running,
        "size_bytes": size,
        "count": count,
        "batch": batch,
        "trips": trips,
        "groups": groups,
        "results": results,
    }
    answer.give(document, results, text=lambda: _print(call, size, results))


def _measurements(call: Call, size: int, count: int, batch: int, trips: int, groups: int | None) -> list[Measurement]:
    from shmq.measurement import bench as measure
    from shmq.measurement.groups import sleeping_groups

    def append(url: str | None) -> dict[str, float]:
        return append_alone(call, url, count, size)

    measurements: list[Measurement] = [
        ("append alone", append),
        ("send each", lambda url: measure.throughput(url, count=count, size=size)),
        (f"send {batch} at once", lambda url: measure.throughput(url, count=count, size=size, batch=batch)),
        ("latency, sleeping", lambda url: measure.latency(url, trips=trips, size=size)),
        ("latency, spinning", lambda url: measure.latency(url, trips=trips, size=size, spinning=True)),
    ]
    if groups is not None:
        measurements.append((f"{groups} groups asleep", lambda url: sleeping_groups(url, groups=groups)))
    return measurements


def _synchronous(call: Call, size: int, answer: Answer, *, running: bool) -> None:
    from shmq.measurement.synchronous import synchronous

    results: list[dict[str, Any]] = []
    with ended_in_order(), _broker(call, SYNCHRONOUS_BROKER, running=running) as url:
        for processes in SYNCHRONOUS_PROCESSES:
            call.terminal.say(f"measuring: {processes} processes that wait for the disk …")
            figures = _measured(call, partial(_of_processes, synchronous, processes, size), url)
            results.append({key.replace(".", ""): value for key, value in figures.items()} | {"processes": processes})
    document = {"private": not running, "size_bytes": size, "results": results}
    answer.give(document, results, text=lambda: _print_synchronous(call, size, results))


def _of_processes(
    measure: Callable[..., dict[str, float]], processes: int, size: int, url: str | None
) -> dict[str, float]:
    return measure(url, processes=processes, size=size)


def _sustained(call: Call, size: int, seconds: int, plot: str | None, answer: Answer, *, running: bool) -> None:
    from shmq.measurement.sustained import sustained
    from shmq.tools.bench.seconds_report import check_plot, draw_seconds, print_seconds

    check_plot(plot)
    with ended_in_order(), _broker(call, SUSTAINED_BROKER, running=running) as url:
        call.terminal.say(f"measuring: {seconds} seconds …")
        figures = _measured(call, lambda url: sustained(url, seconds, size=size), url)
    if plot is not None:
        draw_seconds(figures, plot)
    document = {"private": not running, "size_bytes": size, "seconds": seconds}
    document |= {key.replace(".", ""): value for key, value in figures.items()}
    answer.give(document, [document], text=lambda: print_seconds(call.terminal, size, figures))


def _measured(call: Call, run: Callable[[str | None], dict[str, Any]], url: str | None) -> dict[str, Any]:
    """Run one measurement; a process of it that failed is named by the last line of its own words."""
    try:
        return run(url)
    except (RuntimeError, TimeoutError) as error:
        call.terminal.note(str(error))
        last = str(error).strip().splitlines()[-1]
        raise ShmqError(f"a process of the measurement failed: {last}", hint="-v shows all it said") from error


def append_alone(call: Call, url: str | None, count: int, size: int) -> dict[str, float]:
    """Return how fast one process stores messages without a reader, and how much of their memory was fresh."""
    from shmq.measurement.conditions import fresh_share
    from shmq.measurement.measure import page_faults

    topic, body = f"{BENCH_TOPICS}append-{time.monotonic_ns():x}", b"\x5a" * size
    measured = Call(named_url=url, timeout=call.timeout)
    with measured.connect() as connection, connection.producer() as producer:
        send = producer.send
        for _ in repeat(None, min(count, 10_000)):
            send(topic, body)
        before, started = page_faults(), time.perf_counter()
        for _ in repeat(None, count):
            send(topic, body)
        rate = count / (time.perf_counter() - started)
        fresh = fresh_share(page_faults() - before, count, size)
    return {"rate": rate, "bytes": rate * size, "nanoseconds": 1e9 / rate, "fresh": fresh}


@contextmanager
def _broker(call: Call, private: dict[str, Any], *, running: bool) -> Iterator[str | None]:
    """Give the URL of the broker to measure on, with the options `private` unless one runs; leave nothing behind."""
    if not running:
        from shmq.testing import Broker

        with Broker(**private) as broker:
            yield broker.url
        return
    with open_memory(call.url) as memory:
        before = set(memory.topic_names())
        url = memory.place.url
    try:
        yield url
    finally:
        with open_memory(call.url, call.timeout) as memory:
            made = [name for name in memory.topic_names() if name.startswith(BENCH_TOPICS) and name not in before]
            for name in made:
                memory.delete_topic(name)


_GROUP_FIELDS: tuple[Field[dict[str, Any]], ...] = (
    Field("send, µs", lambda result: result["name"]),
    Field("one group asleep", lambda result: f"{result['one_us']:.1f}", right=True),
    Field("all asleep", lambda result: f"{result['many_us']:.1f}", right=True),
    Field("last has it after", lambda result: f"{result['last_us']:.0f}", right=True),
)


_PERCENTILES = ("p50", "p90", "p99", "p999", "max")


def _print_synchronous(call: Call, size: int, results: list[dict[str, Any]]) -> None:
    call.terminal.line(f"bodies of {size_text(size)}, each process waits until its message is on disk")
    headings = ("processes", "msg/s", *("p50", "p90", "p99", "p99.9", "max"))
    call.terminal.table(
        [Column(name, right=True) for name in headings],
        [
            [str(result["processes"]), rate_text(result["rate"]), *(f"{result[name]:.0f} µs" for name in _PERCENTILES)]
            for result in results
        ],
    )


_RATE_FIELDS: tuple[Field[dict[str, Any]], ...] = (
    Field("throughput", lambda result: result["name"]),
    Field("msg/s", lambda result: rate_text(result["rate"]), right=True),
    Field("bodies/s", lambda result: size_text(int(result["bytes"])), right=True),
    Field("µs/msg", lambda result: f"{1e6 / result['rate']:.2f}", right=True),
)


def _print(call: Call, size: int, results: list[dict[str, Any]]) -> None:
    call.terminal.line(f"bodies of {size_text(size)}, one producer process, one consumer process")
    rates = [result for result in results if "rate" in result]
    call.terminal.listing(_RATE_FIELDS, rates)
    percentiles = ("p50", "p90", "p99", "p999", "max")
    call.terminal.table(
        [Column("half round trip, µs"), *(Column(name, right=True) for name in ("p50", "p90", "p99", "p99.9", "max"))],
        [[result["name"], *(f"{result[name]:.1f}" for name in percentiles)] for result in results if "p50" in result],
    )
    if asleep := [result for result in results if "one_us" in result]:
        call.terminal.listing(_GROUP_FIELDS, asleep)
