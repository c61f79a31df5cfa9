"""`shmq store inspect`: what a store consists of, one record with every field, units around a queue offset."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from shmq.errors import CorruptionError, UsageError
from shmq.exit_code import ExitCode
from shmq.shm.access import Access
from shmq.shm.core import UNIT_BYTES, CoreError
from shmq.shm.unit import is_pre_blank, unpack_unit
from shmq.store.checkpoint import read_checkpoint
from shmq.store.consumequeue import ConsumeQueueFiles, Queue
from shmq.store.durable import DurableMark
from shmq.store.index.files import IndexFiles
from shmq.store.index.mark import read_index_mark
from shmq.store.layout import StoreLayout, is_safe_name
from shmq.store.verify import LogFiles, RecordWalk, Verification, known_mark, log_problems
from shmq.tools.command import Call, Command, pass_call
from shmq.tools.store.place import store_argument, store_root
from shmq.tools.store.stored_record import read_record, record_fields

_AROUND = 3  # units shown before and behind the one that was asked for


@click.command(cls=Command)
@store_argument
@click.option("--position", type=click.IntRange(min=0), metavar="N", help="The record at this log position.")
@click.option("--topic", metavar="TOPIC", help="With --queue and --offset: the units around it, and its record.")
@click.option("--queue", "queue_id", type=click.IntRange(0, 65535), default=0, help="Queue of the topic; default 0.")
@click.option("--offset", type=click.IntRange(min=0), help="Queue offset.")
@click.option("--tail", is_flag=True, help="The last record of the log.")
@click.option("--body", is_flag=True, help="With the body, as base64.")
@pass_call
def inspect(
    call: Call,
    store: Path | None,
    position: int | None,
    topic: str | None,
    queue_id: int,
    offset: int | None,
    tail: bool,
    body: bool,
) -> int:
    """Show what a store consists of, or one record and its units. Reads only; a broker may run.

    Exit status 1 when no whole record is there.
    """
    if (position is not None) + (topic is not None) + tail > 1 or (topic is None) != (offset is None):
        raise UsageError("name one record", hint="--position N, or --topic TOPIC --queue N --offset N, or --tail")
    if topic is not None and not is_safe_name(topic):
        raise UsageError(f"{topic!r} is no name of a topic", hint="shmq topic list")
    root = store_root(call, store)
    layout = StoreLayout(root, Access(-1))
    mark = known_mark(layout)
    log = LogFiles(layout.commitlog)
    document: dict[str, Any] = {"store": str(root)}
    if topic is not None and offset is not None:
        document["units"] = _units(layout, (topic, queue_id), offset)
        asked = [unit for unit in document["units"] if unit["offset"] == offset and unit["position"] is not None]
        position = asked[0]["position"] if asked else None
    elif tail:
        position = _last_position(log)
    is_found = True
    if position is not None or topic is not None or tail:
        document["record"] = _record(log, position, with_body=body)
        is_found = document["record"].get("body_crc") == "right" and document["record"]["record_crc"] != "wrong"
    else:
        document["layout"] = _layout(layout, log, log_problems(layout, log, mark))
    if call.terminal.structured:
        call.terminal.document(document)
    else:
        for name, part in document.items():
            if name != "store":
                _print(call, part)
    return ExitCode.DONE if is_found else ExitCode.NO


def _record(log: LogFiles, position: int | None, *, with_body: bool) -> dict[str, Any]:
    if position is None:
        return {"position": None, "reason": "nothing is stored there"}
    data = read_record(log, position)
    if data is None:
        return {
            "position": position,
            "reason": f"no record begins here; the log is bytes {log.begin} to {_end(log) - 1}",
        }
    try:
        return record_fields(position, data, with_body=with_body)
    except CoreError as error:
        return {"position": position, "reason": f"the lengths of the record do not agree: {error.args[1]}"}


def _units(layout: StoreLayout, queue: Queue, offset: int) -> list[dict[str, Any]]:
    files = ConsumeQueueFiles(layout, writable=False)
    try:
        first = max(0, offset - _AROUND)
        units = files.read(queue, first, offset + _AROUND + 1 - first)
    finally:
        files.close()
    found = []
    for index in range(len(units) // UNIT_BYTES):
        unit = unpack_unit(units, index)
        is_none = is_pre_blank(unit.log_position, unit.record_bytes) or not unit.record_bytes
        found.append(
            {
                "offset": first + index,
                "position": None if is_none else unit.log_position,
                "record_bytes": 0 if is_none else unit.record_bytes,
                "tag_code": unit.tag_code,
            }
        )
    return found


def _last_position(log: LogFiles) -> int | None:
    """The last whole record; only the last files are read."""
    for first in reversed(log.positions):
        found: list[int] = []
        walked = Verification(log_begin=first, log_end=first)
        part = LogFiles(log.directory)
        part.positions = [first]
        RecordWalk(part, walked, on_record=lambda position, _, found=found: found.append(position)).run()  # type: ignore[misc]
        if found:
            return found[-1]
    return None


def _layout(layout: StoreLayout, log: LogFiles, problems: list[str]) -> dict[str, Any]:
    files = ConsumeQueueFiles(layout, writable=False)
    queues = files.queues() if layout.consumequeue.is_dir() else []
    index = IndexFiles(layout)
    try:
        mark = DurableMark(layout).load()
        durable: Any = None if mark is None else mark._asdict()
    except CorruptionError as error:
        durable = error.reason
    said = read_index_mark(layout)
    return {
        "log_begin": log.begin,
        "log_file_end": _end(log),
        "log_files": len(log.positions),
        "log_file_bytes": log.file_bytes,
        "log_problems": problems,
        "topics": len({topic for topic, _ in queues}),
        "queues": len(queues),
        "index_files": index.names(),
        "tables": sorted(os.listdir(layout.config)) if layout.config.is_dir() else [],
        "stopped_in_order": not layout.abort.exists(),
        "durable_mark": durable,
        "index_mark": None if said is None else said._asdict(),
        "checkpoint": asdict(read_checkpoint(layout)),
        "quarantined": sorted(os.listdir(layout.quarantine)) if layout.quarantine.is_dir() else [],
    }


def _end(log: LogFiles) -> int:
    return log.positions[-1] + log.file_bytes if log.positions else 0


def _print(call: Call, part: Any) -> None:
    if isinstance(part, list):
        for unit in part:
            place = "–" if unit["position"] is None else f"{unit['record_bytes']} bytes at byte {unit['position']}"
            call.terminal.line(f"unit {unit['offset']:<14} {place}, code {unit['tag_code']}")
        return
    for name, value in part.items():
        if name in ("properties", "durable_mark", "index_mark", "checkpoint") and isinstance(value, dict):
            call.terminal.line(name)
            for inner, text in value.items():
                call.terminal.line(f"  {inner:<17} {text}")
        elif value not in ([], ""):
            call.terminal.line(f"{name:<19} {', '.join(map(str, value)) if isinstance(value, list) else value}")
