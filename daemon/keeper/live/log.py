"""Keeps the files of the log where a restart will look for them, and saves what loses its name.

Writers and readers have the files mapped and notice nothing when their names go: by a cleaner, an rsync that deletes,
or a copy that is moved over them. What is stored from then on would be gone after the next start.

    a file removed, replaced, replaced by a link    ┐ sends stop ─▶ append lock taken once ─▶ copy of the file we hold
    a file that has grown                           ┘ to its path ─▶ said: saved, or which positions are lost
    a file truncated                 gets its size back at once, as a look behind its end is SIGBUS; sends stop; lost is
                                     what lay behind, from the record on that was cut: those before it are read, some
                                     in each round
    first bytes overwritten          sends stop; what is lost is unknown
    the directory, or the store's    sends stop; renamed back, if it has another name and the new one is not in use:
                                     processes open log files in ours, wherever it is
    may not be opened any more       said, with the command that mends it

Rules: (1) sends stop before anything else is done, and stay stopped until the next start recovers from the files;
(2) nothing is copied before no append is under way; (3) retention and spare files are not touched: a file is held from
the round on in which it was made, and let go of in the round in which it went.
"""

import contextlib
import os
from collections.abc import Sequence
from resource import RLIM_INFINITY, RLIMIT_NOFILE, getrlimit

from shmq.daemon.keeper.live.held_files import (
    FileNews,
    HeldDirectory,
    HeldFile,
    find_open,
    put_aside,
)
from shmq.errors import ShmqError
from shmq.figures.changed_files import ACCESS, LOST, SAVED
from shmq.plain_file import open_plain
from shmq.shm.core import READ_ONLY_FILES_LOST, CoreError, KeeperStore, Store
from shmq.store.atomic import reason_of
from shmq.store.commitlog import CommitLogFiles
from shmq.store.layout import StoreLayout
from shmq.store.merging import take_missing

_HELD_MAX = 512  # descriptors, or a quarter of what the process may have; of older files only the name is looked at
_NEWEST, _IN_TURNS = 32, 32  # files that are looked at each time; of all others so many
_LOCK_SECONDS = 0.5
_RETRY_SECONDS = 1.0
_READ_RECORDS, _READ_BYTES = 10_000, 16 << 20  # at once, in front of a cut; the second is more than a record can have


class LiveLog:
    """The keeper's part for log files that other programs change.

    Args:
        directories: descriptors of the store and of its commitlog/, which are locked; none: what is there now.
    """

    def __init__(
        self,
        store: Store,
        keeper_store: KeeperStore,
        layout: StoreLayout,
        files: CommitLogFiles,
        news: FileNews,
        directories: Sequence[int] = (),
    ) -> None:
        self._store = store
        self._keeper_store = keeper_store
        self._layout = layout
        self._files = files
        self._news = news
        self._held: dict[int, HeldFile] = {}  # by position, ascending
        self._unheld: set[int] = set()  # positions of files that could not be opened
        self._waiting: dict[int, str] = {}  # position -> what happened to a file that is to be saved
        self._taken: dict[int, int] = {}  # position -> descriptor of a file that another process had open
        self._cuts: dict[int, tuple[int, int]] = {}  # position of a file -> read up to here, cut there
        self._directories = [
            HeldDirectory(path, locked)
            for path, locked in zip((layout.root, layout.commitlog), (*directories, -1, -1), strict=False)
        ]
        self._turn = 0
        self._retry_at = 0.0
        self._is_quiet = False  # no append is under way, and none comes
        self._is_stopped = False
        self._is_astray = False
        self._is_made_anew = False  # commitlog/ is another directory than the segments name, until its files are saved

    @property
    def is_astray(self) -> bool:
        """Whether the store's directory is another one than ours, so that nothing may be written there."""
        return self._is_astray

    def follow(self) -> None:
        """Hold the files that were made, and let go of those that the keeper has removed."""
        positions = self._files.positions
        if len(positions) == len(self._held) + len(self._unheld) and (not positions or positions[-1] in self._held):
            return
        gone = (self._held.keys() | self._unheld) - set(positions)
        for position in gone & self._held.keys():
            self._held.pop(position).close()
        self._unheld -= gone
        self._waiting = {position: what for position, what in self._waiting.items() if position not in gone}
        self._cuts = {position: cut for position, cut in self._cuts.items() if position not in gone}
        for position in positions:
            if position not in self._held and position not in self._unheld:
                self._hold(position)
        self._held = dict(sorted(self._held.items()))
        for held in list(self._held.values())[: -_most_held()]:
            held.close()

    def round(self, now: float) -> None:
        """Look at what is due, and save one file."""
        self._look_at_directories()
        if self._is_astray:
            return
        self.follow()
        for position in list(self._held) if self._is_made_anew else self._due():
            self._look_at(position)
        self.save_next(now)

    def save_next(self, now: float) -> bool:
        """Save a file that waits for it, and go on with a cut; True when there is more to do at once.

        Args:
            now: monotonic seconds.
        """
        may_save = bool(self._waiting) and now >= self._retry_at
        if may_save and not self._save(next(iter(self._waiting))):
            self._retry_at = now + _RETRY_SECONDS
            may_save = False
        if self._is_made_anew and not self._waiting:
            self._keeper_store.set_log_directory(self._directories[-1].descriptor)
            self._is_made_anew = False
        if self._cuts:
            self._read_before_cut()
        return bool(self._cuts) or (may_save and bool(self._waiting))

    def finish(self) -> int:
        """Look at everything, and save what can be saved, before the broker stops.

        Returns:
            Up to where the log was written, if no append was under way: it is on disk by that, but for what was said to
            be lost. 0 where that is not known.
        """
        self._look_at_directories()
        if self._is_astray:
            return 0
        self.follow()
        for position in list(self._held):
            self._look_at(position)
        was_quiet = self._is_quiet
        self._is_quiet |= self._is_stopped  # the keeper has taken the lock, or said that it cannot
        for position in list(self._waiting):
            self._save(position)
        self._read_before_cuts()
        end = self._store.log_end
        if self._is_stopped:
            with contextlib.suppress(OSError):  # a lost file is reported already
                self._files.sync(max(self._store.durable_end, self._store.log_begin), end)
            return end if was_quiet else 0
        return 0

    def stop_sends(self) -> None:
        """Take no message until the next start."""
        if not self._is_stopped:
            self._is_stopped = True
            self._keeper_store.set_read_only(READ_ONLY_FILES_LOST)
        if not self._is_quiet:
            try:
                self._keeper_store.repair(_LOCK_SECONDS)
                self._is_quiet = True
            except CoreError:
                return  # the watchdog deals with a stopped holder

    def take(self, elsewhere: dict[int, str]) -> None:
        """Open files that another process has open and that are not those at their paths, before it can end.

        Args:
            elsewhere: as `find_open` returns it.
        """
        for position in sorted(elsewhere, reverse=True)[: _most_held()]:
            with contextlib.suppress(OSError):
                self._taken[position] = open_plain(elsewhere[position], os.O_RDONLY, follows_links=True)
        self._waiting |= dict.fromkeys(elsewhere, "was removed or replaced while no keeper ran")

    def save_alone(self, position: int) -> None:
        """Save one file that was taken, or that was not looked at yet; no append may be under way."""
        self._is_quiet = True
        if position not in self._waiting:
            self._hold(position)
        if position in self._held:
            self._look_at(position)
        if position in self._waiting:
            self._save(position)
        self._read_before_cuts()

    def close(self) -> None:
        """Let go of everything."""
        for held in self._held.values():
            held.close()
        for descriptor in self._taken.values():
            os.close(descriptor)
        for directory in self._directories:
            directory.close()

    # -- looking

    def _due(self) -> list[int]:
        """Positions of the newest files, in use and spare, and of some others in turn."""
        positions = list(self._held)
        newest, others = positions[-_NEWEST:], positions[:-_NEWEST]
        self._turn = self._turn + _IN_TURNS if self._turn + _IN_TURNS < len(others) else 0
        return newest + others[self._turn : self._turn + _IN_TURNS]

    def _look_at(self, position: int) -> None:
        held, path = self._held[position], self._files.path(position)
        fault = held.fault()
        if not fault and position < self._store.log_end and held.is_overwritten():
            fault = "was overwritten"
        if fault == "was truncated":
            self._grow(position, held)
        elif fault == "was overwritten":
            self.stop_sends()
            self._tell_lost(position, f"{fault} in place")
        elif fault and position not in self._waiting:
            self.stop_sends()
            self._waiting[position] = fault
        what, do = held.access_fault()
        if what:
            self._news.tell(path, ACCESS, what, do)
        else:
            self._news.withdraw(path, ACCESS)

    def _grow(self, position: int, held: HeldFile) -> None:
        try:
            size = held.grow()
        except OSError as error:
            self.stop_sends()
            self._tell_lost(position, f"was truncated and cannot grow again: {reason_of(error)}")
        else:
            self.stop_sends()
            self._cuts[position] = position, position + size

    def _read_before_cuts(self) -> None:
        while self._cuts:
            self._read_before_cut()

    def _read_before_cut(self) -> None:
        """Read some records that follow each other up to a cut; the one that is not whole begins what is lost."""
        position, (begin, cut) = next(iter(self._cuts.items()))
        end = begin
        with contextlib.suppress(CoreError):
            end, _, _ = self._keeper_store.scan(begin, min(begin + _READ_BYTES, cut), _READ_RECORDS)
        if begin < end < cut:
            self._cuts[position] = end, cut
            return
        del self._cuts[position]
        self._tell_lost(min(end, cut), f"was truncated to {cut - position} bytes")

    def _tell_lost(self, position: int, what: str) -> None:
        """Say which bytes of a file are lost: from a position to its end."""
        end = min(position - position % self._files.file_bytes + self._files.file_bytes, self._store.log_end)
        begin = max(position, self._store.log_begin)
        path = self._files.path(position)
        if begin < end:
            do = "restore it from a backup or a slave before the next start"
            self._news.tell(path, LOST, f"{what}; log positions {begin} to {end} are lost", do)
        else:
            self._news.tell(path, SAVED, f"{what}; nothing was stored there")

    # -- saving

    def _hold(self, position: int) -> None:
        try:
            self._held[position] = HeldFile(self._files.path(position), self._files.file_bytes)
        except OSError:
            # It went between its creation and now.
            self.stop_sends()
            self._unheld.add(position)
            is_there = os.path.lexists(self._files.path(position))
            self._waiting[position] = "cannot be opened" if is_there else "was removed"

    def _save(self, position: int) -> bool:
        """Give the path of a file its bytes again; False when that has to be tried again."""
        what, held, path = self._waiting[position], self._held.get(position), self._files.path(position)
        self.stop_sends()
        if not self._is_quiet:
            return False
        try:
            self._layout.prepare()
            if held is None or held.fault():
                self._put(position, held)
            self._held[position] = HeldFile(path, self._files.file_bytes)
        except (OSError, ShmqError) as error:
            reason = reason_of(error) if isinstance(error, OSError) else str(error)
            self._tell_lost(position, f"{what} and cannot be saved: {reason}")
            return False
        if held is not None:
            held.close()
        self._unheld.discard(position)
        del self._waiting[position]
        self._news.withdraw(path, LOST)
        self._news.tell(path, SAVED, what)
        return True

    def _put(self, position: int, held: HeldFile | None) -> None:
        """Copy what we hold, or else what another process has open, or where a link leads, to the path of a file."""
        path = self._files.path(position)
        open_here = held.descriptor if held is not None else self._taken.get(position, -1)
        if open_here >= 0:
            descriptor = os.dup(open_here)
        else:
            descriptor = open_plain(self._elsewhere(position, held), os.O_RDONLY, follows_links=True)
        aside = None
        try:
            # A keeper that is killed now leaves what was there: nothing else may have the bytes.
            aside = put_aside(self._layout, path, stays=True)
            self._files.put(position, descriptor, until=position + self._files.file_bytes)
        except OSError:
            if aside is not None and os.path.lexists(path):
                aside.unlink()
            raise
        finally:
            os.close(descriptor)
        if aside is not None and aside.is_file() and not aside.is_symlink():
            # A process that opened it since, while it was a copy of ours, has stored there.
            take_missing(str(path), str(aside), base=position, end=self._store.log_end)

    def _elsewhere(self, position: int, held: HeldFile | None) -> str:
        """Return a path under which the file of a position opens that is not at its own; "" where there is none."""
        path = self._files.path(position)
        found = find_open(self._layout).get(position)
        if found is None and held is None and path.is_symlink() and path.is_file():
            found = str(path) if path.stat().st_size == self._files.file_bytes else None
        return found or ""

    # -- directories

    def _look_at_directories(self) -> None:
        self._is_astray = False
        for directory in self._directories:
            what, do = directory.access_fault()
            if what:
                self._news.tell(directory.path, ACCESS, what, do)
            else:
                self._news.withdraw(directory.path, ACCESS)
            fault = directory.fault()
            if fault:
                self.stop_sends()
                if not self._restore_directory(directory, fault):
                    self._is_astray = True
                    return  # what is inside of it is not ours either

    def _restore_directory(self, directory: HeldDirectory, fault: str) -> bool:
        """Put a directory back; one that was removed is made again, and its files are saved into it. False: neither."""
        path, where = directory.path, directory.where()
        try:
            if where is not None:
                directory.put_back(where, self._layout)
            else:
                self._layout.prepare()
                directory.open()
                self._is_made_anew = True
        except (OSError, ShmqError) as error:
            what = str(error) if where is not None else f"{fault} and cannot be made again: {error}"
            do = error.hint if isinstance(error, ShmqError) else "shmq doctor"
            self._news.tell(path, LOST, what, do)
            return False
        self._news.withdraw(path, LOST)
        self._news.tell(path, SAVED, fault)
        return True


def _most_held() -> int:
    """How many descriptors of log files this process may have."""
    soft, _ = getrlimit(RLIMIT_NOFILE)
    return _HELD_MAX if soft == RLIM_INFINITY else min(_HELD_MAX, soft // 4)
