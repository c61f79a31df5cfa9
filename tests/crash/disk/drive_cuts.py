"""Power cuts on a real file system: a broker on ext4 on a `VolatileDrive`, and what the next start finds of it.

One run starts a broker, lets writers of every kind send, and cuts the power at random moments: the drive's medium is
copied, without the cache or with some of it. Each copy is mounted, so that ext4 replays its journal, recovered and
read. What must hold of each is what `power_cuts.py` says of an image.

A run with `full` has another program fill the file system up to its last blocks again and again: then sends are
refused, no process dies of SIGBUS, and when there is room again the broker goes on. A recovery that refuses for want of
room goes on when there is some.
"""

from __future__ import annotations

import errno
import os
import random
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from shmq.testing import Broker
from tests.crash.disk.drive import VolatileDrive, mounted
from tests.crash.disk.power_cuts import (
    FILE_BYTES,
    PLACED,
    PLACED_TOPICS,
    START_SECONDS,
    Counts,
    check_store,
    deaths_by_signal,
    in_memory,
)
from tests.crash.history.history import History, Place
from tests.crash.history.looking import Looking
from tests.crash.history.workload import Workload

_PAUSE_SECONDS = 0.003  # the drive keeps everything in memory
_QUIET_SECONDS = 2.0  # of a disk that is full or slow
_FILLER = "filler"
_LEFT_BYTES_MAX = 256 << 10


def drive_cuts(*, seed: int, cuts: int, flush: str, slow_ms: int = 0, full: bool = False, **settings: Any) -> Counts:
    """Cut the power of one broker under load `cuts` times.

    Args:
        slow_ms: each flush of the drive takes up to that long.
        full: fill the file system before every other cut.
    """
    chance = random.Random(seed)
    counts = Counts()
    history = History()
    taken: list[tuple[Path, str, dict[str, Place | None]]] = []
    with in_memory() as directory, VolatileDrive() as drive:
        with _temporaries_in(drive.root):
            broker = Broker(timeout=START_SECONDS, flush=flush, file_bytes=FILE_BYTES, default_queues=2, **settings)
        place = broker.store.relative_to(drive.root)
        try:
            broker.start()
            drive.slow(slow_ms)
            with broker.connect() as mq:
                looking = Looking(mq, PLACED_TOPICS)
                with Workload(broker.url, history, seed=seed, pause_seconds=_PAUSE_SECONDS):
                    for number in range(cuts):
                        is_full = full and number % 2 == 1
                        with _filled(drive.root, chance) if is_full else _empty():
                            history.wait_acks(chance.randrange(5, 60), _QUIET_SECONDS)
                            known = {**looking.look(), **history.copy().acks_of(*PLACED)} if flush == "sync" else {}
                            image = directory / f"cut-{number}"
                            how = drive.cut(image, seed=chance.randrange(1 << 30))
                            taken.append((image, f"{how}{', full' * is_full}", known))
                    drive.slow(0)
                    if not history.wait_acks(1):
                        counts.failures.append("stuck: no acknowledgement though the drive is well and has room")
            counts.failures += deaths_by_signal(broker.log)
        finally:
            broker.stop()
        while taken:
            image, how, acks = taken.pop()
            counts.images += 1
            counts.snapshots += 1
            counts.acknowledged += len(acks)
            with mounted(image, directory) as root:
                counts.failures += [f"{how}: {each}" for each in _wrong_in(root, place, acks, history)]
            image.unlink()
    return counts


def _wrong_in(root: Path, place: Path, acks: dict[str, Place | None], history: History) -> list[str]:
    """Recover the store at a place below a mounted image. On a full disk it may refuse, if it goes on with room."""
    wrong = check_store(root / place, acks, history)
    filler = root / _FILLER
    if filler.exists() and wrong and all("No space left on device" in each for each in wrong):
        filler.unlink()
        wrong = check_store(root / place, acks, history)
    return wrong


@contextmanager
def _temporaries_in(directory: Path) -> Iterator[None]:
    before, tempfile.tempdir = tempfile.tempdir, str(directory)
    try:
        yield
    finally:
        tempfile.tempdir = before


@contextmanager
def _filled(root: Path, chance: random.Random) -> Iterator[None]:
    """A file of another program that leaves next to nothing."""
    path = root / _FILLER
    with path.open("wb") as file:
        left = chance.randrange(_LEFT_BYTES_MAX)
        while True:
            space = os.statvfs(root)
            try:
                os.posix_fallocate(file.fileno(), 0, max(1, space.f_bavail * space.f_frsize - left))
                break
            except OSError as error:  # a writer was quicker, or the file system needs some for itself
                if error.errno != errno.ENOSPC:
                    raise
                left += _LEFT_BYTES_MAX
    try:
        yield
    finally:
        path.unlink()


@contextmanager
def _empty() -> Iterator[None]:
    yield
