"""Cold recovery: from the files of a store to fresh segments that clients may use.

    1  check   files contiguous and full-sized, nothing missing below the durable mark
    2  walk    records from `dispatched` to the first one that is not whole; damage below the mark is stepped over
    3  tail    what lies behind the end is zeroed; what only the page cache had is written again and synced
    4  queues  ConsumeQueue files completed behind the log, cut at its end, synced
    5  fill    topics, queues, the last units of each, groups, consumer offsets into the segments
    6  mark    the durable mark says so

Rules: (1) nothing below the durable mark is written or cut off; (2) recovering twice leaves the same bytes, and a crash
in any step is repaired by beginning again; (3) what it cost depends on what was not yet marked, not on the log's size,
unless there is no mark.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field

from shmq.delay_levels import DelayLevels
from shmq.errors import CorruptionError, StoreError
from shmq.shm.core import FRAME_UNITS, Store
from shmq.shm.unit import is_pre_blank, unpack_unit
from shmq.store.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from shmq.store.commitlog import CommitLogFiles
from shmq.store.config import ConfigFiles, Log, Tables
from shmq.store.consumequeue import ConsumeQueueFiles, Queue
from shmq.store.damage import Damage, LogWalk
from shmq.store.durable import DurableMark, Mark
from shmq.store.layout import StoreLayout
from shmq.store.rebuild import QueueBounds, QueueRebuild
from shmq.store.tables import LiveTables, fill_tables


@dataclass
class OpenFiles:
    """Every file of one store, opened by the one process that writes them."""

    layout: StoreLayout
    commitlog: CommitLogFiles
    consumequeue: ConsumeQueueFiles
    config: ConfigFiles
    mark: DurableMark

    @classmethod
    def of(cls, layout: StoreLayout, *, file_bytes: int, log: Log) -> OpenFiles:
        """Open the files of a store; nothing is read yet."""
        return cls(
            layout,
            CommitLogFiles(layout, file_bytes),
            ConsumeQueueFiles(layout),
            ConfigFiles(layout, log=log),
            DurableMark(layout),
        )

    def close(self) -> None:
        """Close every descriptor."""
        self.consumequeue.close()
        self.mark.close()


@dataclass
class RecoveryReport:
    """What recovery found and did."""

    clean: bool
    log_begin: int = 0
    log_end: int = 0
    durable_end: int = 0
    scanned_from: int = 0
    records: int = 0
    zeroed_bytes: int = 0
    queues: int = 0
    seconds: float = 0.0
    damages: list[Damage] = field(default_factory=list)


def recover(
    store: Store, files: OpenFiles, *, default_queues: int, log: Log, levels: DelayLevels | None = None
) -> tuple[LiveTables, RecoveryReport]:
    """Recover the files and fill fresh, otherwise unused segments.

    Raises:
        CorruptionError: files are missing, or both copies of a table are unreadable; nothing was changed.
        StoreError: the disk refused, or the files contradict the configuration.
    """
    started = time.monotonic()
    report = RecoveryReport(clean=not files.layout.abort.exists())
    tables = files.config.load()
    mark = _check(files)
    _touch_abort(files.layout)
    report.durable_end = mark.durable_end if mark else 0
    try:
        bounds = _recover_files(store, files, mark, tables, report, log, levels or DelayLevels())
    except OSError as error:
        raise StoreError(f"recovery of {files.layout.root} stopped: {error}") from error
    live = _fill(store, files, tables, bounds, default_queues, log)
    report.queues = len(bounds)
    report.seconds = time.monotonic() - started
    return live, report


def _check(files: OpenFiles) -> Mark | None:
    commitlog = files.commitlog
    commitlog.remove_temporaries()
    commitlog.load()
    mark = files.mark.load()
    if mark is not None and mark.durable_end > commitlog.end:
        raise CorruptionError(
            files.layout.commitlog,
            commitlog.end,
            f"the log was on disk up to byte {mark.durable_end}, but its files end at {commitlog.end}",
            hint=f"restore the missing files; or accept the loss: rm {files.layout.durable_mark}",
        )
    if not commitlog.positions:
        commitlog.create_next()
    commitlog.reserve_blocks()
    return mark


def _touch_abort(layout: StoreLayout) -> None:
    """RocketMQ's sign that a broker runs, or did not stop cleanly."""
    os.close(os.open(layout.abort, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))


def _recover_files(
    store: Store,
    files: OpenFiles,
    mark: Mark | None,
    tables: Tables,
    report: RecoveryReport,
    log: Log,
    levels: DelayLevels,
) -> dict[Queue, QueueBounds]:
    commitlog = files.commitlog
    store.set_allocated_end(commitlog.end)
    store.set_log_begin(commitlog.begin)
    start = _start(files, mark, tables, log)
    rebuild = QueueRebuild(
        files.consumequeue,
        dispatched=start,
        log_begin=commitlog.begin,
        born={name: record.born for name, record in tables.topics.items()},
        deleted=tables.deleted,
        log=log,
        levels=levels,
    )

    def on_damage(damage: Damage) -> None:
        report.damages.append(damage)
        log("recovery.damage", log_position=damage.position, end=damage.end, reason=damage.reason)
        rebuild.add_damage(damage)

    walk = LogWalk(
        store,
        commitlog,
        durable_end=mark.durable_end if mark else None,
        on_records=rebuild.add,
        on_damage=on_damage,
        is_plausible=rebuild.is_plausible,
    )
    log_end = walk.run(start)
    report.log_begin, report.log_end, report.scanned_from = commitlog.begin, log_end, start
    report.zeroed_bytes = commitlog.zero_from(log_end)
    if mark:
        commitlog.write_again(max(mark.durable_end, commitlog.begin), log_end)
    else:
        commitlog.sync(commitlog.begin, log_end)
    bounds = rebuild.finish(log_end=log_end)
    files.consumequeue.sync_all()
    store.set_log_end(log_end)
    report.records = rebuild.records
    files.mark.advance(durable_end=log_end, dispatched=log_end)
    _write_checkpoint(files.layout, rebuild.store_ms_last, log_end)
    return bounds


def _start(files: OpenFiles, mark: Mark | None, tables: Tables, log: Log) -> int:
    """Where the walk begins: a record border below which units and log are known to agree."""
    begin = files.commitlog.begin
    queues = files.consumequeue.queues()
    if mark is None:
        return begin
    start = max(begin, min(mark.dispatched, mark.durable_end))
    if start > begin and not queues:
        log("recovery.queues_missing", reason="there is no unit file, but the mark speaks of units")
        return begin
    for queue in queues:
        born = tables.topics[queue[0]].born if queue[0] in tables.topics else 0
        reason = _distrust(files.consumequeue, queue, born, start)
        if reason:
            log("recovery.queue_distrusted", topic=queue[0], queue_id=queue[1], reason=reason)
            files.consumequeue.remove_topic(queue[0])
            start = begin
    return start


def _distrust(files: ConsumeQueueFiles, queue: Queue, born: int, dispatched: int) -> str:
    """Why the units of a queue have to be built anew; "" when they look right at both ends."""
    count = files.bisect(queue, lambda position, size: size > 0 and position < dispatched)
    low = files.bisect(queue, lambda position, size: is_pre_blank(position, size) or size == 0, high=count)
    if low >= count:
        return ""
    first, last = files.read(queue, low, 1), files.read(queue, count - 1, 1)
    position, _, _ = unpack_unit(first)
    if position < born:
        return f"its units are of a topic that was deleted before byte {born}"
    position, size, _ = unpack_unit(last)
    if position < 0 or position + size > dispatched:
        return f"its last unit ends at byte {position + size}, behind the marked {dispatched}"
    return ""


def _write_checkpoint(layout: StoreLayout, store_ms: int, log_end: int) -> None:
    before = read_checkpoint(layout)
    after = Checkpoint(
        physic_ms=max(before.physic_ms, store_ms),
        logics_ms=max(before.logics_ms, store_ms),
        index_ms=before.index_ms,
        flushed=log_end,
        confirmed=log_end,
    )
    if after != before:
        write_checkpoint(layout, after)


def _fill(
    store: Store,
    files: OpenFiles,
    tables: Tables,
    bounds: dict[Queue, QueueBounds],
    default_queues: int,
    log: Log,
) -> LiveTables:
    live = fill_tables(store, tables, bounds, default_queues=default_queues, log=log)
    for (topic, queue_id), bound in bounds.items():
        queue = store.queue_index(store.topic_find(topic), queue_id)
        store.set_queue(queue, offset_min=bound.offset_min, offset_max=bound.offset_max, persisted=bound.offset_max)
        # The frame that the next append goes on with has to be in memory from its first unit.
        first = bound.offset_max - bound.offset_max % FRAME_UNITS
        if first < bound.offset_max:
            units = files.consumequeue.read((topic, queue_id), first, bound.offset_max - first)
            store.units_restore(queue, first, units)
    live.restore_offsets(store, log)
    return live
