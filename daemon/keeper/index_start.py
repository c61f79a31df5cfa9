"""Which index files a starting keeper trusts, and from where on it has to follow the log.

    file                                                  cold start                      living segments
    another size, numbers that cannot be                  removed                         removed
    names records at or behind the log's end              removed                         removed
    ends after the checkpoint's index time, and is the    removed: a crash may have       trusted: this boot's memory
    newest or not covered by the mark                     kept any part of it             has all of it

    begin of the walk     the mark, if it speaks of the newest file that is left; else that file's last record; else the
                          begin of the log

Rule: removing a file costs a walk over the log's records it was built from, never a message.
"""

from dataclasses import dataclass

from shmq.daemon.event_log import EventLog
from shmq.errors import ShmqError
from shmq.shm.core import Store
from shmq.store.checkpoint import read_checkpoint
from shmq.store.index import IndexFiles, IndexHead
from shmq.store.index_mark import IndexMark, read_index_mark
from shmq.store.layout import StoreLayout


@dataclass(frozen=True)
class IndexState:
    """Where the index stands.

    Attributes:
        is_settled: every file is synced, and the mark and the checkpoint say so.
        unsynced: files that are not.
    """

    position: int
    is_settled: bool
    unsynced: tuple[str, ...] = ()


def find_start(store: Store, layout: StoreLayout, files: IndexFiles, *, warm: bool, log: EventLog) -> IndexState:
    """Remove what cannot be trusted and say where to begin. Raises OSError."""
    files.remove_temporaries()
    index_ms = read_checkpoint(layout).index_ms
    mark = read_index_mark(layout)
    kept: dict[str, IndexHead] = {}
    names = files.names()
    for name in names:
        try:
            file = files.open(name)
            head = file.head()
            file.close()
            # Only the newest is ever written to again, by us or by a stock broker.
            synced = mark is not None and name <= mark.last and head.end_position < mark.indexed and name != names[-1]
            reason = _distrust(head, store, None if warm or synced else index_ms)
        except (ShmqError, OSError) as error:
            reason = str(error)
        if reason:
            log("index.file_dropped", file=name, reason=reason)
            files.remove(name)
        else:
            kept[name] = head
    newest = max(kept, default="")
    position = store.log_begin
    if newest and not kept[newest].is_empty:
        position = kept[newest].last_position
    is_marked = mark is not None and mark.last == newest
    if mark is not None and is_marked and mark.indexed <= store.log_end:
        position = max(position, mark.indexed)
    position = max(store.log_begin, min(position, store.log_end))
    unsynced = _unsynced(kept, mark) if warm else ()
    return IndexState(position, not unsynced, unsynced)


def _distrust(head: IndexHead, store: Store, index_ms: int | None) -> str:
    if not head.is_empty and max(head.last_position, head.end_position) >= store.log_end:
        return f"it names a record at {head.end_position}, the log ends at {store.log_end}"
    if head.begin_ms > head.end_ms and not head.is_empty:
        return f"it begins at {head.begin_ms} and ends at {head.end_ms}"
    if index_ms is not None and (head.is_empty or head.end_ms > index_ms):
        return "it was being filled when the broker ended"
    return ""


def _unsynced(kept: dict[str, IndexHead], mark: IndexMark | None) -> tuple[str, ...]:
    """Files a killed keeper of this boot had filled since the mark."""
    if mark is None:
        return tuple(sorted(kept))
    return tuple(
        name
        for name, head in sorted(kept.items())
        if name > mark.last or (name == mark.last and not head.is_empty and head.last_position >= mark.indexed)
    )
