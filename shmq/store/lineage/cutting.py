"""Cutting a log that is not its master's from some place on, and giving its last files other inodes.

    shmq.cut                     {"position", "id", "epoch", "drops", "end", "begun"}: where the log is to be cut; there
                                 from the moment when that is decided until it is done, or void
    tails/<position>-<id>/       what was cut off, as log files with zeros where nothing of it is
        <20 digits>              a log file; the first one begins with zeros up to the position
        shmq.tail                {"begin", "end", "epoch", "at_ms"}, and where zeros stand for bytes that the disk did
                                 not give, "unread": [[begin, end], …]

A process that appended through segments that were given up, and was stopped in the middle, may wake up years later and
store the rest of its record, into the file that it has mapped. So the file of the end, and every one behind it, are
replaced by copies: that memory belongs to no log then. Copying is what makes demotion take a second for each GiB.

    renewed    the files from the durable mark on are copied; nothing is cut
    dropped    as cut, from the first file on and with nothing kept: the master has deleted all of it itself; the
               queues' units go, too, as no record follows on theirs
    cut        the tail is copied aside · the wish says "begun" · files behind go, the last one first · the file of the
               cut is replaced by a copy up to there · the durable mark falls, what was derived from the log goes, and
               what the tables tell of lives that began or ended behind it · the wish goes

Rules: (1) each step may be done twice, and the wish goes last, so a crash in any step is repaired by beginning again;
(2) nothing is cut off before it is on the disk elsewhere; (3) no process appends meanwhile; (4) only the log that was
judged is cut: a wish goes when its slave joins a master or leads, and counts for no log that has grown; (5) what has
begun is finished, whatever the broker has become.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shlex
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from shmq.errors import CorruptionError, ShmqError, StoreError
from shmq.plain_file import allocated_bytes, open_plain, read_past_errors, read_plain, write_whole
from shmq.store.atomic import cure_of, reason_of, sync_directory, write_atomically
from shmq.store.checkpoint import Checkpoint, known_confirmed, read_checkpoint, write_checkpoint
from shmq.store.commitlog import CommitLogFiles
from shmq.store.durable import DurableMark
from shmq.store.layout import StoreLayout, file_name, position_of
from shmq.store.lineage.epochs import cut_epochs, load_epochs, store_epochs
from shmq.store.lineage.log_range import Range
from shmq.store.seal import sealed, unsealed

TAIL_FACTS = "shmq.tail"
_CHUNK_BYTES = 1 << 20


class Cut(NamedTuple):
    """A planned cut of a log; `id` tells this wish from another for the same place.

    Attributes:
        drops: the whole log goes, and is not kept.
        end: where the log ended that was compared with the master's.
        begun: the log is not what it was any more.
    """

    position: int
    id: str
    epoch: int
    drops: bool = False
    end: int = 0
    begun: bool = False


class Tail(NamedTuple):
    """A tail that was cut off."""

    path: Path
    begin: int
    end: int
    epoch: int  # of the master that has other records there
    at_ms: int
    unread: tuple[Range, ...] = ()  # zeros stand there for what the disk did not give


def check_room(layout: StoreLayout, position: int, end: int, file_bytes: int) -> None:
    """Refuse to cut a log where its disk has no room for the tail that is kept and for the file of the cut.

    Args:
        end: of the log.

    Raises:
        StoreError: it has not.
    """
    for place, needed in _room(layout, position, end - position, file_bytes).items():
        if shutil.disk_usage(place).free < needed:  # no number that changes: each other reason is logged
            raise StoreError(
                f"the log is to be cut at {position}, where it parts from the master's: that takes {needed} bytes in"
                f" {place}, and less are free",
                hint=f"free disk space there (df {shlex.quote(str(place))}); it is tried again every second",
            )


def _room(layout: StoreLayout, position: int, tail_bytes: int, file_bytes: int) -> dict[Path, int]:
    """The bytes that a cut takes on each disk: the tail, and then the copy of a file, when those behind it are gone."""
    freed = 0
    for entry in os.scandir(layout.commitlog):
        if (position_of(entry.name) or 0) > position:
            with contextlib.suppress(FileNotFoundError):  # retention removes files meanwhile
                freed += allocated_bytes(entry.stat(follow_symlinks=False))
    copy_bytes, drafts = max(0, file_bytes - freed), layout.drafts_of(layout.commitlog)
    if drafts != layout.root:
        return {layout.root: tail_bytes, drafts: copy_bytes}
    return {layout.root: tail_bytes + copy_bytes}


def wish_cut(layout: StoreLayout, position: int, epoch: int, *, end: int, drops: bool = False) -> None:
    """Have the next cold start cut the log that ends at `end`, or give all of it up. Raises StoreError."""
    try:
        _note(layout, Cut(position, os.urandom(4).hex(), epoch, drops, end))
    except OSError as error:
        raise StoreError(f"{layout.cut} cannot be written: {error.strerror}") from error


def _note(layout: StoreLayout, cut: Cut) -> None:
    content = sealed(json.dumps(cut._asdict()).encode())
    write_atomically(layout.cut, content, mode=layout.access.mode, gid=layout.access.gid)


def void_reason(layout: StoreLayout, commitlog: CommitLogFiles, *, is_slave: bool) -> str | None:
    """Say why a cut that was wished is to be withdrawn; None: no cut is wished; empty: it is to be made.

    Raises:
        ShmqError: the wish cannot be believed, or the log cannot be read.
    """
    cut = _wished(layout)
    if cut is None:
        return None
    if cut.begun:
        return ""
    if not is_slave:
        return "this broker follows no master: its log is the one that counts"
    commitlog.remove_temporaries()
    commitlog.load()
    try:
        has_grown = any(data.strip(b"\0") for _, data in _pieces(commitlog, cut.end, []))
    except OSError as error:
        raise _refused(layout, commitlog, cut, error) from error
    return "the log has grown since: it is not the one that parted from a master's" if has_grown else ""


def withdraw_wishes(layout: StoreLayout) -> None:
    """Let the log be as it is: what it was judged by is over. Raises StoreError."""
    found = [path for path in (layout.cut, layout.beginning) if path.exists()]
    try:
        for path in found:
            path.unlink(missing_ok=True)
        if found:
            sync_directory(layout.root)
    except OSError as error:
        raise StoreError(f"{found[0]} cannot be removed: {error.strerror}") from error


def met_epoch(layout: StoreLayout) -> int:
    """Return the newest epoch of the masters from whose logs this one parted, as far as is known here; 0: of none."""
    known = [0]
    with contextlib.suppress(OSError):  # what is damaged there is no reason not to lead
        known += [tail.epoch for tail in tails(layout, lambda _: None)]
    with contextlib.suppress(ShmqError):
        known += [cut.epoch for cut in (_wished(layout),) if cut is not None]
    return max(known)


def cut_as_wished(
    layout: StoreLayout,
    commitlog: CommitLogFiles,
    mark: DurableMark,
    *,
    forget_lives: Callable[[int], None] = lambda _: None,
) -> Cut | None:
    """Cut the log where it is to be cut; return where that was, None when nothing was wished.

    Args:
        forget_lives: takes out of the tables what began or ended at or behind the position that it is called with.

    Raises:
        ShmqError: the wish cannot be believed, the log does not reach there, or the disk refuses.
    """
    cut = _wished(layout)
    if cut is None:
        return None
    commitlog.remove_temporaries()
    commitlog.load()
    cut = cut._replace(position=commitlog.begin) if cut.drops else cut
    try:
        if commitlog.positions and commitlog.begin <= cut.position < commitlog.end:
            if not cut.drops:
                _keep_tail(layout, commitlog, cut)
            if not cut.begun:
                _note(layout, cut._replace(begun=True))
            commitlog.remove_behind(cut.position)
            commitlog.renew(cut.position, until=cut.position)
        _forget_derived(layout)
        forget_lives(cut.position)
        mark.set_back(cut.position)
        if cut.drops:
            _forget_units(layout)
            mark.begin_at(cut.position)
        store_epochs(layout, cut_epochs(load_epochs(layout), cut.position))
        layout.cut.unlink(missing_ok=True)
        sync_directory(layout.root)
    except OSError as error:
        raise _refused(layout, commitlog, cut, error) from error
    return cut


def _refused(layout: StoreLayout, commitlog: CommitLogFiles, cut: Cut, error: OSError) -> StoreError:
    where = f"{error.filename}: " if error.filename else ""
    why = f"the log cannot be cut at {cut.position}: {where}{reason_of(error)}"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        commitlog.remove_temporaries()
        shutil.rmtree(_making(layout, cut), ignore_errors=True)
        is_kept = cut.drops or (layout.tails / _tail_name(cut)).exists()
        tail_bytes = 0 if is_kept else max(0, cut.end - cut.position)
        for place, needed in _room(layout, cut.position, tail_bytes, commitlog.file_bytes).items():
            why += f"; it takes up to {needed} bytes in {place}, and {shutil.disk_usage(place).free} are free there"
    return StoreError(why, hint=f"{cure_of(error)}; then start the broker again: it goes on with the cut")


def renew_end(commitlog: CommitLogFiles, mark: DurableMark) -> int:
    """Give the files at the log's end other inodes; return how many. Raises ShmqError."""
    commitlog.remove_temporaries()
    commitlog.load()
    known = mark.load()
    begin = max(commitlog.begin, known.durable_end if known else 0)
    positions = [position for position in commitlog.positions if position + commitlog.file_bytes > begin]
    try:
        for position in positions:
            commitlog.renew(position, until=position + commitlog.file_bytes)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        raise StoreError(
            f"the end of the log cannot be copied: {where}{reason_of(error)}", hint=cure_of(error)
        ) from error
    return len(positions)


def tails(layout: StoreLayout, on_fault: Callable[[CorruptionError], None] | None = None) -> list[Tail]:
    """Return what was cut off, the newest last.

    Args:
        on_fault: gets the error of each tail that does not say what it is; without it the first one is raised.

    Raises:
        CorruptionError: a tail does not say what it is.
        OSError: they cannot be listed.
    """
    found = []
    for path in sorted(layout.tails.iterdir() if layout.tails.exists() else ()):
        if path.name.startswith(".") or not path.is_dir():  # not kept yet
            continue
        try:
            found.append(_tail_of(path / TAIL_FACTS))
        except CorruptionError as fault:
            if on_fault is None:
                raise
            on_fault(fault)
    return sorted(found, key=lambda tail: (tail.at_ms, tail.path.name))


def _tail_of(facts: Path) -> Tail:
    try:
        values = unsealed(read_plain(facts))
        unread = tuple(Range(int(first), int(behind)) for first, behind in values.get("unread", ()))
        begin, end, epoch, at_ms = (int(values[name]) for name in ("begin", "end", "epoch", "at_ms"))
        if not 0 <= begin < end:
            raise ValueError(f"from {begin} to {end}")
        return Tail(facts.parent, begin, end, epoch, at_ms, unread)
    except (OSError, ValueError, KeyError, TypeError) as error:
        files = f"{shlex.quote(str(facts.parent))}/[0-9]*"
        copied = f"mkdir -p NEW/commitlog && cp {files} NEW/commitlog && shmq store export NEW --output FILE"
        reason = f"it does not say what was cut off: {error}"
        raise CorruptionError(facts, 0, reason, hint=f"restore it; or read it as a log: {copied}") from error


def unread_of(layout: StoreLayout, cut: Cut) -> tuple[Range, ...]:
    """Return where the disk did not give what a cut has taken off. Raises CorruptionError."""
    facts = layout.tails / _tail_name(cut) / TAIL_FACTS
    return _tail_of(facts).unread if facts.exists() else ()


def _tail_name(cut: Cut) -> str:
    return f"{file_name(cut.position)}-{cut.id}"


def _making(layout: StoreLayout, cut: Cut) -> Path:
    return layout.tails / f".{_tail_name(cut)}.tmp"


def _wished(layout: StoreLayout) -> Cut | None:
    try:
        values = unsealed(read_plain(layout.cut))
        place = int(values["position"]), str(values["id"]), int(values["epoch"])
        begun = values.get("begun", False) is True
        return Cut(*place, values.get("drops", False) is True, int(values.get("end", 0)), begun)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreError(f"{layout.cut} cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptionError(
            layout.cut, 0, f"it does not say where to cut: {error}", hint=f"rm {shlex.quote(str(layout.cut))}"
        ) from error


def _keep_tail(layout: StoreLayout, commitlog: CommitLogFiles, cut: Cut) -> None:
    kept = layout.tails / _tail_name(cut)
    if kept.exists():
        return
    if layout.make_directory(layout.tails):
        sync_directory(layout.root)
    making = _making(layout, cut)
    shutil.rmtree(making, ignore_errors=True)
    layout.make_directory(making)
    end, unread = cut.position, list[Range]()
    for start, data in _pieces(commitlog, cut.position, unread):
        end = max(end, start + len(data.rstrip(b"\0")))
        _put(making / file_name(start - start % commitlog.file_bytes), start % commitlog.file_bytes, data)
    end = max([end, *(each.end for each in unread)])
    if end == cut.position:
        shutil.rmtree(making)
        return
    for path in making.iterdir():
        with open(open_plain(path, os.O_RDWR), "r+b") as file:
            file.truncate(commitlog.file_bytes)
            os.fchown(file.fileno(), -1, layout.access.gid)
            os.fchmod(file.fileno(), layout.access.mode)
            os.fsync(file.fileno())
    facts: dict[str, object] = {"begin": cut.position, "end": end, "epoch": cut.epoch}
    facts |= {"at_ms": time.time_ns() // 1_000_000} | ({"unread": unread} if unread else {})
    write_atomically(
        making / TAIL_FACTS, sealed(json.dumps(facts).encode()), mode=layout.access.mode, gid=layout.access.gid
    )
    os.rename(making, kept)
    sync_directory(layout.tails)


def _pieces(commitlog: CommitLogFiles, position: int, unread: list[Range]) -> Iterator[tuple[int, bytes]]:
    """The bytes behind a position that are not zero, or were not read, in pieces."""
    for base in commitlog.positions:
        if base + commitlog.file_bytes <= position:
            continue
        for start, size in commitlog.data_ranges(max(base, position)):
            for at in range(start, start + size, _CHUNK_BYTES):
                data = _readable(commitlog, at, min(_CHUNK_BYTES, start + size - at), unread)
                if data.strip(b"\0") or (unread and unread[-1].end > at):
                    yield at, data


def _readable(commitlog: CommitLogFiles, position: int, size: int, unread: list[Range]) -> bytes:
    """The bytes at a position, with zeros for the pages that the disk does not give; these are put to `unread`."""

    def note(begin: int, end: int) -> None:
        is_next = unread and unread[-1].end == begin
        unread.append(Range(unread.pop().begin if is_next else begin, end))

    data = read_past_errors(lambda size, at: commitlog.read(at, size), size, position, note)
    if len(data) < size:
        raise OSError(errno.EIO, "it was truncated", os.fspath(commitlog.path(position + len(data))))
    return data


def _put(path: Path, at: int, data: bytes) -> None:
    descriptor = open_plain(path, os.O_WRONLY | os.O_CREAT)
    try:
        write_whole(descriptor, data, at)
    except OSError as error:
        error.filename = os.fspath(path)
        raise
    finally:
        os.close(descriptor)


def _forget_units(layout: StoreLayout) -> None:
    for topic in os.scandir(layout.consumequeue):
        if topic.is_dir(follow_symlinks=False):
            shutil.rmtree(topic.path)
    sync_directory(layout.consumequeue)


def _forget_derived(layout: StoreLayout) -> None:
    """Units, index and times tell of records that are cut off; recovery makes them again from the log."""
    os.close(open_plain(layout.abort, os.O_WRONLY | os.O_CREAT))
    for path in (layout.unit_sums, layout.index_mark, layout.scrub_state):
        path.unlink(missing_ok=True)
    for directory in (layout.index, layout.index_sums):
        shutil.rmtree(directory, ignore_errors=True)
    known = read_checkpoint(layout)
    if known.flushed or known_confirmed(layout):
        write_checkpoint(layout, Checkpoint(known.physic_ms, known.logics_ms))
    sync_directory(layout.root)
