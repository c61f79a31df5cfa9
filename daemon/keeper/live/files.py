"""Writes again what another process removed or replaced beside the log: all is known, or follows from the log.

    tables and their backups      from memory, as they were saved last
    mark, checkpoint, abort       from memory
    checksums of the units        anew with the next mark, which is written at once
    unit files                    that are open: their bytes; others: from the log, some queues at each look
    key index                     built again from the log
    lineage of the log            from memory: epochs and identity, which other processes write too

What lies there instead is moved to `quarantine/`. `shmq health` warns of it until the next start, because whatever does
this to a store may take the log next. The command that mends a file that cannot be opened is reported.

Rule: the keeper's own changes are no alarm: what it wrote it remembers (`store/atomic.py`), and what it removes it
forgets first.
"""

import contextlib
import itertools
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

from shmq.daemon.keeper.index import IndexKeeper
from shmq.daemon.keeper.live.held_files import (
    Access,
    FileNews,
    access_fault,
    access_of,
    make_room,
    put_aside,
)
from shmq.daemon.keeper.marks import MarkKeeper
from shmq.daemon.keeper.units import UnitWriter
from shmq.errors import ShmqError
from shmq.figures.changed_files import ACCESS, LOST, RESTORED
from shmq.plain_file import NoPlainFile, kind_of, read_plain
from shmq.shm.core import UNIT_BYTES, CoreError
from shmq.store.atomic import ANY_SIZE, GROWN, TRUNCATED, adopt, fault_of, forget, write_atomically
from shmq.store.checkpoint import CHECKPOINT_BYTES, read_checkpoint, write_checkpoint
from shmq.store.consumequeue import FILE_BYTES, FILE_UNITS, Queue
from shmq.store.durable import MARK_BYTES
from shmq.store.recovery import OpenFiles
from shmq.store.unit_sums import BLOCK_UNITS

_QUEUES_PER_ROUND = 64
_OWNER_BITS = stat.S_IRUSR | stat.S_IWUSR


class LiveFiles:
    """The keeper's part for files beside the log that other processes change."""

    def __init__(
        self, files: OpenFiles, units: UnitWriter, marks: MarkKeeper, index: IndexKeeper, news: FileNews
    ) -> None:
        self._files = files
        self._layout = layout = files.layout
        self._units = units
        self._marks = marks
        self._index = index
        self._news = news
        self._queues: Iterator[Queue] = iter(())
        self._access: dict[Path, tuple[int, Access]] = {}  # inode, and who might open it
        self._has_looked = False  # what is seen first from then on was made since
        self._lineage: dict[Path, bytes] = {}
        self._checkpoint = read_checkpoint(layout)
        self._in_place = {
            layout.durable_mark: (MARK_BYTES, files.mark.write_again),
            layout.checkpoint: (CHECKPOINT_BYTES, lambda: write_checkpoint(layout, self._checkpoint)),
            layout.abort: (ANY_SIZE, lambda: layout.abort.touch(mode=0o600)),
        }
        files.config.adopt_files()
        for path in (layout.unit_sums, layout.index_mark):
            adopt(path)

    def round(self) -> None:
        """Look at everything that is small, and at some of the unit files."""
        try:
            self._layout.prepare()
        except ShmqError as error:
            self._news.tell(self._layout.root, LOST, str(error), error.hint)
            return
        for directory in (self._layout.config, self._layout.consumequeue, self._layout.index):
            self._look_at_access(directory)
        self._look_at_tables()
        self._look_in_place()
        self._look_at_sums()
        self._look_at_lineage()
        for queue, base, descriptor in self._files.consumequeue.open_files():
            self._look_at_open_units(queue, base, descriptor)
        self._look_at_units()
        with contextlib.suppress(OSError, ShmqError):  # the index itself reports a disk that refuses
            for path, fault in self._index.put_right():
                self._news.tell(path, RESTORED, fault)
        for path in self._index.paths:
            self._look_at_access(path)
        self._has_looked = True

    def has_units(self, queue: Queue, first: int) -> bool:
        """Before a keeper writes: whether a file of units is there; what cannot be one is moved aside."""
        path = self._unit_path(queue, first * UNIT_BYTES)
        fault = _fault_of_units(path)
        if fault:
            put_aside(self._layout, path)
            self._news.tell(path, RESTORED, fault)
        return not fault

    def _mend(self, path: Path, fault: str, write: Callable[[], object]) -> None:
        """Move aside what is there, write the file again, and say so."""
        try:
            put_aside(self._layout, path)
            write()
        except (OSError, ShmqError, CoreError) as error:
            self._news.tell(path, LOST, f"{fault} and cannot be written again: {error}", "shmq doctor")
        else:
            self._news.withdraw(path, LOST)
            self._news.tell(path, RESTORED, fault)

    def _look_at_access(self, path: Path, *, may_be_older: bool = False) -> None:
        """Say what has less access than it was made with.

        Args:
            may_be_older: whether what is seen for the first time may be from before this keeper, of another user.
        """
        try:
            status = os.lstat(path)
        except OSError:
            return
        known = self._access.get(path)
        if known is None or known[0] != status.st_ino:
            # The keeper has written it anew, for itself to read and write; what has changed that since is found below.
            is_ours = status.st_uid == os.geteuid()
            is_as_written = is_ours and status.st_mode & _OWNER_BITS == _OWNER_BITS
            was_there = not self._has_looked or (may_be_older and not is_ours)
            if is_as_written or (known is None and was_there):
                access = access_of(status)
            else:
                access = known[1] if known is not None else self._access_as_made(status)
            known = self._access[path] = status.st_ino, access
        what, do = access_fault(path, status, known[1])
        if what:
            self._news.tell(path, ACCESS, what, do)
        else:
            self._news.withdraw(path, ACCESS)

    def _access_as_made(self, status: os.stat_result) -> Access:
        """Who might open what the keeper has made since its last look."""
        access = self._layout.access
        mode = access.directory_mode if stat.S_ISDIR(status.st_mode) else access.read_mode
        return mode, os.geteuid(), status.st_gid if access.gid < 0 else access.gid

    def _look_at_tables(self) -> None:
        config = self._files.config
        for name in config.names:
            for path in config.copies(name):
                if fault := fault_of(path):
                    self._mend(path, fault, lambda name=name: config.put_back(name))  # type: ignore[misc]
                self._look_at_access(path)

    def _look_in_place(self) -> None:
        for path, (bytes_most, write) in self._in_place.items():
            if fault := fault_of(path, bytes_most=bytes_most):
                self._mend(path, fault, write)
                forget(path)
            adopt(path)
            self._look_at_access(path)
        self._checkpoint = read_checkpoint(self._layout)

    def _look_at_sums(self) -> None:
        path, sums = self._layout.unit_sums, self._files.consumequeue.sums
        fault = fault_of(path, written_bytes=sums.file_bytes)
        if fault in (GROWN, TRUNCATED):  # by its thread, perhaps
            self._marks.step(wait=True)
            fault = fault_of(path, written_bytes=sums.file_bytes)
        if fault:
            make_room(self._layout, path)
            self._marks.step(wait=True)  # its thread may be writing them
            self._mend(path, fault, sums.write_anew)
            self._marks.write_again()
            forget(path)  # until it is there
        self._look_at_access(path)
        self._look_at_access(self._layout.index_mark)

    def _look_at_lineage(self) -> None:
        layout = self._layout
        for path in (layout.epochs, layout.identity):
            try:
                self._lineage[path] = read_plain(path)
            except (FileNotFoundError, NoPlainFile):
                if path in self._lineage:
                    content, access = self._lineage[path], layout.access
                    self._mend(
                        path,
                        "is not there any more",
                        lambda path=path, content=content, access=access: write_atomically(  # type: ignore[misc]
                            path, content, mode=access.mode, gid=access.gid
                        ),
                    )
            except OSError:
                continue

    # -- units

    def _look_at_open_units(self, queue: Queue, base: int, descriptor: int) -> None:
        files = self._files.consumequeue
        path = self._unit_path(queue, base)
        held = os.fstat(descriptor)
        try:
            found = os.lstat(path)
        except OSError:
            self._mend(path, "was removed", lambda: files.put_back(queue, base))
            return
        if (found.st_dev, found.st_ino) != (held.st_dev, held.st_ino):
            self._mend(path, "was replaced", lambda: files.put_back(queue, base))
        elif held.st_size != FILE_BYTES:
            self._rebuild(queue, base, "was truncated" if held.st_size < FILE_BYTES else "has grown")
        self._look_at_access(path, may_be_older=True)

    def _look_at_units(self) -> None:
        """Look whether some of the files that are not open are there."""
        sums = self._files.consumequeue.sums
        queues = list(itertools.islice(self._queues, _QUEUES_PER_ROUND))
        if not queues:
            self._queues = iter(sums.queues())
        for queue in queues:
            of_queue = sums.of(queue)
            if of_queue is None:
                continue
            first = of_queue.first_block * BLOCK_UNITS
            for offset in range(first - first % FILE_UNITS, of_queue.end, FILE_UNITS):
                fault = _fault_of_units(self._unit_path(queue, offset * UNIT_BYTES))
                if fault:
                    self._rebuild(queue, offset * UNIT_BYTES, fault)

    def _unit_path(self, queue: Queue, base: int) -> Path:
        return Path(self._files.consumequeue.place_of(queue, base // UNIT_BYTES)[0])

    def _rebuild(self, queue: Queue, base: int, fault: str) -> None:
        first = base // UNIT_BYTES
        self._mend(self._unit_path(queue, base), fault, lambda: self._units.rebuild_units(queue, first, FILE_UNITS))


def _fault_of_units(path: Path) -> str:
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return "was removed"
    except OSError:
        return ""
    if not stat.S_ISREG(status.st_mode):
        return f"was replaced by {kind_of(status.st_mode)}"
    return "" if status.st_size == FILE_BYTES else "was truncated" if status.st_size < FILE_BYTES else "has grown"
