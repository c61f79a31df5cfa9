"""`shmq store export`: messages out of a store's files, as JSON lines or as the records themselves.

It reads the log in order, so it needs neither a broker nor the units, and a damaged record costs only itself. The core
checks thousands of records with one call and says of which queues they are, so only those are decoded that were asked
for.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, NamedTuple

import click

from shmq.errors import StoreError
from shmq.exit_code import ExitCode
from shmq.figures.quantity import plural
from shmq.record import record_bytes_at
from shmq.shm.access import Access
from shmq.shm.core import UNIT_BYTES, RecordBatch, UnitRun
from shmq.shm.unit import units_of
from shmq.store.layout import StoreLayout
from shmq.store.lineage.cutting import tails
from shmq.store.proof.record import WalkedRecord
from shmq.store.verify import LogFiles, ReadBytes, RecordWalk, Verification, known_mark, log_problems
from shmq.tools.command import Call, Command, pass_call
from shmq.tools.store.place import store_argument, store_root
from shmq.tools.store.stored_record import record_fields
from shmq.tools.terminal.output import json_line


@click.command(cls=Command)
@store_argument
@click.option("--topic", "topics", multiple=True, metavar="TOPIC", help="Only this topic; may be given again.")
@click.option("--queue", "queue_id", type=click.IntRange(0, 65535), help="Only this queue.")
@click.option("--from-offset", type=click.IntRange(min=0), metavar="N", help="Only from this queue offset on.")
@click.option("--to-offset", type=click.IntRange(min=0), metavar="N", help="Only up to this queue offset, without it.")
@click.option(
    "--tail", "from_tails", is_flag=True, help="What was cut off when the broker became a slave, not the log."
)
@click.option("--raw", is_flag=True, help="The records as they are in the log, one behind the other.")
@click.option(
    "--output",
    "destination",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    metavar="FILE",
    help="A new file.",
)
@pass_call
def export(
    call: Call,
    store: Path | None,
    topics: tuple[str, ...],
    queue_id: int | None,
    from_offset: int | None,
    to_offset: int | None,
    from_tails: bool,
    raw: bool,
    destination: Path,
) -> int:
    """Copy messages out of a store into a file: JSON lines with the body as base64, or the records themselves.

    Reads only; a broker may run. Without --topic: every topic. Exit status 1 if a damaged range was stepped over, or
    a file of the log is missing.

    With --tail it copies what only this broker had when it became a slave, the oldest first; `shmq store resend` sends
    that again.
    """
    root = store_root(call, store)
    layout = StoreLayout(root, Access(-1))
    mark = known_mark(layout)
    logs = [LogFiles(root / "commitlog")]
    problems = [] if from_tails else log_problems(layout, logs[0], mark)
    kept = tails(layout) if from_tails else []
    if from_tails:
        logs = [LogFiles(tail.path, begin=tail.begin) for tail in kept]
    walked = Verification(log_begin=logs[0].begin if logs else 0, log_end=logs[0].begin if logs else 0)
    wanted = _Wanted(frozenset(topics), queue_id, from_offset or 0, to_offset)
    with _new_file(destination) as file:
        copied = _Copy(file, wanted, raw=raw)
        for log in logs:
            RecordWalk(log, walked, on_record=copied.add, on_batch=copied.add_batch).run()
    count = copied.count
    document = {
        "store": str(root),
        "output": str(destination),
        "messages": count,
        "log_end": walked.log_end,
        "damages": [*({"position": logs[0].begin, "reason": text} for text in problems), *map(vars, walked.faults)],
        "tails": [{"path": str(tail.path), "begin": tail.begin, "end": tail.end, "epoch": tail.epoch} for tail in kept],
    }
    if call.terminal.structured:
        call.terminal.document(document)
    else:
        for problem in problems:
            call.terminal.line(f"  ! {problem}")
        for fault in walked.faults:
            call.terminal.line(f"  ! log byte {fault.position}: {fault.reason}; stepped over")
        for tail in kept:
            call.terminal.line(f"  {tail.path}: log bytes {tail.begin} to {tail.end}, others in epoch {tail.epoch}")
        call.terminal.line(f"{plural(count, 'message')} in {destination}")
    return ExitCode.NO if walked.fault_count or problems else ExitCode.DONE


class _Wanted(NamedTuple):
    """The records to export."""

    topics: frozenset[str]
    queue_id: int | None
    from_offset: int
    to_offset: int | None

    @property
    def is_all(self) -> bool:
        return self == _ALL

    def has_queue(self, topic: str, queue_id: int) -> bool:
        return (not self.topics or topic in self.topics) and self.queue_id in (None, queue_id)

    def has_offset(self, queue_offset: int) -> bool:
        return self.from_offset <= queue_offset and (self.to_offset is None or queue_offset < self.to_offset)


_ALL = _Wanted(frozenset(), None, 0, None)


class _Copy:
    """The copy, on its way into the file."""

    def __init__(self, file: IO[bytes], wanted: _Wanted, *, raw: bool) -> None:
        self._file = file
        self._wanted = wanted
        self._raw = raw
        self.count = 0

    def add(self, position: int, data: bytes) -> None:
        """Take one record, if it was asked for."""
        if not self._wanted.is_all:
            record = WalkedRecord(position, data)
            if not self._wanted.has_queue(record.topic, record.queue_id):
                return
            if not self._wanted.has_offset(record.queue_offset):
                return
        self._write(position, data)

    def add_batch(self, batch: RecordBatch, read: ReadBytes) -> None:
        """Take those that were asked for out of many records, which lie back to back."""
        begin = batch.position - batch.record_bytes
        if self._wanted.is_all and self._raw:
            self._file.write(read(begin, batch.record_bytes))
            self.count += batch.records
        elif self._wanted.is_all or sum(len(run.units) for run in batch.runs) != batch.records * UNIT_BYTES:
            self._add_each(begin, read(begin, batch.record_bytes))  # some are of no queue, as the hole of a claim is
        else:
            for position, size in sorted(self._places(batch.runs)):
                self._write(position, read(position, size))

    def _add_each(self, position: int, data: bytes) -> None:
        at = 0
        while at < len(data):
            size = record_bytes_at(data, at)
            self.add(position + at, data[at : at + size])
            at += size

    def _places(self, runs: Iterable[UnitRun]) -> Iterator[tuple[int, int]]:
        for run in runs:
            if self._wanted.has_queue(run.topic.decode(errors="surrogateescape"), run.queue_id):
                for queue_offset, unit in enumerate(units_of(run.units), run.queue_offset):
                    if self._wanted.has_offset(queue_offset):
                        yield unit.log_position, unit.record_bytes

    def _write(self, position: int, data: bytes) -> None:
        self._file.write(data if self._raw else json_line(record_fields(position, data)).encode() + b"\n")
        self.count += 1


@contextmanager
def _new_file(path: Path) -> Iterator[IO[bytes]]:
    """A file that has its name only when it is complete and on disk.

    Raises:
        StoreError: it is there already, or cannot be written.
    """
    draft = path.with_name(f".{path.name}.part")
    try:
        if path.exists():
            raise FileExistsError(0, "it is there already", str(path))
        with draft.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.link(draft, path)
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror}", hint="--output another file") from error
    finally:
        draft.unlink(missing_ok=True)
