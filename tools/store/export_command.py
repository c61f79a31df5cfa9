"""`shmq store export`: messages out of a store's files, as JSON lines or as the records themselves.

It reads the log in order, so it needs neither a broker nor the units, and a damaged record costs only itself.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import click

from shmq.errors import StoreError
from shmq.store.proof.record import StoredRecord
from shmq.store.verify import LogFiles, RecordWalk, Verification
from shmq.tools.command import Call, Command, pass_call
from shmq.tools.store.place import store_argument, store_root
from shmq.tools.store.stored_record import record_fields
from shmq.tools.terminal.exit_code import ExitCode
from shmq.tools.terminal.output import json_line
from shmq.tools.terminal.quantity import plural


@click.command(cls=Command)
@store_argument
@click.option("--topic", "topics", multiple=True, metavar="TOPIC", help="Only this topic; may be given again.")
@click.option("--queue", "queue_id", type=click.IntRange(0, 65535), help="Only this queue.")
@click.option("--from-offset", type=click.IntRange(min=0), metavar="N", help="Only from this queue offset on.")
@click.option("--to-offset", type=click.IntRange(min=0), metavar="N", help="Only up to this queue offset, without it.")
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
    raw: bool,
    destination: Path,
) -> int:
    """Copy messages out of a store into a file: JSON lines with the body as base64, or the records themselves.

    Reads only; a broker may run. Without --topic: every topic. Exit status 1 if a damaged range was stepped over.
    """
    root = store_root(call, store)
    log = LogFiles(root / "commitlog")
    walked = Verification(log_begin=log.begin, log_end=log.begin)
    count = 0

    def on_record(position: int, data: bytes) -> None:
        nonlocal count
        record = StoredRecord(position, data)
        if (topics and record.topic not in topics) or queue_id not in (None, record.queue_id):
            return
        if from_offset is not None and record.queue_offset < from_offset:
            return
        if to_offset is not None and record.queue_offset >= to_offset:
            return
        file.write(data if raw else json_line(record_fields(position, data)).encode() + b"\n")
        count += 1

    with _new_file(destination) as file:
        RecordWalk(log, walked, on_record=on_record).run()
    document = {
        "store": str(root),
        "output": str(destination),
        "messages": count,
        "log_end": walked.log_end,
        "damages": [vars(fault) for fault in walked.faults],
    }
    if call.terminal.structured:
        call.terminal.document(document)
    else:
        for fault in walked.faults:
            call.terminal.line(f"  ! log byte {fault.position}: {fault.reason}; stepped over")
        call.terminal.line(f"{plural(count, 'message')} in {destination}")
    return ExitCode.NO if walked.fault_count else ExitCode.DONE


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
