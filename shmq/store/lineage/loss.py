"""Finds what the files of a log lack of what was on disk: refused with its numbers, or accepted with exactly these.

    the mark's log_begin            begin of the files    ...    end of the files       durable_end
          |        missing                |    gaps    |               |    missing         |

    accepted in front           the mark says the new begin: as after retention
    between, or at the end      blank files take the place: a damaged range, so no queue offset is given out twice
    every file                  the log begins with the file of its durable end, which is blank

A stock broker that worked on the store moves no mark of ours. It changes its part of the checkpoint and not our copy of
that, so first files that are missing then are what its retention removed.

Rules: (1) nothing is changed before everything that is missing was accepted, as it is; (2) once accepted it is not
missing any more, so the same words accept nothing else; (3) where the mark does not say where the log begins, it
begins with its first file.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from shmq.errors import CorruptionError, StoreError
from shmq.store.checkpoint import is_of_stock_broker
from shmq.store.commitlog import CommitLogFiles
from shmq.store.config import Log
from shmq.store.durable import DurableMark, Mark
from shmq.store.layout import StoreLayout, file_name
from shmq.store.lineage.log_range import Range

_NAMED_FILES_MAX = 4


class Extent(Protocol):
    """The files of a log, as far as this is about them."""

    positions: list[int]

    @property
    def begin(self) -> int: ...
    @property
    def end(self) -> int: ...
    @property
    def gaps(self) -> list[tuple[int, int]]: ...


def missing_ranges(commitlog: Extent, mark: Mark | None) -> list[Range]:
    """Return what the files that were found lack, in rising order."""
    if mark is None:
        return [Range(*gap) for gap in commitlog.gaps]
    if not commitlog.positions:
        whole = Range(mark.log_begin or 0, mark.durable_end)
        return [whole] if whole.begin < whole.end else []
    begin = commitlog.begin if mark.log_begin is None else mark.log_begin
    front, behind = Range(begin, commitlog.begin), Range(commitlog.end, mark.durable_end)
    ranges = [front, *(Range(*gap) for gap in commitlog.gaps), behind]
    return [each for each in ranges if each.begin < each.end]


def is_shortened_elsewhere(layout: StoreLayout, commitlog: Extent, missing: list[Range]) -> bool:
    """Whether the first of what is missing is what the retention of a stock broker removed."""
    is_in_front = bool(commitlog.positions and missing) and missing[0].end == commitlog.begin
    return is_in_front and is_of_stock_broker(layout)


def missing_cure(ranges: list[Range]) -> str:
    """Say what to do about it."""
    return f"put them back; or accept the loss, once: shmq serve --accept-loss {','.join(map(str, ranges))}"


def missing_text(ranges: list[Range], file_bytes: int) -> str:
    """Say how much is missing, and in which files it was; `file_bytes` is 0 where none is left to tell it."""
    lost = sum(each.end - each.begin for each in ranges)
    where = ", ".join(f"{each.begin} to {each.end - 1}" for each in ranges)
    what = f"with {lost} bytes that were on disk, positions {where}"
    if not file_bytes:
        return f"all log files are missing {what}"
    positions = [at for each in ranges for at in range(each.begin - each.begin % file_bytes, each.end, file_bytes)]
    names = ", ".join(file_name(at) for at in positions[:_NAMED_FILES_MAX])
    more = f" … {file_name(positions[-1])}" if len(positions) > _NAMED_FILES_MAX else ""
    count = f"{len(positions)} log file{'' if len(positions) == 1 else 's'}"
    verb = "is" if len(positions) == 1 else "are"
    return f"{count} {verb} missing ({names}{more}) {what}"


def accept_missing(
    layout: StoreLayout,
    commitlog: CommitLogFiles,
    mark: DurableMark,
    *,
    accepted: list[Range],
    messages_within: Callable[[int, int], int],
    log: Log,
) -> tuple[list[Range], int]:
    """Refuse a log that lacks something, unless that is accepted; return what was, and how many messages lay there.

    Args:
        messages_within: says how many units point into a range of the log.

    Raises:
        CorruptionError: something is missing; nothing was changed.
        ShmqError: the disk refuses the blank files.
    """
    known = mark.load()
    missing = missing_ranges(commitlog, known)
    if is_shortened_elsewhere(layout, commitlog, missing):
        was = missing.pop(0).begin
        log(
            "recovery.begins_later", log_begin=commitlog.begin, was=was, reason="a stock broker has worked on the store"
        )
    if not missing:
        return [], 0
    if missing != accepted:
        raise CorruptionError(
            layout.commitlog,
            missing[0].begin,
            missing_text(missing, commitlog.file_bytes),
            hint=f"{missing_cure(missing)}; nothing was changed",
        )
    lost = [messages_within(begin, end) for begin, end in missing]
    for (begin, end), messages in zip(missing, lost, strict=True):
        log("recovery.loss_accepted", log_position=begin, end=end, messages=messages)
    _fill(commitlog, missing, known.durable_end if known else 0)
    try:
        mark.advance(log_begin=commitlog.begin)
    except OSError as error:
        raise StoreError(f"{layout.durable_mark} cannot be written: {error.strerror}") from error
    return missing, sum(lost)


def _fill(commitlog: CommitLogFiles, missing: list[Range], durable_end: int) -> None:
    file_bytes = commitlog.file_bytes
    if not commitlog.positions:
        commitlog.create_next(durable_end - durable_end % file_bytes)
    for begin, end in commitlog.gaps:
        commitlog.create_missing(begin, end)
    while commitlog.end < durable_end:
        commitlog.create_next()
