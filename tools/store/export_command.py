"""`shmq store export`: messages out of a store's files, as JSON lines or as the records themselves.

It reads the log in order, so it needs neither a broker nor the units, and a damaged record costs only itself. The core
checks thousands of records with one call and says of which queues they are, so only those are decoded that were asked
for.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import IO, NamedTuple

import click

from shmq.errors import CorruptionError, StoreError, UsageError
from shmq.exit_code import ExitCode
from shmq.figures.quantity import plural
from shmq.record import record_bytes_at
from shmq.shm.access import Access
from shmq.shm.core import UNIT_BYTES, RecordBatch, UnitRun
from shmq.shm.unit import units_of
from shmq.store.durable import Mark
from shmq.store.layout import StoreLayout, directory_fault
from shmq.store.lineage.cutting import Tail, tails
from shmq.store.lineage.loss import missing_ranges
from shmq.store.proof.record import WalkedRecord
from shmq.store.verify import (
    LogFiles,
    ReadBytes,
    RecordWalk,
    StoreFault,
    Verification,
    known_mark,
    log_problems,
)
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
@click.option("--only", metavar="NAME", help="With --tail: only this one, by its name in tails/.")
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
    only: str | None,
    raw: bool,
    destination: Path,
) -> int:
    """Copy messages out of a store into a file: JSON lines with the body as base64, or the records themselves.

    Reads only; a broker may run. Without --topic: every topic. Exit status 1 if a damaged range was stepped over, or
    a file of the log is missing.

    With --tail it copies what only this broker had when it became a slave, the oldest first; `shmq store resend` sends
    that again. Exit status 1 if any of it is not in the file.
    """
    root = store_root(call, store)
    layout = StoreLayout(root, Access(-1))
    if only is not None and not from_tails:
        raise UsageError(f"--only {only} names a tail", hint="--tail copies tails")
    parts, told = _tail_parts(layout, only) if from_tails else ([_log_part(layout)], [])
    wanted = _Wanted(frozenset(topics), queue_id, from_offset or 0, to_offset)
    with _new_file(destination) as file:
        copied = _Copy(file, wanted, raw=raw)
        for part in parts:
            RecordWalk(part.log, part.walked, on_record=copied.add, on_batch=copied.add_batch).run(part.bytes_max)
    kept = [part.tail for part in parts if part.tail]
    document = {
        "store": str(root),
        "output": str(destination),
        "messages": copied.count,
        "log_end": parts[-1].walked.log_end if parts else 0,
        "damages": [vars(each) for each in chain(told, *(part.damages for part in parts))],
        "tails": [{"path": str(tail.path), "begin": tail.begin, "end": tail.end, "epoch": tail.epoch} for tail in kept],
    }
    if call.terminal.structured:
        call.terminal.document(document)
    else:
        for line in chain((f"  ! {each.reason}" for each in told), *(part.lines(wanted) for part in parts)):
            call.terminal.line(line)
        call.terminal.line(f"{plural(copied.count, 'message')} in {destination}")
    return ExitCode.NO if told or any(part.is_damaged for part in parts) else ExitCode.DONE


class _Part(NamedTuple):
    """A log to copy from, or a tail."""

    log: LogFiles
    walked: Verification
    problems: list[StoreFault]  # of its files
    tail: Tail | None = None

    @property
    def bytes_max(self) -> int | None:
        return self.tail.end - self.log.begin if self.tail else None

    @property
    def is_damaged(self) -> bool:
        return bool(self.problems or self.walked.fault_count)

    @property
    def damages(self) -> list[StoreFault]:
        place = f"{self.tail.path}: " if self.tail else ""
        return [StoreFault(each.position, place + each.reason) for each in self.problems + self.walked.faults]

    def lines(self, wanted: _Wanted) -> Iterator[str]:
        """Say what is in the file of it, and what is not."""
        tail, walked = self.tail, self.walked
        place = f"{tail.path}: " if tail else ""
        for problem in self.problems:
            yield f"  ! {place}{problem.reason}"
        for fault in walked.faults:
            yield f"  ! {place}log byte {fault.position}: {fault.reason}; stepped over"
        if more := walked.fault_count - len(walked.faults):
            yield f"  ! {place}{plural(more, 'more damaged range')}"
        if tail:
            yield f"  {tail.path}: log bytes {tail.begin} to {tail.end}, others in epoch {tail.epoch}"
            if wanted.is_all and not self.is_damaged:
                yield f"    all of it is in the file; once that was sent again: rm -r {shlex.quote(str(tail.path))}"


def _log_part(layout: StoreLayout) -> _Part:
    mark = known_mark(layout)
    log = LogFiles(layout.commitlog, reads_past_errors=True)
    walked = Verification(log_begin=log.begin, log_end=log.begin, durable_end=mark.durable_end if mark else None)
    return _Part(log, walked, [StoreFault(log.begin, text) for text in log_problems(layout, log, mark)])


def _tail_parts(layout: StoreLayout, only: str | None) -> tuple[list[_Part], list[StoreFault]]:
    """The tails to copy from, and what is wrong with those that cannot be.

    Raises:
        UsageError: there is no tail of that name.
    """
    faults: list[tuple[str, StoreFault]] = []

    def is_none(error: CorruptionError) -> None:
        faults.append((error.path.parent.name, StoreFault(0, f"{error}; {error.hint}")))

    kept = tails(layout, is_none)
    names = [tail.path.name for tail in kept] + [name for name, _ in faults]
    if only is not None and only not in names:
        raise UsageError(f"{layout.tails} has no {only}", hint=f"it has: {', '.join(names) or 'none'}")
    parts = []
    for tail in kept:
        if only not in (None, tail.path.name):
            continue
        if fault := directory_fault(tail.path, writable=False):
            faults.append((tail.path.name, StoreFault(tail.begin, f"{tail.path}: {fault.reason}; {fault.cure}")))
        else:
            parts.append(_tail_part(tail))
    return parts, [fault for name, fault in faults if only in (None, name)]


def _tail_part(tail: Tail) -> _Part:
    """A tail says where it ends, so what its files lack is known, and damage at the end of one ends nothing."""
    log = LogFiles(tail.path, begin=tail.begin, reads_past_errors=True)
    walked = Verification(log_begin=tail.begin, log_end=tail.begin, durable_end=tail.end)
    problems = [StoreFault(tail.begin, text) for text in log.problems]
    for begin, end in missing_ranges(log, Mark(durable_end=tail.end, log_begin=tail.begin)):
        problems.append(
            StoreFault(begin, f"log bytes {begin} to {end - 1} are in no file that can be read; restore it")
        )
    return _Part(log, walked, problems, tail)


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
