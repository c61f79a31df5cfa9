"""Makes a store whole again, offline: everything that is derived is written anew from the log.

    damaged ranges of the log          copied to quarantine/; the log itself stays as it is, and is stepped over
    a table with a wrong checksum      moved to quarantine/; its backup, or the good one of both, takes its place
    an unreadable durable mark         moved to quarantine/; where the log ends is found by reading it
    a last log file that is too short  gets its size, with zeros
    units and their checksums          written again from every record of the log
    index                              removed and written again, if anything in it is wrong or it is behind
    offsets above the end of a queue   lowered to it

It is the broker's own recovery, in private segments of its own, so a broker finds afterwards what it
would have made itself.

Rules: (1) no broker may run, ours or a stock one: the store's lock is held; (2) no byte of a whole record is changed;
(3) an offset that was given out is not given out again; (4) a crash in any step is repaired by beginning again.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shmq.delay_levels import DEFAULT_DELAY_LEVELS as DEFAULT_DELAY_LEVELS
from shmq.delay_levels import DelayLevels
from shmq.errors import CorruptionError, StoreError
from shmq.shm.access import access_rights
from shmq.shm.core import KeeperStore, Store, StoreFigures
from shmq.shm.segment import SegmentSizes, create_segments, unlink_segments
from shmq.store.atomic import sync_directory
from shmq.store.config import ConfigFiles
from shmq.store.consumequeue import ConsumeQueueFiles
from shmq.store.durable import DurableMark
from shmq.store.index.files import IndexFiles
from shmq.store.layout import StoreLayout, file_name
from shmq.store.lock import StoreLock
from shmq.store.offline.index_build import IndexBuild, mark_index, remove_index
from shmq.store.proof.store import Proof
from shmq.store.quarantine import Quarantine
from shmq.store.recovery import OpenFiles, RecoveryReport, recover
from shmq.store.tables import LiveTables
from shmq.store.verify import LogFiles

_DEFAULT_QUEUES = 8  # of a topic that no table names


@dataclass(frozen=True)
class Action:
    """One thing that is done, or would be."""

    what: str
    where: str


class _Diary:
    """The events of a recovery, kept instead of written."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []

    def __call__(self, event: str, **values: Any) -> None:
        self.events.append((event, values))


@contextmanager
def held_store(root: Path) -> Iterator[StoreLayout]:
    """Hold the lock of a store for the length of a with block.

    Raises:
        StoreLocked: a broker owns it.
    """
    layout = StoreLayout(root, access_rights())
    lock = StoreLock.acquire(layout)
    try:
        yield layout
    finally:
        lock.release()


def planned(layout: StoreLayout, proof: Proof) -> list[Action]:
    """Return what has to be done before the derived files are written again."""
    log = LogFiles(layout.commitlog)
    actions = [Action("copy to quarantine/", f"log bytes {begin} to {end - 1}") for begin, end in proof.damages.ranges]
    actions += [Action("move to quarantine/", f"config/{name}") for name in _replaceable(layout)]
    if _mark_is_unreadable(layout):
        actions.append(Action("move to quarantine/", layout.durable_mark.name))
    if (short := _short_last_file(layout, log)) is not None:
        actions.append(Action(f"extend to {log.file_bytes} bytes", f"commitlog/{short.name}"))
    if not _index_is_right(proof):
        actions += [Action("write again", f"index/{name}") for name in IndexFiles(layout).names()] or [
            Action("write", "index/")
        ]
    return [*actions, Action("write again", "consumequeue/ and its checksums")]


def restore_store(layout: StoreLayout, proof: Proof, *, delay_levels: str) -> list[Action]:
    """Do it; returns what was done. The lock is held, and `proof` is what was found under it.

    Raises:
        CorruptionError: files of the log are missing, or both copies of a table are unreadable.
        StoreError: the disk refused.
    """
    if not proof.file_bytes:
        raise StoreError(f"{layout.commitlog} has no log files", hint="there is nothing to repair from")
    levels = DelayLevels(delay_levels)
    actions = planned(layout, proof)
    try:
        _keep_damages(layout, proof)
        for name in _replaceable(layout):
            _move(layout, layout.config / name)
        if _mark_is_unreadable(layout):
            _move(layout, layout.durable_mark)
        _extend(layout)
        if not _index_is_right(proof):
            remove_index(layout)
        layout.prepare()
        actions += _rebuild(layout, proof, levels)
    except OSError as error:
        raise StoreError(
            f"{error.filename or layout.root}: {error.strerror}", hint="begin again, nothing is lost"
        ) from error
    return actions


def _rebuild(layout: StoreLayout, proof: Proof, levels: DelayLevels) -> list[Action]:
    """The broker's recovery, its index keeper, and its way to stop."""
    diary = _Diary()
    files = OpenFiles.of(layout, file_bytes=proof.file_bytes, log=diary)
    sizes = SegmentSizes(file_bytes=proof.file_bytes)
    needed = 2 * proof.queues
    sizes = sizes._replace(topic_max=max(sizes.topic_max, needed), queue_max=max(sizes.queue_max, needed))
    instance, store = create_segments(f"repair-{secrets.token_hex(4)}", store_path=layout.root, sizes=sizes)
    try:
        tables, report = recover(
            store, files, default_queues=_DEFAULT_QUEUES, levels=levels, log=diary, rebuild_all=True
        )
        if not _index_is_right(proof):
            IndexBuild(layout, KeeperStore(store), files.commitlog).run(store.log_begin, store.log_end)
        mark_index(layout, store.log_begin, store.log_end)
        _save_tables(store, files, tables)
        layout.abort.unlink(missing_ok=True)
        sync_directory(layout.root)
    finally:
        files.close()
        store.close()
        unlink_segments(instance)
    return [*_told(report), *_lowered(diary)]


def _index_is_right(proof: Proof) -> bool:
    """Whether every key of the log was found in the index, and nothing else."""
    return not proof.findings.counts["index"] and proof.indexed >= proof.log_end


def _save_tables(store: Store, files: OpenFiles, tables: LiveTables) -> None:
    found, deleted = tables.collect_topics(store)
    offsets = tables.collect_offsets(store, StoreFigures(store))
    files.config.save_topics(found, deleted)
    files.config.save_groups(tables.collect_groups(store))
    files.config.save_offsets(offsets)
    files.config.save_delays(offsets)
    files.config.save_losses(tables.collect_losses(store))
    files.mark.advance(config_files=files.config.written)


def _told(report: RecoveryReport) -> list[Action]:
    told = [Action("wrote", f"the units of {_count(report.records, 'record')} in {_count(report.queues, 'queue')}")]
    if report.tables_restored:
        told.append(Action("read from the backup", _count(report.tables_restored, "table")))
    if report.zeroed_bytes:
        told.append(
            Action("zeroed", f"{_count(report.zeroed_bytes, 'byte')} of a torn tail behind byte {report.log_end}")
        )
    return told


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _lowered(diary: _Diary) -> list[Action]:
    return [
        Action(f"lowered from offset {v['was']} to {v['now']}", f"group {v['group']} on {v['topic']}/{v['queue_id']}")
        for event, v in diary.events
        if event == "recovery.offset_lowered"
    ]


# -- what cannot be derived


def _keep_damages(layout: StoreLayout, proof: Proof) -> None:
    log, quarantine, units = LogFiles(layout.commitlog), Quarantine(layout), ConsumeQueueFiles(layout, writable=False)
    for begin, end in proof.damages.ranges:
        parts, at = [], begin
        while at < end and (part := log.read(at, end - at)):
            parts.append(part)
            at += len(part)
        messages = max(1, units.messages_within(begin, end))
        facts = {"log_position": begin, "record_bytes": end - begin, "messages": messages}
        quarantine.add(begin, b"".join(parts), facts)
    units.close()


def _replaceable(layout: StoreLayout) -> list[str]:
    """Tables that cannot be believed and have a good twin; without one nothing is touched."""
    if not layout.config.is_dir():
        return []
    damaged = {name for name, _ in ConfigFiles(layout, log=lambda *_, **__: None).find_damaged()}
    twins = {name: name.removesuffix(".bak") if name.endswith(".bak") else f"{name}.bak" for name in damaged}
    return sorted(name for name, twin in twins.items() if twin not in damaged and (layout.config / twin).exists())


def _mark_is_unreadable(layout: StoreLayout) -> bool:
    try:
        DurableMark(layout).load()
    except CorruptionError:
        return True
    return False


def _move(layout: StoreLayout, path: Path) -> None:
    layout.make_directory(layout.quarantine)
    os.replace(path, layout.quarantine / f"{path.name}.{int(time.time() * 1000)}")
    sync_directory(layout.quarantine)
    sync_directory(path.parent)


def _short_last_file(layout: StoreLayout, log: LogFiles) -> Path | None:
    """The last file, if a copy of it was cut short; records of it are found by reading."""
    if len(log.positions) < 2:
        return None
    path = layout.commitlog / file_name(log.positions[-1])
    return path if path.stat().st_size < log.file_bytes else None


def _extend(layout: StoreLayout) -> None:
    log = LogFiles(layout.commitlog)
    if (path := _short_last_file(layout, log)) is not None:
        os.truncate(path, log.file_bytes)
