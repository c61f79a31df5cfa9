"""Decides which index files a starting keeper trusts, and from where on it has to follow the log.

    file                                                cold start                   living segments
    another size, numbers that cannot be                not trusted                  not trusted
    names records at or behind the log's end            not trusted                  not trusted
    no sums, or other content than they say             not trusted                  not trusted, if the mark covers it
    later than the mark says                            removed: a crash may have    trusted: this boot's memory
                                                        kept any part of it          has all of it

Files that the mark covers are compared with their sums within CHECK_SECONDS, the newest first; the scrubber looks at
all of them. Without a mark that can be read, every file is compared. One that is not trusted and has a later one behind
it is built again in its place, while what is left of it is still searched; the last one is removed, and the log is
followed from where it began.

    begin of the walk     the mark, if it speaks of the newest file that is left; else where that file's sums end; else
                          the begin of the log

Rule: removing a file costs a walk over the log's records it was built from, never a message.
"""

import time
from dataclasses import dataclass, field

from shmq.daemon.event_log import EventLog
from shmq.errors import CorruptionError, ShmqError
from shmq.shm.core import Store
from shmq.store.index.files import IndexFile, IndexFiles, IndexHead
from shmq.store.index.mark import IndexMark, load_index_mark
from shmq.store.index.sums import FileSums, IndexSums
from shmq.store.layout import StoreLayout

_CHECK_SECONDS = 1.0


@dataclass(frozen=True)
class IndexGap:
    """A part of the log whose keys are in no file: between the files `after` and `before`."""

    begin: int
    end: int
    after: str
    before: str
    names: tuple[str, ...] = ()  # of the files that were there


@dataclass
class IndexState:
    """Where the index stands.

    Attributes:
        begin: log position from which on the keys of the newest unsynced file come, or of the next one.
        is_settled: every file is synced, and the mark says so.
        unsynced: files that are not, and where their keys begin.
        gaps: what has to be built again, the newest first.
        faults: what was found wrong, in words.
    """

    mark: IndexMark = field(default_factory=IndexMark)
    position: int = 0
    begin: int = 0
    is_settled: bool = True
    unsynced: dict[str, int] = field(default_factory=dict)
    gaps: list[IndexGap] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _Kept:
    """A file that is trusted, and the part of the log it answers for; `end` None: as far as the walk comes."""

    name: str
    begin: int
    end: int | None


def find_start(store: Store, layout: StoreLayout, files: IndexFiles, *, warm: bool, log: EventLog) -> IndexState:
    """Remove what cannot be trusted and say where to begin. Raises OSError."""
    files.remove_temporaries()
    state = IndexState()
    is_marked = _read_mark(layout, state, log)
    search = _Search(store, files, IndexSums(layout), state, log, is_marked=is_marked, warm=warm)
    search.run()
    search.cover()
    return state


def _read_mark(layout: StoreLayout, state: IndexState, log: EventLog) -> bool:
    """Take the mark; False when there is none that can be believed."""
    try:
        mark = load_index_mark(layout)
    except CorruptionError as error:
        log("index.mark_unreadable", file=str(layout.index_mark), reason=error.reason)
        state.faults.append(f"{layout.index_mark.name}: {error.reason}")
        mark = None
    state.mark = mark or IndexMark()
    return mark is not None


class _Search:
    """Looks at every file that there is, or that has sums."""

    def __init__(
        self,
        store: Store,
        files: IndexFiles,
        sums: IndexSums,
        state: IndexState,
        log: EventLog,
        *,
        is_marked: bool,
        warm: bool,
    ) -> None:
        self._store = store
        self._files = files
        self._sums = sums
        self._state = state
        self._log = log
        self._is_marked = is_marked
        self._warm = warm
        self._is_ours = is_marked or bool(self._sums.names())  # a stock broker's files have no sums
        self._kept: list[_Kept] = []
        self._lost: list[str] = []

    def run(self) -> None:
        """Divide the files into those that are trusted and those that are not."""
        until = time.monotonic() + _CHECK_SECONDS
        for name in sorted({*self._files.names(), *self._sums.names()}, reverse=True):
            kept, reason = None, ""
            is_marked = name <= self._state.mark.last
            if self._is_marked and not is_marked and not self._warm:
                reason = "it was being filled when the broker ended"
                if not (self._files.directory / name).exists():
                    self._sums.remove(name)  # of a file that was dropped
                    continue
            else:
                try:
                    kept, reason = self._look(name, is_marked=is_marked, until=until)
                except (ShmqError, OSError) as error:
                    reason = error.reason if isinstance(error, CorruptionError) else str(error)
                if reason and self._is_ours and (is_marked or not self._is_marked):
                    self._state.faults.append(f"index/{name}: {reason}")
            if kept is not None:
                self._kept.append(kept)
            else:
                self._lost.append(name)
                self._log("index.file_dropped", file=name, reason=reason)
        self._kept.reverse()

    def _look(self, name: str, *, is_marked: bool, until: float) -> tuple[_Kept | None, str]:
        file = self._files.open(name)
        try:
            head = file.head()
            reason = _distrust(head, self._store)
            if reason:
                return None, reason
            if self._warm and not is_marked:
                self._state.unsynced[name] = max(head.begin_position, self._state.mark.indexed)
                return _Kept(name, head.begin_position, None), ""
            sums = self._sums.load(name)
            if sums is None:
                return None, "it has no checksums"
            is_checked = not self._warm and (not self._is_marked or time.monotonic() < until)
            reason = _contradiction(file, head, sums, self._store, is_checked=is_checked)
            return (None if reason else _Kept(name, sums.begin, sums.end)), reason
        finally:
            file.close()

    def cover(self) -> None:
        """Find the parts of the log whose keys are nowhere, and where the walk begins."""
        state, store = self._state, self._store
        reached, after = store.log_begin, ""
        for number, kept in enumerate(self._kept):
            names = tuple(sorted(name for name in self._lost if after < name < kept.name))
            if kept.begin > reached and (names or kept.name not in state.unsynced):
                state.gaps.insert(0, IndexGap(reached, kept.begin, after, kept.name, names))
            following = self._kept[number + 1].begin if number + 1 < len(self._kept) else kept.begin
            reached = max(reached, following if kept.end is None else kept.end)
            after = kept.name
        for name in self._lost:
            self._sums.remove(name)
            if not any(name in gap.names for gap in state.gaps):
                self._files.remove(name)
        state.begin, state.position = reached, reached
        newest = self._kept[-1] if self._kept else None
        if not self._warm and state.mark.last != after:
            state.mark = IndexMark(reached, after)
        if newest is not None and newest.name in state.unsynced:
            state.position = max(reached, self._last_position(newest.name))
            state.is_settled = False
        elif state.mark.last == after and state.mark.indexed <= store.log_end:
            state.position = max(reached, state.mark.indexed)
        state.unsynced = dict(sorted(state.unsynced.items()))
        state.position = max(store.log_begin, min(state.position, store.log_end))

    def _last_position(self, name: str) -> int:
        file = self._files.open(name)
        try:
            return file.head().last_position
        finally:
            file.close()


def _distrust(head: IndexHead, store: Store) -> str:
    if not head.is_empty and max(head.last_position, head.end_position) >= store.log_end:
        return f"it names a record at {head.end_position}, the log ends at {store.log_end}"
    if head.begin_ms > head.end_ms and not head.is_empty:
        return f"it begins at {head.begin_ms} and ends at {head.end_ms}"
    return ""


def _contradiction(file: IndexFile, head: IndexHead, sums: FileSums, store: Store, *, is_checked: bool) -> str:
    """Say where a file is not what its sums say."""
    if sums.next_entry != head.next_entry:
        return f"it has {head.next_entry - 1} entries, its checksums speak of {sums.next_entry - 1}"
    if sums.end > store.log_end:
        return f"it answers for the log up to {sums.end}, the log ends at {store.log_end}"
    if is_checked and (block := sums.wrong_block(file)) is not None:
        return f"the checksum of its block {block} does not hold"
    return ""
