"""Gets a keeper its segments: the living ones of this boot, or new ones filled from the files.

    instance.json   segments              what happens
    names none      –                     cold: create, recover
    names some      whole, writable       warm: attach, take the append lock once (a dead holder's work is finished)
    names some      read-only, retired,   retire them, then cold: clients attach to the new ones
                    other sizes or mode
    names some      log files are gone    copied from a process that has them open; sends stop; then as read-only
    names some      another commitlog/    likewise: it may be a copy of an earlier hour
    names some      cannot be opened      refused while processes are attached to them, else cold

A log that follows a master has no writer but its own process. A process that was stopped in an append of before, when
this broker took records itself, has mapped files with other inodes: `shmq.follows` says that they were renewed.

Rules: (1) two generations never append to one log: the old one is retired and its lock taken once before the files are
read; (2) clients of living segments go on undisturbed when only broker processes died.
"""

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass

from shmq.daemon.event_log import EventLog
from shmq.daemon.keeper.live.absence import lacks_end, save_what_changed
from shmq.daemon.keeper.live.held_files import HeldDirectory
from shmq.daemon.keeper.losses import Losses
from shmq.delay_levels import DelayLevels
from shmq.errors import BrokerBusy, SegmentError, ShmqError
from shmq.figures.changed_files import ChangedFile, read_changed_files
from shmq.options.broker import Options
from shmq.shm.access import access_rights
from shmq.shm.core import (
    ACK_CONFIRMED,
    READ_ONLY_DISK_FULL,
    READ_ONLY_FENCED,
    READ_ONLY_FEW_REPLICAS,
    READ_ONLY_FOLLOWER,
    KeeperStore,
    ReplicaStore,
    Store,
)
from shmq.shm.instance import Instance, read_instance
from shmq.shm.liveness import boot_id, is_alive
from shmq.shm.presence import attach_presence, presence_count
from shmq.shm.segment import SegmentSizes, create_segments, open_store, unlink_segments
from shmq.shm.sweep import sweep
from shmq.store.atomic import sync_directory
from shmq.store.commitlog import CommitLogFiles
from shmq.store.layout import StoreLayout
from shmq.store.lineage.beginning import begin_as_wished
from shmq.store.lineage.cutting import cut_as_wished, renew_end, unread_of, void_reason, withdraw_wishes
from shmq.store.lineage.epochs import Epoch, load_epochs, store_epochs, with_epoch
from shmq.store.lineage.log_range import parse_ranges
from shmq.store.recovery import OpenFiles, RecoveryReport, recover
from shmq.store.tables import LiveTables

_LOCK_SECONDS = 1.0


@dataclass
class Attached:
    """What a keeper works with."""

    instance: Instance
    store: Store
    files: OpenFiles
    tables: LiveTables
    report: RecoveryReport | None  # None: the segments were alive
    changed: tuple[ChangedFile, ...] = ()  # by other programs while no keeper ran, or under segments given up


def attach(options: Options, log: EventLog, *, epoch: int = 0, directories: Sequence[int] = ()) -> Attached:
    """Attach to the broker's segments, whatever has to be done for it.

    Args:
        epoch: that a promotion has given this master; it begins where the log ends, unless it has begun.
        directories: descriptors of the store and of its commitlog/, which are locked and at their paths; none: what is
            there now.

    Raises:
        ShmqError: the files, the disk or the memory refuse; what was created is removed again.
    """
    layout = StoreLayout(options.store_path, access_rights())
    layout.prepare()
    files = OpenFiles.of(layout, file_bytes=options.file_bytes, log=log)
    locked = directories[1] if len(directories) > 1 else -1
    with contextlib.closing(HeldDirectory(layout.commitlog, locked)) as commitlog:
        attached = _attach(options, files, commitlog, log)
    return _standing(attached, options, epoch, log)


def _attach(options: Options, files: OpenFiles, commitlog: HeldDirectory, log: EventLog) -> Attached:
    previous = _previous(options, log)
    changed: tuple[ChangedFile, ...] = ()
    if previous is not None:
        warm, changed = _try_warm(previous, options, files, log, commitlog)
        if warm is not None:
            for name in sweep(options.place, keep=previous):
                log("segments.swept", name=name)
            return warm
        _retire(previous, log)
    for name in sweep(options.place):
        log("segments.swept", name=name)
    cold = _cold(options, files, log, commitlog)
    cold.changed = changed
    return cold


def _standing(attached: Attached, options: Options, epoch: int, log: EventLog) -> Attached:
    """Let the log follow or lead, before a client can attach."""
    store, layout = attached.store, attached.files.layout
    try:
        epochs = load_epochs(layout, log)
    except ShmqError as error:
        if not options.is_slave:
            raise
        # The process that follows the master needs them, and says so too; this one serves readers without.
        log("epochs.unreadable", reason=str(error), hint=error.hint)
    if options.is_slave:
        ReplicaStore(store).follow(options.master)
        return attached
    if epoch > epochs[-1].number:  # the promotion was noted, and not finished
        epochs = with_epoch(epochs, Epoch(epoch, store.log_end))
        store_epochs(layout, epochs)
    if attached.report is not None:
        if options.etcd:  # nor does it lead before it has a lease again
            ReplicaStore(store).fence_off("", _LOCK_SECONDS)
            return attached
        if options.in_sync_min > 1:  # none is in sync before the replication process says so
            ReplicaStore(store).confirm(0, 0, _LOCK_SECONDS, lacks_replicas=True)
        ReplicaStore(store).lead(epochs[-1].number)
    return attached


def _renewed(options: Options, files: OpenFiles, log: EventLog) -> None:
    """Before the files of a log are read: cut it, and keep out who appended to it when it was a master's."""
    layout, marker = files.layout, files.layout.follows
    void = void_reason(layout, files.commitlog, is_slave=options.is_slave)
    if void:
        log("log.not_cut", reason=void)
    elif void is not None:
        files.config.forget_progress(_first_copy(files.commitlog))
    if void or (void is None and not options.is_slave):
        withdraw_wishes(layout)
    cut = cut_as_wished(layout, files.commitlog, files.mark, forget_lives=files.config.forget_lives)
    if cut is not None:
        why = "the master has deleted all of it" if cut.drops else "the master's log parts from this one there"
        log("log.cut", log_position=cut.position, epoch=cut.epoch, reason=why)
        for begin, end in unread_of(layout, cut):
            log(
                "log.tail_unread",
                log_position=begin,
                bytes=end - begin,
                reason="the disk did not give it: zeros are kept",
            )
    if not options.is_slave:
        marker.unlink(missing_ok=True)
    elif not marker.exists():
        if cut is None:
            log("log.renewed", files=renew_end(files.commitlog, files.mark))
        marker.touch()
        sync_directory(layout.root)


def _first_copy(commitlog: CommitLogFiles) -> int:
    """The record border behind the first record: a copy has a record before it that waited."""
    commitlog.remove_temporaries()
    commitlog.load()
    if commitlog.begin or not commitlog.positions:
        return max(1, commitlog.begin)
    try:
        size = int.from_bytes(commitlog.read(0, 4), "big")
    except OSError:
        return 1  # as damaged
    # Where that is damaged the walk begins at no border, and steps over what is no record.
    return size if 0 < size <= commitlog.file_bytes else 1


def _previous(options: Options, log: EventLog) -> Instance | None:
    try:
        instance = read_instance(options.place.instance_path)
    except SegmentError as error:
        log("instance.unreadable", reason=str(error))
        return None
    if instance is not None and instance.boot_id != boot_id():
        return None  # memory of another boot is gone
    return instance


def _try_warm(
    previous: Instance, options: Options, files: OpenFiles, log: EventLog, commitlog: HeldDirectory
) -> tuple[Attached | None, tuple[ChangedFile, ...]]:
    """Attach to living segments, or say in the log why that cannot be; and which files others changed under them."""
    # What was reported of a broker that has ended is not taken over.
    is_running = is_alive(previous.processes.get("supervisor"))
    changed = read_changed_files(previous) if is_running else ()
    try:
        store = open_store(previous, writable=True)
    except ShmqError as error:
        log("segments.unusable", generation=f"{previous.generation:016x}", reason=str(error))
        return None, changed
    is_replaced = not store.has_log_directory
    found = save_what_changed(store, files, commitlog, log, is_running=is_running)
    reason = "another directory lies at the path of their log" if is_replaced else ""
    if not reason and lacks_end(store, files):
        reason = f"the newest log file lacks the end of the log, {store.log_end}: it is an older copy"
    reason = reason or _why_not(store, options) or _files_disagree(store, files)
    if reason:
        log("segments.given_up", generation=f"{previous.generation:016x}", reason=reason)
        store.close()
        return None, changed + found
    attach_presence(previous)
    try:
        KeeperStore(store).repair(_LOCK_SECONDS)
    except BrokerBusy as error:
        log("lock.busy", reason=str(error))  # the watchdog deals with a stopped holder
    files.mark.load()
    tables = LiveTables(files.config.load())
    tables.find_unplaced(store)
    return Attached(previous._replace(settings=_told_settings(options)), store, files, tables, None, found), ()


def _why_not(store: Store, options: Options) -> str:
    head = store.head
    if store.retired:
        return "they were retired"
    if (store.standing == READ_ONLY_FOLLOWER) != options.is_slave:
        return "they follow no master" if options.is_slave else f"they follow the master {store.leader}"
    if options.is_slave and store.leader != options.master and not options.etcd:
        return f"they follow another master, {store.leader}"
    # Neither want of room or of replicas nor a master is a reason to give up what is in memory.
    if store.read_only not in (0, READ_ONLY_DISK_FULL, READ_ONLY_FOLLOWER, READ_ONLY_FEW_REPLICAS, READ_ONLY_FENCED):
        return f"they are read-only (reason {store.read_only})"
    if head["store_path"] != str(options.store_path):
        return f"they belong to the store {head['store_path']}"
    if head["file_bytes"] != options.file_bytes:
        return f"their log files have {head['file_bytes']} bytes"
    if bool(head["flush_sync"]) != options.flush_sync:
        return f"they were made for {'synchronous' if head['flush_sync'] else 'asynchronous'} flush"
    if (head["ack_rule"] == ACK_CONFIRMED) != options.confirms:
        return f"they were made for a master that {'does not wait' if options.confirms else 'waits'} for slaves"
    if bool(head["trusts_reads"]) != options.trusts_reads:
        return f"their readers {'leave out' if head['trusts_reads'] else 'look at'} the checksums of records"
    return ""


def _files_disagree(store: Store, files: OpenFiles) -> str:
    commitlog = files.commitlog
    commitlog.remove_temporaries()
    try:
        commitlog.load()
    except ShmqError as error:
        return str(error)
    if not commitlog.positions or commitlog.begin > store.log_begin or commitlog.end < store.allocated_end:
        return f"the log files hold bytes {commitlog.begin} to {commitlog.end} only"
    # The former keeper may have died between creating a file and saying so.
    KeeperStore(store).set_allocated_end(commitlog.end)
    return ""


def _retire(previous: Instance, log: EventLog) -> None:
    """Make sure that no process appends through the old segments any more, and remove them."""
    try:
        store = open_store(previous, writable=True)
    except ShmqError as error:
        attached = presence_count(previous)
        if attached:
            raise SegmentError(
                f"{attached} processes are attached to segments that cannot be opened ({error}) and may still append",
                hint="stop them (`fuser -v /dev/shm/*` or `lsof` names them), then start again",
            ) from error
        unlink_segments(previous)
        return
    keeper_store = KeeperStore(store)
    keeper_store.set_retired()
    # A writer that looked at `retired` before we set it finds no room in the log once it has the lock.
    keeper_store.set_allocated_end(0)
    with contextlib.suppress(BrokerBusy):
        keeper_store.repair(_LOCK_SECONDS)
    store.close()
    unlink_segments(previous)
    log("segments.retired", generation=f"{previous.generation:016x}")


def _cold(options: Options, files: OpenFiles, log: EventLog, commitlog: HeldDirectory) -> Attached:
    sizes = SegmentSizes(
        file_bytes=options.file_bytes,
        topic_max=options.topic_max,
        queue_max=options.queue_max,
        frame_max=options.frame_max,
        client_max=options.client_max,
        group_max=options.group_max,
        offset_max=options.offset_max,
    )
    instance, store = create_segments(
        options.broker_name,
        store_path=options.store_path,
        sizes=sizes,
        kind=options.segments,
        flush_sync=options.flush_sync,
        confirms=options.confirms,
        trusts_reads=options.trusts_reads,
        clock_stands_ms=(options.clock_ms or int(time.time() * 1000)) if options.clock == "frozen" else 0,
    )
    log("segments.created", generation=f"{instance.generation:016x}", kind=instance.kind, bytes=instance.segment_bytes)
    try:
        KeeperStore(store).set_log_directory(commitlog.descriptor)
        _renewed(options, files, log)
        if options.is_slave and (begin := begin_as_wished(files.layout, files.commitlog, files.mark)) is not None:
            log("log.begins", log_position=begin, reason="the master's log begins there")
        levels = DelayLevels(options.delay_levels)
        tables, report = recover(
            store,
            files,
            default_queues=options.default_queues,
            levels=levels,
            accepted=parse_ranges(options.accept_loss),
            is_elected=bool(options.etcd) and options.confirms,
            log=log,
        )
    except BaseException:
        store.close()
        unlink_segments(instance)
        files.close()
        raise
    if report.lost:
        Losses(store, KeeperStore(store), log).count_missing(files.consumequeue, report.lost[0].begin)
    numbers = {name: value for name, value in vars(report).items() if name not in ("damages", "lost")}
    log("recovery.done", **numbers, damages=len(report.damages))
    described = instance._replace(settings=_told_settings(options), recovery=_told_recovery(report))
    return Attached(described, store, files, tables, report)


def _told_settings(options: Options) -> dict[str, int]:
    """What `shmq health` has to know of our settings when no process of the broker is alive."""
    names = ("disk_warn_percent", "disk_force_percent", "disk_refuse_percent", "lease_ms", "flush_interval_ms")
    return {name: getattr(options, name) for name in (*names, "retention_hours")}


def _told_recovery(report: RecoveryReport) -> dict[str, int]:
    return {
        "at_ms": int(time.time() * 1000),
        "took_ms": int(report.seconds * 1000),
        "clean": int(report.clean),
        "records": report.records,
        "queues": report.queues,
        "zeroed_bytes": report.zeroed_bytes,
        "damages": len(report.damages),
        "units_repaired": report.units_repaired,
        "tables_restored": report.tables_restored,
        "marks_restored": report.marks_restored,
        "entries_ignored": report.entries_ignored,
        "restored_files": report.restored_files,
        "ignored_files": report.ignored_files,
        "foreign_files": report.foreign_files,
        "lost_messages": report.lost_messages,
        "damaged_messages": report.damaged_messages,
    }
