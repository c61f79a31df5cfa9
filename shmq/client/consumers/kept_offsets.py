"""The offsets of broadcasting members over a restart: one file for each member of a group and topic.

    $SHMQ_OFFSETS_DIR, else $XDG_STATE_HOME/shmq/offsets, else ~/.local/state/shmq/offsets
      <hash of the broker's URL>/<group>/<topic>.<n>.json       {"0@0": 1234, "1@0": 1190}  queue: next offset
                                         <topic>.<n>.lock       flock of the member that uses it

RocketMQ keeps one such file for all members of a group on a host; they write over each other. Here every living member
has a file of its own, the lowest n that is free; one that starts again goes on where the one with this n stopped.

What is written is the oldest message not settled, every 5 s and when the consumer is closed.

Invariants:
    (1) an offset is written down after its messages were settled, so a killed member repeats at most what it settled
        since the last save, and misses nothing;
    (2) a file is replaced as a whole; one that cannot be read counts as none;
    (3) a queue that appeared while the member was away is read from its first message; so is one of a topic that was
        deleted and made again, where its name says that (`@` and where its topic begins in the log).
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any, Final

from shmq.client import options
from shmq.client.spec import ConsumerSpec
from shmq.client.timetable import Timetable
from shmq.client.wire import LOG
from shmq.plain_file import open_plain, read_plain
from shmq.shm.descriptors import above_standard
from shmq.shm.place import home_directory

_MEMBERS_MAX: Final = 1024
_FILE_BYTES_MAX: Final = 1 << 20
_OFFSET_MAX: Final = (1 << 63) - 1
_BEGIN: Final = re.compile(r"@[0-9]+$")


def offsets_directory() -> Path | None:
    """Return where the files of this user are; None for one without a home."""
    named = os.environ.get("SHMQ_OFFSETS_DIR")
    if named:
        return Path(named)
    state = os.environ.get("XDG_STATE_HOME")
    if state:
        return Path(state) / "shmq" / "offsets"
    home = home_directory()
    return home and home / ".local" / "state" / "shmq" / "offsets"


class KeptOffsets:
    """The file of one member; `close()` leaves it to the next one."""

    def __init__(self, path: Path, lock: IO[bytes]) -> None:
        self.path = path
        self._lock = lock
        self._saved = _read(path)

    def get(self, queue: str) -> int | None:
        """Return where to go on in a queue; None for a member that was never here."""
        if not self._saved:
            return None
        return self._saved.get(queue, self._saved.get(_of_any_topic(queue), 0))  # older releases wrote it so

    def save(self, offsets: Mapping[str, int]) -> None:
        """Write down where to go on; queues that are not named keep what they have."""
        named = set(map(_of_any_topic, offsets))
        merged = {name: at for name, at in self._saved.items() if _of_any_topic(name) not in named} | dict(offsets)
        if merged == self._saved:
            return
        scratch = self.path.with_suffix(".new")
        try:
            with above_standard, open(open_plain(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "w") as file:
                json.dump(merged, file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(scratch, self.path)
        except OSError as error:
            LOG.warning("the offsets of a broadcast consumer cannot be kept: %s", error)
            return
        self._saved = merged

    def close(self) -> None:
        """Let another member have the file."""
        self._lock.close()


@above_standard
def open_kept_offsets(url: str, group: str, topic: str) -> KeptOffsets | None:
    """Return the lowest file that no living member has; None, with a warning, when there can be none."""
    root = offsets_directory()
    if root is None:
        LOG.warning("the offsets of a broadcast consumer cannot be kept: no home directory; set SHMQ_OFFSETS_DIR")
        return None
    directory = root / hashlib.sha256(url.encode()).hexdigest()[:16] / group
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        for number in range(_MEMBERS_MAX):
            descriptor = open_plain(directory / f"{topic}.{number}.lock", os.O_WRONLY | os.O_CREAT)
            lock = open(descriptor, "ab")  # noqa: SIM115 - it is open as long as the member lives
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                lock.close()
                continue
            return KeptOffsets(directory / f"{topic}.{number}.json", lock)
    except OSError as error:
        LOG.warning("the offsets of a broadcast consumer cannot be kept in %s: %s", directory, error)
    return None


class OffsetKeeper:
    """Saves the offsets of one consumer until `close()`; `progress` returns them by the names of its queues."""

    def __init__(self, kept: KeptOffsets, timetable: Timetable, progress: Callable[[], dict[str, int]]) -> None:
        self._kept = kept
        self._timetable = timetable
        self._progress = progress
        # Never held while `progress` is asked: it takes the consumer's lock. A handler of a signal may close, too.
        self._lock = threading.RLock()
        self._closed = False
        self._start()

    def places(self, names: Mapping[int, str]) -> dict[int, int]:
        """Return where to go on, by the keys of `names`, for queues that are known under their names."""
        known = {index: self._kept.get(name) for index, name in names.items()}
        return {index: offset for index, offset in known.items() if offset is not None}

    def close(self) -> None:
        """Save for the last time; twice is harmless."""
        offsets = self._progress()
        with self._lock:
            if not self._closed:
                self._closed = True
                self._kept.save(offsets)
                self._kept.close()

    def _start(self) -> None:
        self._timetable.call_after(options.KEEP_OFFSETS_INTERVAL, self._again)

    def _again(self) -> None:
        offsets = self._progress()
        with self._lock:
            if not self._closed:
                self._kept.save(offsets)
                self._start()


def keeper_of(
    url: str, spec: ConsumerSpec, timetable: Timetable, progress: Callable[[], dict[str, int]]
) -> OffsetKeeper | None:
    """Return what keeps a broadcast consumer's offsets; None, with a warning, where they cannot be kept."""
    assert spec.group is not None
    kept = open_kept_offsets(url, spec.group, spec.topic)
    return None if kept is None else OffsetKeeper(kept, timetable, progress)


def _of_any_topic(queue: str) -> str:
    """Return the name of a queue without where its topic begins."""
    return _BEGIN.sub("", queue)


def _read(path: Path) -> dict[str, int]:
    try:
        with above_standard:
            found: Any = json.loads(read_plain(path, _FILE_BYTES_MAX))
    except (OSError, ValueError):
        return {}
    if not isinstance(found, dict):
        return {}
    return {name: offset for name, offset in found.items() if type(offset) is int and 0 <= offset <= _OFFSET_MAX}
