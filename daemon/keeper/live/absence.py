"""Puts right what happened to the files of a store while no keeper ran, before a keeper attaches to living segments.

    no plain file has the name of one   moved to `quarantine/`
    a log file that is gone             copied from a process that has it open: all are opened first, as it may end
    a log file that was truncated       has its size again: a look behind its end killed the last keeper
    a log file that has grown           copied, as far as it is one

Where log files are concerned, sends stop, and the segments are given up. What only they know is written down for the
recovery of the files: the mark says up to where they had the log, so that what is lost of it is refused; and the unit
files say which queue offsets were given out, so that none is given out again. A store without a mark that belonged to a
broker which had ended was emptied on purpose: it stays empty.
"""

from __future__ import annotations

import contextlib
import os

from shmq.daemon.event_log import EventLog
from shmq.daemon.keeper.live.held_files import FileNews, find_open, put_aside
from shmq.daemon.keeper.live.log import LiveLog
from shmq.errors import ShmqError
from shmq.figures.changed_files import RESTORED, ChangedFile
from shmq.shm.core import READ_ONLY_FILES_LOST, UNIT_BYTES, CoreError, KeeperStore, Store
from shmq.shm.counters import LooseCounters
from shmq.shm.unit import PRE_BLANK
from shmq.store.atomic import forget
from shmq.store.consumequeue import ConsumeQueueFiles
from shmq.store.recovery import OpenFiles

_LOCK_SECONDS = 0.5


def save_what_changed(store: Store, files: OpenFiles, log: EventLog, *, is_running: bool) -> tuple[ChangedFile, ...]:
    """Do all of it; returns what became of which file, which health shows for these segments or the next ones.

    Args:
        is_running: whether the broker of the segments goes on: its supervisor lives.
    """
    head, layout, commitlog = store.head, files.layout, files.commitlog
    if (head["store_path"], head["file_bytes"]) != (str(layout.root), commitlog.file_bytes) or store.retired:
        return ()
    news = FileNews(LooseCounters(), log)
    for fault in list(layout.strangers()):
        if fault.path.is_symlink() and fault.path.parent == layout.commitlog:
            continue  # its bytes may lie where it leads
        forget(fault.path)
        put_aside(layout, fault.path)
        news.tell(fault.path, RESTORED, fault.reason)
    elsewhere = {} if layout.follows.exists() else find_open(layout)  # what was renewed is elsewhere, rightly
    changed = [
        position for position in _positions(store, files) if position in elsewhere or _is_changed(files, position)
    ]
    # The last keeper may have been killed before it had saved what it knew of, and what took its place looks whole.
    if changed or store.read_only == READ_ONLY_FILES_LOST:
        where = {position: elsewhere.get(position) for position in changed}
        _save(store, files, news, where, is_running=is_running)
    return news.told


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
    *,
    is_running: bool,
) -> None:
    """Save log files, each from where it is open, and write down what only the segments know."""
    keeper_store = KeeperStore(store)
    live = LiveLog(store, keeper_store, files.layout, files.commitlog, news)
    keeper_store.set_read_only(READ_ONLY_FILES_LOST)
    with contextlib.suppress(CoreError):
        keeper_store.repair(_LOCK_SECONDS)
    live.take({position: where for position, where in changed.items() if where is not None})
    for position in changed:
        live.save_alone(position)
    live.close()
    begin = _positions(store, files).start
    with contextlib.suppress(OSError):  # recovery reads what is there
        files.commitlog.sync(max(store.durable_end, begin), store.log_end)
    with contextlib.suppress(OSError, ShmqError):  # recovery refuses a mark that it cannot read
        if files.mark.load() is not None or is_running:
            files.mark.advance(durable_end=store.log_end, log_begin=begin)
            _write_units(store, keeper_store, files.consumequeue)


def _write_units(store: Store, keeper_store: KeeperStore, consumequeue: ConsumeQueueFiles) -> None:
    """Write the units that are in memory alone; of a queue without files the last one, which says how far it goes."""
    for topic in store.topics():
        for queue_id, index in enumerate(topic["queues"]):
            row, queue = store.queue(index), (topic["name"], queue_id)
            has_files = bool(consumequeue.files(queue))
            if not row.persisted and has_files:
                continue  # they are of a former life of the topic
            at = row.persisted if has_files else min(row.persisted, max(0, row.offset_max - 1))
            while at < row.offset_max and (units := keeper_store.units_read(index, at, row.offset_max - at)):
                consumequeue.write(queue, at, units)
                at += len(units) // UNIT_BYTES
            if not has_files and at < row.offset_max:  # nothing was sent to it since they were made
                consumequeue.write(queue, row.offset_max - 1, PRE_BLANK)
