"""Messages written to Parquet files in an executor: which file one goes to, and the entry about it.

    <root>/topic=orders/date=2026-11-20/.3f9a….parquet                     while it is written
                                       /q003-<start>-<end>-…-3f9a….parquet    as soon as it is complete

The driver commits. Rules: (1) a file holds messages of one queue, in order, and of one value of each partition column;
(2) a name that is being written belongs to one attempt of one task alone, so attempts that are killed, repeated or run
twice never meet; (3) a file is on the disk before its entry leaves the executor.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import secrets
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import numpy
import pyarrow
import pyarrow.parquet

from shmq.plain_file import open_plain
from shmq.shm.descriptors import above_standard
from shmq.spark.access.broker import Range, Reading, Where
from shmq.spark.jobs.table.entry import Entry
from shmq.spark.scan.messages import read_ranges

PARTITION_COLUMNS: Final = ("topic", "broker", "date", "hour", "queue_id")
NEEDED: Final = ("queue_offset", "store_timestamp", "body_crc")  # without them there is no entry
_DICTIONARY: Final = ("topic", "broker", "tags", "born_host", "store_host")
_STATISTICS: Final = ("queue_id", "queue_offset", "born_timestamp", "store_timestamp", "commitlog_offset")
_PERIODS_US: Final = {"date": 86_400_000_000, "hour": 3_600_000_000}


@dataclass(frozen=True)
class Layout:
    """The layout of the files; plain data. Sizes are bytes."""

    root: str
    broker: str
    columns: tuple[str, ...]  # of the source, in the order of the file
    partition_by: tuple[str, ...] = ("topic", "date")
    file_bytes: int = 256 << 20  # of bodies and columns before compression
    row_group_bytes: int = 32 << 20
    compression: str = "zstd"

    @property
    def read_columns(self) -> tuple[str, ...]:
        """The columns read from the log for it."""
        return self.columns + tuple(name for name in NEEDED if name not in self.columns)

    @property
    def file_columns(self) -> tuple[str, ...]:
        """The columns in a file; a partition's column stands in the path."""
        return tuple(name for name in self.columns if name not in self.partition_by)


def layout_of(text: str) -> Layout:
    """Read the JSON of a layout's fields."""
    fields: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in json.loads(text).items()
    }
    return Layout(**fields)


def write_ranges(
    reading: Reading, ranges: Sequence[Range], lease: str | None, where: Where | None, layout: Layout
) -> Iterator[Entry]:
    """Write all messages of the ranges and yield the entries of the files.

    Raises:
        ShmqError: what was planned cannot be read any more.
        OSError: the archive cannot be written.
    """
    for each in ranges:
        stretch = _Stretch(
            layout, Entry(each.topic, layout.broker, each.queue_id, each.born_position, each.start, each.end)
        )
        try:
            for batch in read_ranges(reading, (each,), lease, where):
                for values, part in _parts(layout, batch):
                    yield from stretch.add(values, part)
            yield from stretch.finish()
        finally:
            stretch.abandon()


def _parts(layout: Layout, batch: Any) -> Iterator[tuple[tuple[int, ...], Any]]:
    """A batch in pieces whose messages were stored in the same hour or date, as numbers since the epoch."""
    periods = [_PERIODS_US[name] for name in layout.partition_by if name in _PERIODS_US]
    if not periods or not batch.num_rows:
        yield (0,) * len(periods), batch
        return
    stored = batch.column("store_timestamp").cast(pyarrow.int64()).to_numpy()
    finest = stored // min(periods)
    cuts = [0, *(numpy.flatnonzero(numpy.diff(finest)) + 1).tolist(), batch.num_rows]
    for begin, end in itertools.pairwise(cuts):
        yield tuple(int(stored[begin]) // period for period in periods), batch.slice(begin, end - begin)


class _Stretch:
    """The files of one range, one after the other."""

    def __init__(self, layout: Layout, whole: Entry) -> None:
        self._layout = layout
        self._whole = whole
        self._at = whole.start  # where the next file begins
        self._file: _File | None = None

    def add(self, values: tuple[int, ...], part: Any) -> Iterator[Entry]:
        """Write messages; yields an entry whenever a file is full or the partition changes."""
        if self._file is not None and (self._file.values != values or self._file.is_full):
            yield self._close(self._file.last + 1)
        if self._file is None:
            partition = _partition(self._layout, self._whole, values)
            self._file = _File(self._layout, replace(self._whole, start=self._at, partition=partition), values)
        self._file.write(part)

    def finish(self) -> Iterator[Entry]:
        """Close the last file; without a message there is an entry all the same."""
        if self._file is not None:
            yield self._close(self._whole.end)
        elif self._at < self._whole.end:
            yield replace(self._whole, start=self._at)

    def abandon(self) -> None:
        """Take away what is not finished."""
        if self._file is not None:
            self._file.discard()

    def _close(self, end: int) -> Entry:
        assert self._file is not None
        entry = self._file.close(end)
        self._file, self._at = None, end
        return entry


class _File:
    """One Parquet file while it is written."""

    def __init__(self, layout: Layout, entry: Entry, values: tuple[int, ...]) -> None:
        self.values = values
        self.last = entry.start
        self._layout = layout
        self._entry = entry
        folder = "/".join(f"{name}={_path_text(text)}" for name, text in entry.partition.items())
        self._token = secrets.token_hex(8)
        self._path = Path(layout.root, folder, f".{self._token}.parquet")
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._writer: Any = None
        self._disk: _ToDisk | None = None
        self._waiting: list[Any] = []
        self._waiting_bytes = self._written_bytes = 0
        self._rows = self._body_bytes = self._crc_xor = self._crc_sum = 0
        self._stored: list[int] = []

    @property
    def is_full(self) -> bool:
        return self._written_bytes + self._waiting_bytes >= self._layout.file_bytes

    def write(self, batch: Any) -> None:
        self._count(batch)
        self._waiting.append(batch.select(list(self._layout.file_columns)))
        self._waiting_bytes += batch.nbytes
        if self._waiting_bytes >= self._layout.row_group_bytes:
            self._flush()

    def close(self, end: int) -> Entry:
        self._flush()
        self._writer.close()
        if self._disk is not None:
            self._disk.finish()
        start, name = self._entry.start, f"q{self._entry.queue_id:03d}"
        stem = f"{name}-{start:020d}-{end:020d}-{self._entry.broker}-{self._entry.born_position}-{self._token}"
        complete = self._path.rename(self._path.with_name(f"{stem}.parquet"))
        return replace(
            self._entry,
            end=end,
            path=str(complete.relative_to(self._layout.root)),
            rows=self._rows,
            file_bytes=complete.stat().st_size,
            body_bytes=self._body_bytes,
            crc_xor=self._crc_xor,
            crc_sum=self._crc_sum,
            stored_min_ms=min(self._stored),
            stored_max_ms=max(self._stored),
        )

    def discard(self) -> None:
        if self._disk is not None:
            self._disk.close()
        with contextlib.suppress(OSError):
            self._path.unlink()

    def _count(self, batch: Any) -> None:
        offsets = batch.column("queue_offset")
        self.last = offsets[batch.num_rows - 1].as_py()
        crc = batch.column("body_crc").to_numpy().astype(numpy.uint32)
        self._crc_xor ^= int(numpy.bitwise_xor.reduce(crc))
        self._crc_sum += int(crc.sum(dtype=numpy.uint64))
        self._rows += batch.num_rows
        if "body" in batch.schema.names:
            self._body_bytes += body_bytes(batch.column("body"))
        stored = batch.column("store_timestamp").cast(pyarrow.int64()).to_numpy()
        self._stored += [int(stored.min()) // 1000, int(stored.max()) // 1000]

    def _flush(self) -> None:
        if not self._waiting:
            return
        table = pyarrow.Table.from_batches(self._waiting)
        if self._writer is None:
            self._writer = parquet_writer(self._path, table.schema, self._layout.compression)
            self._disk = _ToDisk(self._path)
        self._writer.write_table(table, row_group_size=max(1, table.num_rows))
        if self._disk is not None:
            self._disk.begin()
        self._written_bytes += self._waiting_bytes
        self._waiting, self._waiting_bytes = [], 0


@above_standard
def parquet_writer(path: Path, schema: Any, compression: str) -> Any:
    """Return a writer for messages: bodies as they are, statistics for what is looked for."""
    names = set(schema.names)
    return pyarrow.parquet.ParquetWriter(
        path,
        schema,
        compression=compression,
        use_dictionary=[name for name in _DICTIONARY if name in names],
        write_statistics=[name for name in _STATISTICS if name in names],
        store_schema=False,
    )


def body_bytes(column: Any) -> int:
    """Return how many bytes the bodies of a binary column have."""
    count, first = len(column), column.offset
    ends = numpy.frombuffer(column.buffers()[1], dtype=numpy.int32)
    return int(ends[first + count] - ends[first]) if count else 0


def _partition(layout: Layout, entry: Entry, values: tuple[int, ...]) -> dict[str, str]:
    moments, found = list(values), {}
    for name in layout.partition_by:
        if name in _PERIODS_US:
            moment = datetime.fromtimestamp(moments.pop(0) * _PERIODS_US[name] / 1e6, UTC)
            found[name] = f"{moment:%Y-%m-%d}" if name == "date" else f"{moment:%Y-%m-%dT%H}"
        else:
            found[name] = str(getattr(entry, name))
    return found


def _path_text(text: str) -> str:
    """A value as Hive writes it into a path: topics may hold a percent sign."""
    return quote(text, safe="")


class _ToDisk:
    """Brings a file to the disk while it is written, so that its end does not wait for all of it."""

    @above_standard
    def __init__(self, path: Path) -> None:
        self._descriptor = open_plain(path, os.O_RDONLY)
        self._thread = ThreadPoolExecutor(1)
        self._running: Future[None] | None = None

    def begin(self) -> None:
        """Send what is written so far on its way, unless something is on its way.

        Raises:
            OSError: what went before did not arrive.
        """
        if self._running is not None:
            if not self._running.done():
                return
            self._running.result()
        self._running = self._thread.submit(os.fdatasync, self._descriptor)

    def finish(self) -> None:
        """Return when all of the file is on the disk.

        Raises:
            OSError: it is not.
        """
        if self._running is not None:
            self._running.result()
        os.fsync(self._descriptor)
        self.close()

    def close(self) -> None:
        """Give back the thread and the descriptor; a second time does nothing."""
        self._thread.shutdown()
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
