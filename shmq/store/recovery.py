"""Cold recovery: from the files of a store to fresh segments that clients may use.

    1  check   plain files, contiguous and full-sized; nothing missing of what the mark tells, or accepted (loss.py)
    2  units   those below `dispatched` compared with their sums; what is wrong is written again from the log
    3  walk    records from `dispatched` to the last whole one; damage is stepped over
    4  tail    what lies behind the end is zeroed; what only the page cache had is written again and synced
    5  queues  ConsumeQueue files completed behind the log, cut at its end, synced, and their sums
    6  mark    the durable mark says so
    7  fill    topics, queues, the last units of each, groups, consumer offsets into the segments

Rules: (1) no whole record and no unit of one is cut off; (2) recovering twice leaves the same bytes, and a crash in any
step is repaired by beginning again; (3) what it cost depends on what was not yet marked, not on the log's size, unless
there is no mark or its sums are missing; (4) a queue offset that was given out is never given out again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from shmq.delay_levels import DelayLevels
from shmq.errors import CorruptionError, StoreError
from shmq.plain_file import open_plain
from shmq.shm.core import FRAME_UNITS, UNIT_BYTES, BrokerTables, KeeperStore, Store
from shmq.shm.unit import is_pre_blank, unpack_unit
from shmq.store.checkpoint import (
    Checkpoint,
    believed_checkpoint,
    change_checkpoint,
    checkpoint_fault,
    known_confirmed,
    write_checkpoint,
)
from shmq.store.commitlog import CommitLogFiles
from shmq.store.config import ConfigFiles, Log
from shmq.store.consumequeue import ConsumeQueueFiles, Queue
from shmq.store.damage import Damage, LogWalk
from shmq.store.dispatch import WATCHED_TOPICS, Dispatch
from shmq.store.durable import DurableMark, Mark
from shmq.store.layout import StoreLayout
from shmq.store.lineage.log_range import Range
from shmq.store.lineage.loss import accept_missing
from shmq.store.rebuild import QueueBounds, QueueRebuild
from shmq.store.table_entries import Tables
from shmq.store.tables import LiveTables, fill_tables
from shmq.store.unit_repair import UnitRepair, find_faults_at_start

_COUNTED_DAMAGES = 20  # whose messages are counted over all queues
_RECORDS_LOOKED_AT = 8
_CHECK_SECONDS = 0.5  # for units that are not the last ones of their queue; the scrubber looks at all of them


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
    """The findings and repairs of a recovery."""

    clean: bool
    log_begin: int = 0
    log_end: int = 0
    durable_end: int = 0
    scanned_from: int = 0
    records: int = 0
    zeroed_bytes: int = 0
    queues: int = 0
    seconds: float = 0.0
    units_repaired: int = 0
    tables_restored: int = 0
    marks_restored: int = 0
    entries_ignored: int = 0
    restored_files: int = 0  # which tables those are, a bit each as in `config_files` of the mark
    ignored_files: int = 0
    foreign_files: int = 0  # log files whose records are not those of the queues
    lost_messages: int = 0
    damaged_messages: int = 0  # that lay in `damages`
    lost: list[Range] = field(default_factory=list)  # of the log, that this start was allowed to accept
    damages: list[Damage] = field(default_factory=list)


def recover(
    store: Store,
    files: OpenFiles,
    *,
    default_queues: int,
    log: Log,
    levels: DelayLevels | None = None,
    rebuild_all: bool = False,
    accepted: Sequence[Range] = (),
    is_elected: bool = False,
) -> tuple[LiveTables, RecoveryReport]:
    """Recover the files and fill fresh, otherwise unused segments.

    Args:
        rebuild_all: believe no unit and no sum, whatever the mark says, and write them again from the whole log.
        accepted: what the log may lack, exactly.
        is_elected: another host may lead this log by now and cut off what follows, so no more of it counts as
            confirmed than the checkpoint says.

    Raises:
        CorruptionError: files are missing or no plain files, or both copies of a table are unreadable; nothing was
            changed.
        StoreError: the disk refused, or the files contradict the configuration.
    """
    started = time.monotonic()
    keeper_store = KeeperStore(store)
    report = RecoveryReport(clean=not files.layout.abort.exists())
    check_names(files.layout)
    tables = files.config.load()
    known = files.mark.load()
    report.marks_restored = files.mark.damaged_slots
    if files.mark.damaged_slots:
        log("recovery.mark_damaged", file=str(files.layout.durable_mark), slots=files.mark.damaged_slots)
    if known is None and files.layout.unit_sums.exists():
        report.marks_restored += 1
        log(
            "recovery.mark_missing", file=str(files.layout.durable_mark), reason="the log's files are taken as they are"
        )
    files.config.check_missing(known.config_files if known else 0)
    report.tables_restored, report.entries_ignored = files.config.restored, len(files.config.ignored)
    report.restored_files, report.ignored_files = files.config.restored_files, files.config.ignored_files
    mark = _check(files, list(accepted), report, log)
    _touch_abort(files.layout)
    report.durable_end = mark.durable_end if mark else 0
    born = {name: record.born for name, record in tables.topics.items()}
    dispatch = Dispatch(born=born, deleted=tables.deleted, levels=levels or DelayLevels(), log=log)
    try:
        bounds = _recover_files(keeper_store, files, mark, dispatch, report, log, rebuild_all, is_elected)
    except OSError as error:
        raise StoreError(f"recovery of {files.layout.root} stopped: {error}") from error
    live = _fill(store, keeper_store, files, tables, bounds, default_queues, log)
    report.queues = len(bounds)
    report.seconds = time.monotonic() - started
    return live, report


def check_names(layout: StoreLayout) -> None:
    """Refuse a store in which a name is no plain file where one has to be. Raises CorruptionError."""
    for fault in layout.faults():
        raise CorruptionError(fault.path, 0, fault.reason, hint=fault.cure)


def _check(files: OpenFiles, accepted: list[Range], report: RecoveryReport, log: Log) -> Mark | None:
    commitlog = files.commitlog
    commitlog.remove_temporaries()
    commitlog.load(with_gaps=True)
    report.lost, report.lost_messages = accept_missing(
        files.layout,
        commitlog,
        files.mark,
        accepted=accepted,
        messages_within=files.consumequeue.messages_within,
        log=log,
    )
    mark = files.mark.current if files.mark.is_known else None
    if not commitlog.positions:
        commitlog.create_next(mark.log_begin or 0 if mark else 0)
    commitlog.reserve_blocks()
    return mark


def _touch_abort(layout: StoreLayout) -> None:
    """RocketMQ's sign that a broker runs, or did not stop cleanly."""
    os.close(open_plain(layout.abort, os.O_WRONLY | os.O_CREAT))


def _recover_files(
    keeper_store: KeeperStore,
    files: OpenFiles,
    mark: Mark | None,
    dispatch: Dispatch,
    report: RecoveryReport,
    log: Log,
    rebuild_all: bool,
    is_elected: bool,
) -> dict[Queue, QueueBounds]:
    commitlog = files.commitlog
    keeper_store.set_allocated_end(commitlog.end)
    keeper_store.set_log_begin(commitlog.begin)
    start, proven = _start(keeper_store, files, mark, dispatch, report, log, rebuild_all)
    rebuild = QueueRebuild(
        files.consumequeue,
        dispatch=dispatch,
        dispatched=start,
        synced=min(mark.dispatched, mark.durable_end) if mark else 0,
        proven=proven,
        clean=report.clean,
        log_begin=commitlog.begin,
        log=log,
    )

    rebuild.add_lost(report.lost)

    def on_damage(damage: Damage) -> None:
        _tell_damage(files.consumequeue, damage, report, log)
        rebuild.add_damage(damage)

    if proven:
        _look_into_files(keeper_store, files, dispatch, start, report, log)
    walk = LogWalk(
        keeper_store,
        commitlog,
        durable_end=mark.durable_end if mark else None,
        on_records=rebuild.add,
        on_damage=on_damage,
        is_plausible=rebuild.is_plausible,
        watched=WATCHED_TOPICS,
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
    keeper_store.set_log_end(log_end)
    report.records = rebuild.records
    report.marks_restored += _restore_checkpoint(files.layout, mark, log_end, log)
    confirmed_end = log_end
    if is_elected:
        confirmed_end = min(known_confirmed(files.layout), log_end)
        keeper_store.set_confirmed_end(confirmed_end)
    _mark_recovered(files, rebuild.store_ms_last, log_end, confirmed_end)
    return bounds


def _tell_damage(consumequeue: ConsumeQueueFiles, damage: Damage, report: RecoveryReport, log: Log) -> None:
    many = damage.record is None and len(report.damages) < _COUNTED_DAMAGES
    messages = max(1, consumequeue.messages_within(damage.position, damage.end) if many else 1)
    report.damages.append(damage)
    report.damaged_messages += messages
    log("recovery.damage", log_position=damage.position, end=damage.end, reason=damage.reason, messages=messages)


def _look_into_files(
    keeper_store: KeeperStore, files: OpenFiles, dispatch: Dispatch, start: int, report: RecoveryReport, log: Log
) -> None:
    """Look at the first records of each file that is not walked, for one that was replaced, or is blank.

    Their units are right, so another record in the place of one is of another store, or of another time of this.
    """
    until = time.monotonic() + _CHECK_SECONDS
    repair = UnitRepair(keeper_store, files.commitlog, files.consumequeue, dispatch, log_end=start)
    behind = 0

    def on_damage(damage: Damage) -> None:
        _tell_damage(files.consumequeue, damage, report, log)

    walk = LogWalk(
        keeper_store, files.commitlog, durable_end=start, log_end=start, on_records=None, on_damage=on_damage
    )
    for position in files.commitlog.positions:
        if position < behind or position >= start or time.monotonic() > until:
            continue
        _, records, _ = keeper_store.scan(position, start, _RECORDS_LOOKED_AT)
        told = [(queue, record) for record in records if (queue := dispatch.queue_of(record)) is not None]
        if not records:
            behind, _ = walk.step(position, 1)
        elif told and not any(_is_right(repair, files, queue, record.queue_offset) for queue, record in told):
            # Of a topic that was made anew by a broker which notes no birth, no unit points here.
            end = position + files.commitlog.file_bytes
            found = (
                (each, files.consumequeue.offsets_within(each, position, end)) for each in files.consumequeue.queues()
            )
            pointing = [(queue, first) for queue, (first, last) in found if first < last]
            if pointing and not any(_is_right(repair, files, *at) for at in pointing):
                report.foreign_files += 1
                log("recovery.file_foreign", file=str(files.commitlog.path(position)), log_position=position)


def _is_right(repair: UnitRepair, files: OpenFiles, queue: Queue, offset: int) -> bool:
    return repair.is_right(queue, offset, files.consumequeue.read(queue, offset, 1))


def _restore_checkpoint(layout: StoreLayout, mark: Mark | None, log_end: int, log: Log) -> bool:
    """Replace a damaged checkpoint by what we wrote before; whether it was."""
    has_grown = mark is None or log_end > mark.durable_end
    fault = checkpoint_fault(layout, has_grown=has_grown) if mark is not None else ""
    if fault:
        log("recovery.checkpoint_damaged", file=str(layout.checkpoint), reason=fault)
        write_checkpoint(layout, believed_checkpoint(layout, has_grown=has_grown))
    return bool(fault)


def _mark_recovered(files: OpenFiles, store_ms: int, log_end: int, confirmed_end: int) -> None:
    files.mark.advance(
        durable_end=log_end,
        dispatched=log_end,
        unit_sums=files.consumequeue.store_sums(),
        config_files=files.config.written,
        log_begin=files.commitlog.begin,
    )
    _write_checkpoint(files.layout, store_ms, log_end, confirmed_end)


def _start(
    keeper_store: KeeperStore,
    files: OpenFiles,
    mark: Mark | None,
    dispatch: Dispatch,
    report: RecoveryReport,
    log: Log,
    rebuild_all: bool,
) -> tuple[int, bool]:
    """The start of the walk: a record border below which the units are right; and whether their sums say so."""
    begin, consumequeue = files.commitlog.begin, files.consumequeue
    is_complete = consumequeue.sums.load(dispatch.born, dispatch.deleted, sequence=mark.unit_sums if mark else 0)
    start = max(begin, min(mark.dispatched, mark.durable_end)) if mark else begin
    reason = "" if is_complete else "the sums of the units are missing"
    reason = "all are written again" if rebuild_all else reason
    reason = reason or _without_sums(consumequeue, dispatch, begin, start)
    if mark is None or reason:
        if mark is not None:
            report.marks_restored += not is_complete
            log("recovery.units_unproven", reason=reason, file=str(files.layout.unit_sums))
        consumequeue.sums.start_anew()
        return begin, False
    dispatch.born |= consumequeue.sums.born()
    faults, _ = find_faults_at_start(consumequeue, seconds=_CHECK_SECONDS)
    for fault in faults:
        topic, queue_id = fault.queue
        log("recovery.units_wrong", topic=topic, queue_id=queue_id, first=fault.first, count=fault.end - fault.first)
    if faults:
        repair = UnitRepair(keeper_store, files.commitlog, consumequeue, dispatch, log_end=start)
        report.units_repaired = repair.run(faults)
    return start, True


def _without_sums(files: ConsumeQueueFiles, dispatch: Dispatch, begin: int, start: int) -> str:
    """Name a queue that has units of this life of its topic below `start` and no sums; "" when there is none."""
    for queue in sorted({*files.queues()} - {*files.sums.queues()}):
        at = files.bisect(queue, lambda position, size: size > 0 and (is_pre_blank(position, size) or position < begin))
        unit = files.read(queue, at, 1)
        position, size, _ = unpack_unit(unit) if len(unit) == UNIT_BYTES else (0, 0, 0)
        born = max(dispatch.born.get(queue[0], 0), dispatch.deleted.get(queue[0], 0))
        if size > 0 and born <= position < start:
            return f"queue {queue[1]} of topic {queue[0]} has units and no sums"
    return ""


def _write_checkpoint(layout: StoreLayout, store_ms: int, log_end: int, confirmed_end: int) -> None:
    # Also where it says so already: an earlier sync of it may have failed.
    change_checkpoint(
        layout,
        lambda known: Checkpoint(
            physic_ms=max(known.physic_ms, store_ms),
            logics_ms=max(known.logics_ms, store_ms),
            index_ms=known.index_ms,
            flushed=log_end,
            confirmed=confirmed_end,
        ),
    )


def _end_lives(tables: Tables, log_end: int) -> None:
    """A topic begins, or was deleted, at the log's end at the latest: what lay behind it was lost, or cut off."""
    for record in tables.topics.values():
        record.born, record.ended = min(record.born, log_end), min(record.ended, log_end)
    tables.deleted.update({name: min(at, log_end) for name, at in tables.deleted.items()})


def _fill(
    store: Store,
    keeper_store: KeeperStore,
    files: OpenFiles,
    tables: Tables,
    bounds: dict[Queue, QueueBounds],
    default_queues: int,
    log: Log,
) -> LiveTables:
    broker_tables = BrokerTables(store)
    _end_lives(tables, store.log_end)
    live = fill_tables(broker_tables, tables, bounds, default_queues=default_queues, log=log)
    for (topic, queue_id), bound in bounds.items():
        queue = store.queue_index(store.topic_find(topic), queue_id)
        keeper_store.set_queue(
            queue, offset_min=bound.offset_min, offset_max=bound.offset_max, persisted=bound.offset_max
        )
        # The frame that the next append goes on with has to be in memory from its first unit.
        first = bound.offset_max - bound.offset_max % FRAME_UNITS
        if first < bound.offset_max:
            units = files.consumequeue.read((topic, queue_id), first, bound.offset_max - first)
            keeper_store.units_restore(queue, first, units)
    live.restore_offsets(store, broker_tables, log)
    live.restore_losses(store, keeper_store, broker_tables)
    return live
