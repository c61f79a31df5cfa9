"""The epochs of a log: the master that wrote each part, and the position at which two logs part.

    <root>/epochFileCheckpoint, and .bak     RocketMQ's text, as its own brokers with a controller keep it

    2              entries
    1834096128     CRC-32 of the lines below, without its highest bit; 0: not said
    0-0            epoch - log position where it begins
    1-81920

An epoch is one time of one master; each switch begins the next one where the new master's log ends. So two logs that
have the same epoch from the same position on are the same bytes up to where the shorter of the two leaves that epoch:
one master wrote both. Behind it they part, and the one that is not the master's is cut there.

A log that was never switched has no file, and one epoch, 0 from 0.

Rules: (1) a file is replaced as a whole, then `.bak` gets the same epochs, at the latest when a keeper starts: with
fewer a slave would be cut where it parts from none. What has neither the right number of lines nor the right CRC is not
believed; (2) an epoch is on the disk before a record of it is in the log; (3) of more than EPOCHS_MAX the oldest go:
what is compared is the newest one that both logs have.
"""

from __future__ import annotations

import itertools
import re
import shlex
import zlib
from collections.abc import Callable, Sequence
from typing import NamedTuple

from shmq.errors import CorruptionError, StoreError
from shmq.plain_file import read_plain
from shmq.store.atomic import backup_of, cure_of, equal_backup, reason_of, write_atomically
from shmq.store.layout import StoreLayout

EPOCHS_MAX = 4096
EPOCH_MAX = (1 << 53) - 1  # exact in every JSON, and within what a line of the file holds
_CRC_MASK = 0x7FFFFFFF
_LINE = re.compile(r"([0-9]{1,18})-([0-9]{1,19})")


class Epoch(NamedTuple):
    """One time of one master, and the log position where it begins."""

    number: int
    start: int


Epochs = tuple[Epoch, ...]
FIRST: Epochs = (Epoch(0, 0),)


def check_epochs(epochs: Sequence[Epoch]) -> Epochs:
    """Return epochs that can be those of one log.

    Raises:
        ValueError: they cannot; its text says why.
    """
    if not 0 < len(epochs) <= EPOCHS_MAX:
        raise ValueError(f"there are {len(epochs)} epochs, 1 to {EPOCHS_MAX} are possible")
    for before, after in itertools.pairwise(epochs):
        if after.number <= before.number or after.start < before.start:
            raise ValueError(
                f"epoch {after.number} from {after.start} follows epoch {before.number} from {before.start}"
            )
    if epochs[-1].number > EPOCH_MAX:
        raise ValueError(f"epoch {epochs[-1].number} is above {EPOCH_MAX}, the last that can be")
    if epochs[0].number < 0 or epochs[0].start < 0:
        raise ValueError(f"epoch {epochs[0].number} begins at {epochs[0].start}")
    return tuple(epochs)


def common_end(mine: Sequence[Epoch], my_end: int, theirs: Sequence[Epoch], their_end: int) -> tuple[Epoch, int] | None:
    """Return the newest epoch of both logs, and up to where they are the same; None when they never were one.

    Args:
        my_end: log position where that log ends; `their_end` likewise.
    """
    known = dict(_spans(theirs, their_end))
    for epoch, end in reversed(_spans(mine, my_end)):
        if epoch in known:
            return epoch, min(end, known[epoch])
    return None


def with_epoch(epochs: Sequence[Epoch], epoch: Epoch) -> Epochs:
    """Return the epochs of a log that goes on with this one; what begins at its place or behind goes.

    Raises:
        ValueError: it is no newer one.
    """
    kept = [known for known in epochs if known.start < epoch.start or known == epochs[0]][1 - EPOCHS_MAX :]
    if epoch in epochs:
        return tuple(epochs)
    return check_epochs([*kept, epoch]) if kept[-1].number < epoch.number else _refuse(kept[-1], epoch)


def cut_epochs(epochs: Sequence[Epoch], log_end: int) -> Epochs:
    """Return the epochs of a log that was cut; the first one stays."""
    return (epochs[0], *(epoch for epoch in epochs[1:] if epoch.start < log_end))


def load_epochs(layout: StoreLayout, log: Callable[..., None] | None = None) -> Epochs:
    """Return the epochs of a store's log.

    Args:
        log: called where they had to be read from the backup. With it a backup that has others gets those of the file:
            the write of it failed, or was interrupted, or a version before left it behind.

    Raises:
        CorruptionError: there are files, and none can be believed.
        StoreError: they cannot be read.
    """
    path, reason, is_damaged, refused = layout.epochs, "", False, list[OSError]()
    for candidate in (path, backup_of(path)):
        try:
            epochs = parse_epochs(read_plain(candidate))
        except FileNotFoundError:
            reason = reason or "it is missing"
        except OSError as error:
            refused, reason = [*refused, error], reason or reason_of(error)
        except ValueError as error:
            is_damaged, reason = True, reason or str(error)
        else:
            if reason and log is not None:
                cure = shlex.join(("cp", "-p", str(candidate), str(path)))
                log("epochs.from_backup", file=str(path), reason=reason, epoch=epochs[-1].number, hint=cure)
            elif log is not None:
                _copy(layout, log)
            return epochs
    if is_damaged:
        raise CorruptionError(path, 0, reason, hint="copy the file of another broker of this name, or empty this store")
    if refused:
        where = f"{refused[0].filename or path} cannot be read"
        raise StoreError(f"{where}: {reason_of(refused[0])}", hint=cure_of(refused[0])) from refused[0]
    return FIRST


def _copy(layout: StoreLayout, log: Callable[..., None]) -> None:
    try:
        equal_backup(layout.epochs, mode=layout.access.mode, gid=layout.access.gid)
    except OSError as error:  # the next start tries again
        log("epochs.not_copied", file=str(backup_of(layout.epochs)), reason=reason_of(error), hint=cure_of(error))


def store_epochs(layout: StoreLayout, epochs: Sequence[Epoch]) -> None:
    """Write the epochs of a store's log, and have them on the disk.

    Raises:
        StoreError: the disk refuses.
    """
    content, access = epochs_text(check_epochs(epochs)).encode(), layout.access
    try:
        # No backup of what is there: that may be damaged, and the backup be the whole one.
        write_atomically(layout.epochs, content, mode=access.mode, gid=access.gid)
        equal_backup(layout.epochs, mode=access.mode, gid=access.gid)
    except OSError as error:
        raise StoreError(f"{layout.epochs} cannot be written: {reason_of(error)}", hint=cure_of(error)) from error


def epochs_text(epochs: Sequence[Epoch]) -> str:
    """Return the file's text."""
    lines = "".join(f"{epoch.number}-{epoch.start}\n" for epoch in epochs)
    return f"{len(epochs)}\n{zlib.crc32(lines.encode()) & _CRC_MASK}\n{lines}"


def parse_epochs(content: bytes) -> Epochs:
    """Read what `epochs_text` or a RocketMQ broker wrote.

    Raises:
        ValueError: it is no such text.
    """
    count, _, rest = content.decode("ascii").partition("\n")
    lines = rest.split("\n")
    if not count.isdecimal() or len(lines) < 2 or lines[-1]:
        raise ValueError("it is no list of epochs")
    if lines[0].isdecimal():  # RocketMQ 5.0 writes none
        crc, lines = int(lines[0]), lines[1:]
        if crc and crc != zlib.crc32("\n".join(lines).encode()) & _CRC_MASK:
            raise ValueError("its checksum is wrong")
    found = [_LINE.fullmatch(line) for line in lines[:-1]]
    if len(found) != int(count):
        raise ValueError(f"it has {len(found)} epochs and says {count}")
    return check_epochs([Epoch(int(match[1]), int(match[2])) for match in found if match is not None])


def _spans(epochs: Sequence[Epoch], log_end: int) -> list[tuple[Epoch, int]]:
    ends = [min(epoch.start, log_end) for epoch in epochs[1:]]
    return list(zip(epochs, [*ends, log_end], strict=True))


def _refuse(known: Epoch, epoch: Epoch) -> Epochs:
    raise ValueError(f"epoch {epoch.number} from {epoch.start} is none that follows {known.number} from {known.start}")
