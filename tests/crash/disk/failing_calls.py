"""The n-th call by which something gets on disk fails, for each n: no acknowledgement may depend on it.

For each n a broker starts on a `FaultyDisk`, writers send, and the n-th sync (or write, allocation, change of a name)
answers EIO or ENOSPC, once or from then on. What the kernel does then is modelled: the pages of a failed sync count as
clean and never reach the disk unless they are written again.

Half of the runs go on: the broker is killed and started again on what the page cache has, on a disk that is well now.

    must hold    what is acknowledged at the end lies on a disk that got nothing which was still open
                 a broker that does not start says why, and no process dies of a signal
                 the next broker starts on what the disk has, and every acknowledged message is there
"""

from __future__ import annotations

import errno
import random
import time
from typing import Any

from shmq.errors import BrokerNotRunning
from shmq.testing import Broker
from tests.crash.disk.disk import PERSISTENCE, FaultyDisk, Kind
from tests.crash.disk.power_cuts import (
    FILE_BYTES,
    PLACED,
    PLACED_TOPICS,
    START_SECONDS,
    Counts,
    check_image,
    deaths_by_signal,
    in_memory,
)
from tests.crash.history.history import History, Place
from tests.crash.history.looking import Looking
from tests.crash.history.workload import WRITERS, Workload

_IMAGES = 3
_ACKS_MAX = 60  # enough for the store to make its next log file more than once
_PAUSE_SECONDS = 0.002  # whatever is acknowledged is read again from each image
_QUIET_SECONDS = 1.0
_AFTER_SECONDS = 2.5
_OF_ONE_KIND = 40
_START_SECONDS = 60.0


def failing_call(number: int, *, seed: int, **settings: Any) -> Counts:
    """Let call `number` fail in a run of its own; which kinds, error and whether for good follow from the seed."""
    chance = random.Random(f"{seed}/{number}")
    kinds = chance.choice((frozenset({Kind.SYNC}), frozenset({Kind.SYNC, Kind.SYNC_DIRECTORY}), PERSISTENCE))
    error = chance.choice((errno.EIO, errno.ENOSPC))
    after, only = chance.random() < 0.5, chance.choice(("", "", "consumequeue", "config", "commitlog"))
    number = number if not only else 1 + number % _OF_ONE_KIND
    called = f"call {number} of {'+'.join(sorted(kind.name for kind in kinds))} on {only or 'any file'}"
    how = f"{called} {errno.errorcode[error]}{' for good' * after}"
    counts = Counts()
    history = History()
    with in_memory() as directory:
        broker = Broker(timeout=START_SECONDS, flush="sync", file_bytes=FILE_BYTES, default_queues=2, **settings)
        with FaultyDisk(broker.store) as disk:
            disk.fail(kinds, at=number, error=error, after=after, only=only)
            try:
                seen: dict[str, Place] = {}
                if _run(broker, disk, history, seed, how, counts) and chance.random() < 0.5:
                    seen = _go_on(broker, disk, history, seed)
                counts.failures += [f"{how}: {each}" for each in deaths_by_signal(broker.log)]
                into = directory / "cut"
                into.mkdir()
                acked = history.copy()
                snapshot = disk.snapshot(into)
                acks = {**seen, **acked.acks_of(*PLACED)}
                counts.snapshots += 1
                counts.acknowledged += len(acks)
                if not acks:
                    return counts
                for image in range(_IMAGES):
                    counts.images += 1
                    share = 0.0 if image == 0 else None
                    drawn, wrong = check_image(snapshot, seed + image, acks, history, directory / "image", share=share)
                    counts.failures += [f"{how}, {drawn}: {each}" for each in wrong]
            finally:
                broker.stop()
    return counts


def _run(broker: Broker, disk: FaultyDisk, history: History, seed: int, how: str, counts: Counts) -> bool:
    """Start and load the broker until the call failed, and a little longer; False when it did not start."""
    try:
        with disk.around():
            broker.start()
    except BrokerNotRunning as refused:
        if "no answer within" in str(refused):
            counts.failures.append(f"{how}: the broker neither starts nor says why: {refused}")
        return False
    workload = Workload(broker.url, history, seed=seed, kinds=PLACED, pause_seconds=_PAUSE_SECONDS, around=disk.around)
    with workload:
        for _ in range(_ACKS_MAX):
            if not history.wait_acks(5, _QUIET_SECONDS) or disk.failed:
                break
        # Does it go on, as if nothing had happened? The mark that would say so comes some rounds later.
        until = time.monotonic() + _AFTER_SECONDS
        while time.monotonic() < until and history.wait_acks(1, _QUIET_SECONDS):
            pass
    return True


def _go_on(broker: Broker, disk: FaultyDisk, history: History, seed: int) -> dict[str, Place]:
    """Kill the broker and start it again on what the page cache has, on a disk that is well again.

    Returns the place of every message that readers are shown then.
    """
    broker.kill_daemon()
    disk.fail(frozenset(), at=0, error=0)
    with disk.around():
        broker.restart()
    with broker.connect() as mq:
        more = Workload(
            broker.url,
            history,
            seed=seed,
            kinds=PLACED,
            first_writer=WRITERS,
            pause_seconds=_PAUSE_SECONDS,
            around=disk.around,
        )
        with more:
            history.wait_acks(20, _START_SECONDS)
        return Looking(mq, PLACED_TOPICS).look()
