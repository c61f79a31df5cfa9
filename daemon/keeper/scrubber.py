"""Reads the whole store in the background and compares it with its checksums, so that damage is found before it is
needed.

    log      every record below the durable end, both CRCs     damage is reported and counted; it cannot be mended
    units    every full block of every queue, its sum          wrong ones are written again from the log
    index    every block of every file at rest, its sum        the file of a wrong one is built again from the log
    tables   every file of the config directory, its CRC       a wrong one is written again from shared memory
    pause    until a day after the pass began, or a command asks for one

Reading is for a thread, one small step at a time; what follows from it is done in the keeper's rounds, as units and
tables have one writer. A pass takes 8 MiB a second, one that was asked for as much as there is. Where it stands is
kept in `shmq.scrub`, so a restart goes on there.

Rule: nothing above the durable end is looked at: a writer may be at it.
"""

import os
import queue
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from shmq.daemon.event_log import EventLog
from shmq.daemon.keeper.index import IndexKeeper
from shmq.daemon.keeper.units import UnitWriter
from shmq.errors import ShmqError
from shmq.metrics.family import SCRUB_BYTES, SCRUB_DAMAGES, SCRUB_REPAIRS
from shmq.plain_file import open_plain
from shmq.shm.core import CoreError, KeeperStore, Store
from shmq.shm.counters import Counters
from shmq.store.config import ConfigFiles
from shmq.store.consumequeue import FILE_UNITS, Queue
from shmq.store.damage import Damage, LogWalk
from shmq.store.index.files import IndexFiles
from shmq.store.index.sums import BLOCK_BYTES as INDEX_BLOCK_BYTES
from shmq.store.index.sums import FileSums
from shmq.store.recovery import OpenFiles
from shmq.store.scrub_state import LOG_FAULT, ScrubState, read_scrub_state, write_scrub_state
from shmq.store.unit_repair import UnitFault, find_faults
from shmq.store.unit_sums import BLOCK_BYTES, BLOCK_UNITS

_BYTES_PER_SECOND = 8 << 20
_PASS_SECONDS = 86_400.0
_STEP_RECORDS = 256
_STEP_BLOCKS = 64
_STEP_INDEX_BLOCKS = 16
_STEPS_PER_ROUND = 64
_SAVE_SECONDS = 5.0
_LOOK_SECONDS = 0.5


@dataclass
class _Step:
    """One piece of reading, and what came out of it."""

    read: Callable[[], int]  # in the thread; returns how many bytes it looked at
    act: Callable[[], None]  # in the keeper's round, behind it
    checked_bytes: int = 0
    failure: str = ""


class Scrubber:
    """The keeper's part for checking.

    Args:
        on_table_removed: told that a file of the config directory has to be written anew.
    """

    def __init__(
        self,
        store: Store,
        keeper_store: KeeperStore,
        files: OpenFiles,
        units: UnitWriter,
        index: IndexKeeper,
        counters: Counters,
        *,
        on_table_removed: Callable[[], None],
        log: EventLog,
    ) -> None:
        self._store = store
        self._keeper_store = keeper_store
        self._files = files
        self._units = units
        self._index = index
        self._index_files = IndexFiles(files.layout, index.shape)
        self._on_table_removed = on_table_removed
        self._log = log
        self._bytes = counters.counter(SCRUB_BYTES)
        self._damages = counters.counter(SCRUB_DAMAGES)
        self._repairs = counters.counter(SCRUB_REPAIRS)
        self._state = read_scrub_state(files.layout.root) or ScrubState()
        self._steps: Iterator[_Step] | None = None
        self._waiting: _Step | None = None
        self._to_read: queue.SimpleQueue[_Step | None] = queue.SimpleQueue()
        self._was_read: queue.SimpleQueue[_Step] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="scrub", daemon=True)
        self._thread.start()
        self._is_asked = False
        self._due_at = 0.0
        self._save_at = 0.0
        self._look_at = 0.0
        self._complaint = ""
        self._tell_start()

    @property
    def state(self) -> ScrubState:
        """Where it stands."""
        return self._state

    def round(self, now: float, wall_seconds: float) -> bool:
        """Go on a little; True while a pass that was asked for is under way."""
        if now >= self._look_at:
            self._look_at = now + _LOOK_SECONDS
            self._begin_if_due(wall_seconds)
        for _ in range(_STEPS_PER_ROUND if self._is_asked else 1):
            if not self._take() or not self._go_on(now):
                break
        if self._steps is not None and now >= self._save_at:
            self._save_at = now + _SAVE_SECONDS
            self._save()
        return self._is_asked

    def close(self, *, keeps_place: bool = True) -> None:
        """End the thread, and write down the place unless nothing may be written."""
        self._to_read.put(None)
        self._thread.join()
        if self._steps is not None and keeps_place:
            self._save()

    def _begin_if_due(self, wall_seconds: float) -> None:
        asked_by, state = self._files.layout.scrub_request, self._state
        if asked_by.exists():
            self._is_asked = True
            self._begin(wall_seconds)  # told before the request is taken away: who asked waits for the end of this one
            asked_by.unlink(missing_ok=True)
        elif self._steps is None and state.position >= 0:
            self._steps = self._pass()
        elif self._steps is None and not 0 <= wall_seconds - state.began_ms / 1000 < _PASS_SECONDS:
            self._begin(wall_seconds)

    def _begin(self, wall_seconds: float) -> None:
        self._state = self._state.begun(int(wall_seconds * 1000), self._store.log_begin)
        self._tell_start()
        self._steps = self._pass()
        self._save()

    def _take(self) -> bool:
        """Take the outcome of the step that is read; False while it is."""
        if self._waiting is None:
            return True
        try:
            step = self._was_read.get(timeout=0.001) if self._is_asked else self._was_read.get_nowait()
        except queue.Empty:
            return False
        self._waiting = None
        self._state.checked_bytes += step.checked_bytes
        self._bytes.add(step.checked_bytes)
        self._due_at = max(self._due_at, time.monotonic() - 1.0) + step.checked_bytes / _BYTES_PER_SECOND
        if step.failure:
            self._complain(step.failure)
            return True
        try:
            step.act()
        except (ShmqError, CoreError, OSError) as error:
            self._complain(str(error))
        return True

    def _go_on(self, now: float) -> bool:
        if self._steps is None or (now < self._due_at and not self._is_asked):
            return False
        step = next(self._steps, None)
        if step is None:
            self._end()
            return False
        self._waiting = step
        self._to_read.put(step)
        return True

    def _end(self) -> None:
        state = self._state
        state.passes, state.finished_ms, state.position = state.passes + 1, int(time.time() * 1000), -1
        self._steps, self._is_asked = None, False
        self._save()
        self._log(
            "scrub.done",
            checked_bytes=state.checked_bytes,
            damages=state.damages,
            units_rebuilt=state.units_rebuilt,
            tables_rewritten=state.tables_rewritten,
            indexes_rebuilt=state.indexes_rebuilt,
        )

    def _pass(self) -> Iterator[_Step]:
        yield from self._log_steps()
        for name in self._files.consumequeue.sums.queues():
            yield from self._unit_steps(name)
        for sums in self._index.settled_sums():
            yield from self._index_steps(sums)
        yield self._table_step(self._files.config)

    # -- the log

    def _log_steps(self) -> Iterator[_Step]:
        store, state, end = self._store, self._state, self._store.durable_end
        damages: list[Damage] = []
        walk = LogWalk(
            self._keeper_store,
            self._files.commitlog,
            durable_end=end,
            log_end=end,
            on_records=None,
            on_damage=damages.append,
        )
        while state.position < end:
            begin = max(state.position, store.log_begin)
            reached = [begin]

            def read(begin: int = begin, reached: list[int] = reached) -> int:
                reached[0] = walk.step(begin, _STEP_RECORDS)[0]
                return reached[0] - begin

            def act(begin: int = begin, reached: list[int] = reached) -> None:
                state.position = max(reached[0], begin + 1)
                for damage in damages:
                    if damage.position >= store.log_begin:  # retention was not faster
                        self._found_damage(damage)
                damages.clear()

            yield _Step(read, act)

    def _found_damage(self, damage: Damage) -> None:
        self._state.damages += 1
        self._damages.add()
        self._state.add_fault(f"{LOG_FAULT} {damage.position} to {damage.end}: {damage.reason}")
        self._log("scrub.damage", log_position=damage.position, end=damage.end, reason=damage.reason)

    # -- units

    def _unit_steps(self, name: Queue) -> Iterator[_Step]:
        sums = self._files.consumequeue.sums.of(name)
        block = sums.first_block if sums is not None else 0
        while sums is not None and block < sums.block_end:
            file_blocks = FILE_UNITS // BLOCK_UNITS
            stop = min(block + _STEP_BLOCKS, sums.block_end, block - block % file_blocks + file_blocks)
            found: list[int] = []

            def read(first: int = block, stop: int = stop, found: list[int] = found) -> int:
                path, at = self._files.consumequeue.place_of(name, first * BLOCK_UNITS)
                try:
                    descriptor = open_plain(path, os.O_RDONLY)
                except FileNotFoundError:
                    return 0
                try:
                    data = os.pread(descriptor, (stop - first) * BLOCK_BYTES, at)
                finally:
                    os.close(descriptor)
                found += [zlib.crc32(data[at : at + BLOCK_BYTES]) for at in range(0, len(data), BLOCK_BYTES)]
                return len(data)

            def act(first: int = block, stop: int = stop, found: list[int] = found) -> None:
                self._compare(name, first, stop, found)

            yield _Step(read, act)
            block = stop
        # The block that is being filled changes all the time, so it is read where its writer is; it is a small one.
        yield _Step(lambda: 0, lambda: self._mend(name, find_faults(self._files.consumequeue, name, block)))

    def _compare(self, name: Queue, first: int, stop: int, found: list[int]) -> None:
        sums = self._files.consumequeue.sums.of(name)
        if sums is None or sums.stale_block is not None:
            return  # the topic was deleted, or its units are being written over
        faults: list[UnitFault] = []
        for block in range(max(first, sums.first_block), min(stop, sums.block_end)):
            at = block - first
            if at >= len(found) or found[at] != sums.sums[block - sums.first_block]:
                begin, end = block * BLOCK_UNITS, (block + 1) * BLOCK_UNITS
                if faults and faults[-1].end == begin:
                    begin = faults.pop().first
                faults.append(UnitFault(name, begin, end))
        self._mend(name, faults)

    def _mend(self, name: Queue, faults: list[UnitFault]) -> None:
        for fault in faults:
            count = self._units.rebuild_units(name, fault.first, fault.end - fault.first)
            self._state.units_rebuilt += count
            self._repairs.add(count)
            self._state.add_fault(f"{count} units from {fault.first} on of queue {name[1]} of topic {name[0]}")
            self._log("scrub.units", topic=name[0], queue_id=name[1], first=fault.first, count=count)

    # -- index

    def _index_steps(self, sums: FileSums) -> Iterator[_Step]:
        is_wrong: list[str] = []
        for block in range(0, max(1, len(sums.sums)), _STEP_INDEX_BLOCKS):
            if is_wrong:
                return

            def read(first: int = block) -> int:
                stop = first + _STEP_INDEX_BLOCKS
                try:
                    file = self._index_files.open(sums.name)
                except (FileNotFoundError, ShmqError) as error:
                    is_wrong.append(str(error))
                    return 0
                try:
                    if (wrong := sums.wrong_block(file, first, stop)) is not None or not sums.sums:
                        is_wrong.append("its checksums cannot be read" if wrong is None else f"block {wrong}")
                finally:
                    file.close()
                return min(len(sums.sums) - first, _STEP_INDEX_BLOCKS) * INDEX_BLOCK_BYTES

            def act() -> None:
                # What was written to meanwhile is another file than the one these sums speak of.
                if is_wrong and self._index.rebuild(sums.name, is_wrong[0]):
                    self._found_in_index(f"index/{sums.name}: {is_wrong[0]}")

            yield _Step(read, act)

    def _tell_start(self) -> None:
        """Report what the index found at its start for as long as this keeper lives, whatever passes begin."""
        for fault in self._index.faults:
            if fault not in self._state.faults:
                self._found_in_index(fault)

    def _found_in_index(self, fault: str) -> None:
        self._state.indexes_rebuilt += 1
        self._repairs.add()
        self._state.add_fault(fault)
        self._log("scrub.index", fault=fault)

    # -- tables

    def _table_step(self, config: ConfigFiles) -> _Step:
        wrong: list[tuple[str, str]] = []

        def read() -> int:
            wrong.extend(config.find_damaged())
            return 0

        def act() -> None:
            for name, reason in wrong:
                config.discard(name)
                self._on_table_removed()
                self._state.tables_rewritten += 1
                self._repairs.add()
                self._state.add_fault(f"{name}: {reason}")
                self._log("scrub.table", file=name, reason=reason)

        return _Step(read, act)

    def _run(self) -> None:
        """Read step by step; runs in the thread."""
        while (step := self._to_read.get()) is not None:
            try:
                step.checked_bytes = step.read()
            except (ShmqError, CoreError, OSError) as error:
                step.failure = str(error)
            self._was_read.put(step)

    def _save(self) -> None:
        try:
            write_scrub_state(self._files.layout, self._state)
        except ShmqError as error:
            self._complain(str(error))

    def _complain(self, reason: str) -> None:
        """Say it once, not at every step."""
        if reason != self._complaint:
            self._log("scrub.failed", reason=reason)
        self._complaint = reason
