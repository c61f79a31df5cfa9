"""Puts right what happened to the files of a store while no keeper ran, before a keeper attaches to living segments.

    no plain file has the name of one   moved to `quarantine/`
    a log file that is gone             copied from a process that has it open: all are opened first, as it may end
    a log file that was truncated       has its size again: a look behind its end killed the last keeper
    a log file that has grown           copied, as far as it is one
    commitlog/ is another directory     what the segments know may be in none of its files
    the newest one lacks the log's end  likewise: it is an older copy, and no process has the one that was there

Where log files are concerned, sends stop, and the segments are given up. What only they know is written down for the
recovery of the files: the mark says up to where they had the log, so that what is lost of it is refused; and the unit
files say which queue offsets were given out, so that none is given out again.

Two stores begin with what lies there instead: one without mark and log, whose broker had ended, and the other directory
of a follower. A part of the former log would make one that begins in the middle, or has a gap. What programs have open
of it is copied to `quarantine/`, as a store by itself; of a follower it is not, as its master has it.
"""

from __future__ import annotations

import contextlib
import os
import shlex

from shmq.daemon.event_log import EventLog
from shmq.daemon.keeper.live.held_files import FileNews, HeldDirectory, find_open, free_name, put_aside
from shmq.daemon.keeper.live.log import LiveLog
from shmq.errors import ShmqError
from shmq.figures.changed_files import KEPT, LOST, RESTORED, ChangedFile
from shmq.plain_file import open_plain
from shmq.shm.core import READ_ONLY_FILES_LOST, READ_ONLY_FOLLOWER, UNIT_BYTES, CoreError, KeeperStore, Store
from shmq.shm.counters import LooseCounters
from shmq.shm.unit import PRE_BLANK
from shmq.store.atomic import forget
from shmq.store.commitlog import CommitLogFiles
from shmq.store.consumequeue import ConsumeQueueFiles, Queue
from shmq.store.layout import StoreLayout, position_of
from shmq.store.recovery import OpenFiles

_LOCK_SECONDS = 0.5
_FILL_UNITS = 1 << 16  # at once
_END_BYTES = 16  # of a record: its topic and its properties, or their length


def save_what_changed(
    store: Store, files: OpenFiles, commitlog: HeldDirectory, log: EventLog, *, is_running: bool
) -> tuple[ChangedFile, ...]:
    """Do all of it; returns what became of which file, which health shows for these segments or the next ones.

    Args:
        commitlog: the directory that the segments are to name.
        is_running: whether the broker of the segments goes on: its supervisor lives.
    """
    head, layout, is_replaced = store.head, files.layout, not store.has_log_directory
    if (head["store_path"], head["file_bytes"]) != (str(layout.root), files.commitlog.file_bytes) or store.retired:
        return ()
    if is_replaced:  # before a writer finds files in it
        _end_appends(store)
    KeeperStore(store).set_log_directory(commitlog.descriptor)
    news = FileNews(LooseCounters(), log)
    for fault in list(layout.strangers()):
        if fault.path.is_symlink() and fault.path.parent == layout.commitlog:
            continue  # its bytes may lie where it leads
        forget(fault.path)
        put_aside(layout, fault.path)
        news.tell(fault.path, RESTORED, fault.reason)
    if _is_emptied(files, is_running=is_running) or (is_replaced and store.standing == READ_ONLY_FOLLOWER):
        _end_appends(store)
        if store.standing != READ_ONLY_FOLLOWER:
            _keep(store, files, news)
        return news.told
    elsewhere = {} if layout.follows.exists() else find_open(layout)  # what was renewed is elsewhere, rightly
    changed = [
        position for position in _positions(store, files) if position in elsewhere or _is_changed(files, position)
    ]
    # The last keeper may have been killed before it had saved what it knew of, and what took its place looks whole.
    if changed or is_replaced or store.read_only == READ_ONLY_FILES_LOST or lacks_end(store, files):
        where = {position: elsewhere.get(position) for position in changed}
        _save(store, files, news, where)
        with contextlib.suppress(OSError, ShmqError):  # recovery refuses a mark that it cannot read
            if files.mark.load() is not None or is_running:
                _write_down(store, files, is_replaced=is_replaced)
    return news.told


def lacks_end(store: Store, files: OpenFiles) -> bool:
    """Whether the newest log file has zeros where the last record ends, which no record does."""
    end = store.log_end
    size = min(_END_BYTES, end % files.commitlog.file_bytes)
    try:
        return size > 0 and not any(files.commitlog.read(end - size, size))
    except OSError:
        return False  # it is not there, which says more


def _is_emptied(files: OpenFiles, *, is_running: bool) -> bool:
    """Whether there is neither mark nor log, and the broker of the segments has ended."""
    if is_running or any(position_of(name) is not None for name in os.listdir(files.layout.commitlog)):
        return False
    try:
        return files.mark.load() is None
    except (OSError, ShmqError):
        return False


def _end_appends(store: Store) -> None:
    keeper_store = KeeperStore(store)
    keeper_store.set_read_only(READ_ONLY_FILES_LOST)
    with contextlib.suppress(CoreError):
        keeper_store.repair(_LOCK_SECONDS)


def _keep(store: Store, files: OpenFiles, news: FileNews) -> None:
    """Copy what programs have open of a log that was removed: it may be all that is left."""
    found, file_bytes = find_open(files.layout), files.commitlog.file_bytes
    if not found:
        return
    layout = StoreLayout(free_name(files.layout.quarantine, "removed"), files.layout.access)
    copies = CommitLogFiles(layout, file_bytes)
    for position, link in sorted(found.items()):
        path, end = files.commitlog.path(position), min(position + file_bytes, store.log_end)
        if position >= end:
            continue  # it was made ahead
        try:
            layout.prepare()
            with open(open_plain(link, os.O_RDONLY, follows_links=True), "rb") as original:
                copies.put(position, original.fileno(), until=end)
        except (OSError, ShmqError) as error:
            what = f"was removed, and its copy from a process that has it open failed: {error}"
            news.tell(path, LOST, what, f"free room, then copy {link} to another directory before that process ends")
        else:
            what = f"was removed; log positions {position} to {end}, which a process has open, lie in {layout.root}"
            news.tell(
                path, KEPT, what, f"shmq store export {shlex.quote(str(layout.root))} --output FILE, or remove it"
            )


def _positions(store: Store, files: OpenFiles) -> range:
    file_bytes = files.commitlog.file_bytes
    return range(store.log_begin - store.log_begin % file_bytes, store.allocated_end, file_bytes)


def _is_changed(files: OpenFiles, position: int) -> bool:
    try:
        return os.lstat(files.commitlog.path(position)).st_size != files.commitlog.file_bytes
    except OSError:
        return True


def _save(
    store: Store,
    files: OpenFiles,
    news: FileNews,
    changed: dict[int, str | None],
) -> None:
    """Save log files, each from where it is open."""
    live = LiveLog(store, KeeperStore(store), files.layout, files.commitlog, news)
    _end_appends(store)
    live.take({position: where for position, where in changed.items() if where is not None})
    for position in changed:
        live.save_alone(position)
    live.close()
    begin = _positions(store, files).start
    with contextlib.suppress(OSError):  # recovery reads what is there
        files.commitlog.sync(max(store.durable_end, begin), store.log_end)


def _write_down(store: Store, files: OpenFiles, *, is_replaced: bool) -> None:
    """Write down what only the segments know. Raises OSError.

    Of units those that are in memory alone; of a queue without files the last one, which says how far it goes.
    """
    files.mark.advance(durable_end=store.log_end, log_begin=_positions(store, files).start)
    keeper_store, consumequeue = KeeperStore(store), files.consumequeue
    for topic in store.topics():
        for queue_id, index in enumerate(topic["queues"]):
            row, queue = store.queue(index), (topic["name"], queue_id)
            has_files = bool(consumequeue.files(queue))
            if not row.persisted and has_files:
                continue  # they are of a former life of the topic
            at = row.persisted if has_files else min(row.persisted, max(0, row.offset_max - 1))
            if has_files and is_replaced:
                at = _fill(consumequeue, queue, until=at, last=keeper_store.units_read(index, row.offset_max - 1, 1))
            while at < row.offset_max and (units := keeper_store.units_read(index, at, row.offset_max - at)):
                consumequeue.write(queue, at, units)
                at += len(units) // UNIT_BYTES
            if not has_files and at < row.offset_max:  # nothing was sent to it since they were made
                consumequeue.write(queue, row.offset_max - 1, PRE_BLANK)


def _fill(consumequeue: ConsumeQueueFiles, queue: Queue, *, until: int, last: bytes) -> int:
    """Let files that end before `until` go on up to there with the last unit: a hole would be their end.

    The records of all these offsets are lost, if not in the log of the files. Returns where they end.
    """
    at = min(until, consumequeue.bisect(queue, lambda _, record_bytes: record_bytes > 0))
    while last and at < until:
        count = min(_FILL_UNITS, until - at)
        consumequeue.write(queue, at, last * count)
        at += count
    return until if last else at
