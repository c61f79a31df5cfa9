"""Power cuts: a real broker under load on a `FaultyDisk`, and what recovery makes of every disk a cut may leave.

One run starts a broker, lets writers of every kind send, and takes snapshots at random moments; each snapshot gives
images, and each image is recovered and read.

    must hold of each image      --flush sync: every message that was acknowledged, or shown to a reader, before the
                                 snapshot began lies where it was; --flush async: what was on disk at the last flush
                                 nothing that was not sent, no changed body, no gap, nothing twice
                                 recovering what was recovered changes nothing (of every fourth image)

Rule: acknowledgements are copied before the snapshot is taken, attempts after it.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shmq.errors import ShmqError
from shmq.testing import Broker
from tests.crash.disk.disk import FaultyDisk
from tests.crash.disk.recovered import RecoveredStore
from tests.crash.disk.snapshot import Snapshot
from tests.crash.history.history import History, Place, stored_anomalies
from tests.crash.history.looking import Looking
from tests.crash.history.workload import Workload
from tests.crash.history.writers import TOPIC_OF

FILE_BYTES = 256 << 10
START_SECONDS = 300.0  # slow syncs, and a machine with other work
_PAUSE_SECONDS = 0.003  # each snapshot is a copy of all that was sent
_MEMORY = "/dev/shm"
_MEMORY_BYTES = 4 << 30  # what a soak may fill
_AGAIN_EVERY = 4  # recovering twice takes twice as long
PLACED = ("plain", "batch", "slot", "group")
"""Kinds whose receipts say where a message lies."""
PLACED_TOPICS = frozenset(TOPIC_OF[kind] for kind in PLACED)


@dataclass
class Counts:
    """What a run did, and what was wrong."""

    images: int = 0
    snapshots: int = 0
    acknowledged: int = 0
    pages_open: int = 0
    failures: list[str] = field(default_factory=list)

    def add(self, other: Counts) -> None:
        """Take the counts of another run."""
        self.images += other.images
        self.snapshots += other.snapshots
        self.acknowledged += other.acknowledged
        self.pages_open += other.pages_open
        self.failures += other.failures


@contextmanager
def in_memory() -> Iterator[Path]:
    """Let temporary directories be made in memory where there is room: syncs are quick there."""
    before = tempfile.tempdir
    has_room = os.access(_MEMORY, os.W_OK) and shutil.disk_usage(_MEMORY).free > _MEMORY_BYTES
    with tempfile.TemporaryDirectory(prefix="shmq-power-", dir=_MEMORY if has_room else None) as directory:
        tempfile.tempdir = directory
        try:
            yield Path(directory)
        finally:
            tempfile.tempdir = before


def power_cuts(
    *,
    seed: int,
    snapshots: int,
    images: int,
    flush: str = "sync",
    slow_ms: int = 0,
    again: bool = False,
    **settings: Any,
) -> Counts:
    """Take `snapshots` of one broker under load and check `images` of each.

    Args:
        slow_ms: each sync takes up to that long.
        again: recover every fourth image twice.
    """
    chance = random.Random(seed)
    counts = Counts()
    with in_memory() as directory:
        broker = Broker(timeout=START_SECONDS, flush=flush, file_bytes=FILE_BYTES, default_queues=2, **settings)
        with FaultyDisk(broker.store) as disk:
            history = History()
            taken: list[tuple[Snapshot, dict[str, Place | None], int]] = []
            try:
                with disk.around():
                    broker.start()
                disk.slow(0, slow_ms)
                workload = Workload(broker.url, history, seed=seed, pause_seconds=_PAUSE_SECONDS, around=disk.around)
                with broker.connect() as mq, workload:
                    looking = Looking(mq, PLACED_TOPICS)
                    for number in range(snapshots):
                        history.wait_acks(chance.randrange(5, 60))
                        into = directory / f"cut-{number}"
                        into.mkdir()
                        known = {**looking.look(), **history.copy().acks_of(*PLACED)} if flush == "sync" else {}
                        taken.append((disk.snapshot(into), known, chance.randrange(1 << 30)))
                disk.slow(0, 0)
                counts.failures += deaths_by_signal(broker.log)
            finally:
                broker.stop()
        while taken:
            snapshot, acks, first = taken.pop()
            counts.snapshots += 1
            counts.pages_open += snapshot.pages_open
            counts.acknowledged += len(acks)
            for number in range(images):
                counts.images += 1
                how, wrong = check_image(snapshot, first + number, acks, history, directory / "image", again=again)
                counts.failures += [f"{how}: {each}" for each in wrong]
    return counts


def deaths_by_signal(log: str) -> list[str]:
    """What a broker's log says of processes that an unsent signal ended, as SIGBUS does on a full disk."""
    ended = re.findall(r"child\.ended role=(\w+) pid=\d+ status=-(\d+)", log)
    return [f"the {role} died of signal {number}" for role, number in ended if int(number) != signal.SIGKILL]


def check_image(
    snapshot: Snapshot,
    seed: int,
    acks: dict[str, Any],
    history: History,
    into: Path,
    *,
    share: float | None = None,
    again: bool = False,
) -> tuple[str, list[str]]:
    """Write one image, recover and check it; returns how it was chosen and what is wrong.

    Args:
        share: how much of what was open reached the disk; None draws it.
        again: recover every fourth image twice.
    """
    how = snapshot.image(seed, into, share=share)
    try:
        return how, check_store(into, acks, history, times=2 if again and seed % _AGAIN_EVERY == 0 else 1)
    finally:
        shutil.rmtree(into, ignore_errors=True)


def check_store(root: Path, acks: dict[str, Any], history: History, *, times: int = 1) -> list[str]:
    """Recover a store that lost its power, `times` times, and say what is wrong with it."""
    found: list[dict[Any, bytes]] = []
    try:
        for _ in range(times):
            recovered = RecoveredStore(root, file_bytes=FILE_BYTES)
            try:
                found.append(recovered.messages())
                bounds = recovered.bounds()
            finally:
                recovered.close()
    except ShmqError as error:
        return [f"recovery refused: {error}"]
    anomalies = stored_anomalies(found[0], bounds, acks, history, damaged=recovered.damaged)
    wrong = [f"{each.kind}: {each.what}" for each in anomalies]
    if found[0] != found[-1]:
        wrong.append("recovering again changed what is stored")
    return wrong
