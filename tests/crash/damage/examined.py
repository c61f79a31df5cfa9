"""What a broker makes of one damaged store: every part that looks at files, run in this process one after the other.

    proof        `shmq store verify`, before anything else has changed the store
    recovery     the segments are filled from the files
    index        the keeper's index starts, and builds again what is missing
    scrub        one pass over everything
    reading      every unit of every queue, every key, every offset

What hangs ends at a deadline, with a name.
"""

from __future__ import annotations

import itertools
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shmq.daemon.keeper.frames import FrameKeeper
from shmq.daemon.keeper.index import IndexKeeper
from shmq.daemon.keeper.scrubber import Scrubber
from shmq.daemon.keeper.units import UnitWriter
from shmq.delay_levels import DelayLevels
from shmq.errors import ShmqError
from shmq.shm.core import UNIT_BYTES, KeeperStore, index_hash
from shmq.shm.counters import LooseCounters
from shmq.shm.unit import unpack_unit
from shmq.store.index.files import IndexFiles
from shmq.store.proof.store import prove_store
from tests.crash.damage.stores import FILE_BYTES, SHAPE
from tests.crash.disk.recovered import RecoveredStore
from tests.crash.history.history import Place
from tests.deadline import eventually

_THREAD_SECONDS = 0.0005  # between two looks at what a thread does
_ANY_TIME = {"begin_ms": 0, "end_ms": 1 << 62, "count": 64}


@dataclass(frozen=True)
class Found:
    """One message as a reader gets it."""

    position: int
    record_bytes: int
    body: bytes
    tag: str
    keys: tuple[str, ...]


@dataclass
class Seen:
    """What came out of one store.

    Attributes:
        verified: what `store verify` says, in words.
        told: what `health` would say: the recovery, and the scrubber.
        unindexed: places whose key the index does not lead to.
    """

    verified: list[str] = field(default_factory=list)
    told: list[str] = field(default_factory=list)
    refused: str = ""
    messages: dict[Place, Found] = field(default_factory=dict)
    ends: dict[tuple[str, int], int] = field(default_factory=dict)
    offsets: dict[tuple[str, str, int], int] = field(default_factory=dict)
    unindexed: set[Place] = field(default_factory=set)


def examine(root: Path) -> Seen:
    """Look at a store, which is changed by it as a start changes it."""
    seen = Seen()
    try:
        findings = prove_store(root, shape=SHAPE).findings
        seen.verified = [f"{each.part} {each.where}: {each.reason}" for each in findings.disagreements + findings.notes]
        recovered = RecoveredStore(root, file_bytes=FILE_BYTES)
    except ShmqError as error:
        seen.refused = str(error)
        return seen
    try:
        report = recovered.report
        for name in ("units_repaired", "tables_restored", "marks_restored"):
            if count := getattr(report, name):
                seen.told.append(f"{name}: {count}")
        seen.told += [f"damage at {each.position}: {each.reason}" for each in report.damages]
        with closing(_index_keeper(recovered)) as index:
            _follow(index)
            with closing(_scrubber(recovered, index)) as scrubber:
                _scrub(recovered, scrubber)
                seen.told += scrubber.state.faults
            _follow(index)
        _read(recovered, seen)
    finally:
        recovered.close()
    return seen


def _index_keeper(recovered: RecoveredStore) -> IndexKeeper:
    store: Any = recovered.store
    return IndexKeeper(store, KeeperStore(store), recovered.files, warm=False, log=recovered.log, shape=SHAPE)  # type: ignore[arg-type]


def _follow(index: IndexKeeper) -> None:
    eventually(
        lambda: not index.round(0.0) and not index.is_mending, "the index gets to its end", pause=_THREAD_SECONDS
    )


def _scrubber(recovered: RecoveredStore, index: IndexKeeper) -> Scrubber:
    store, files = recovered.store, recovered.files
    keeper_store, log = KeeperStore(store), recovered.log
    frames = FrameKeeper(store, keeper_store, memory_bytes=1 << 20, log=log)  # type: ignore[arg-type]
    units = UnitWriter(
        store,
        keeper_store,
        files.consumequeue,
        files.commitlog,
        frames,
        levels=DelayLevels(),
        born={name: record.born for name, record in recovered.tables.tables.topics.items()},
        close_dead=lambda: True,
        stored=lambda *_: None,
        log=log,  # type: ignore[arg-type]
    )
    return Scrubber(
        store,
        keeper_store,
        files,
        units,
        index,
        LooseCounters(),  # type: ignore[arg-type]
        on_table_removed=lambda: None,
        log=log,  # type: ignore[arg-type]
    )


def _scrub(recovered: RecoveredStore, scrubber: Scrubber) -> None:
    """One whole pass, as `shmq store scrub --now` asks for it."""
    recovered.files.layout.scrub_request.touch()
    passes = scrubber.state.passes
    rounds = itertools.count()

    def is_done() -> bool:
        number = next(rounds)
        scrubber.round(float(number), 1e9 + number)
        return scrubber.state.passes > passes and scrubber.state.position < 0

    eventually(is_done, "the scrubber gets to its end", pause=0.0)


def _read(recovered: RecoveredStore, seen: Seen) -> None:
    store, places = recovered.store, {}
    for topic in store.topics():
        for queue_id, queue in enumerate(topic["queues"]):
            name = topic["name"], queue_id
            places[queue] = name
            first, end = store.queue(queue)[:2]
            seen.ends[name] = end
            units = recovered.files.consumequeue.read(name, first, end - first)
            for number in range(len(units) // UNIT_BYTES):
                position, size, _ = unpack_unit(units, number)
                try:
                    message = store.message_at(position, size)
                except ShmqError:
                    continue
                place = (*name, first + number)
                if (message.topic, message.queue_id, message.offset) == place:
                    found = Found(position, size, bytes(message.body), message.tag or "", tuple(message.keys))
                    seen.messages[place] = found
    groups = dict(store.groups())
    for entry in store.offsets():
        seen.offsets[groups[entry.group], *places[entry.queue]] = entry.committed
    files = IndexFiles(recovered.files.layout, SHAPE)
    opened = [files.open(name) for name in files.names()]
    for place, found in seen.messages.items():
        for key in found.keys:
            searches = (file.search(index_hash(place[0], key), **_ANY_TIME) for file in opened)
            if not any(found.position in positions for search in searches for positions in search):
                seen.unindexed.add(place)
    for file in opened:
        file.close()
