"""The marks of changed tables that have come into the log of a slave since the last look.

Marks that lie here when the slave begins are passed over: it copies its master's tables before it takes anything.
"""

from __future__ import annotations

import contextlib

from shmq.daemon.broker.records.stored_record import stored_record
from shmq.daemon.ha.log_file import LogFile
from shmq.protocol.system_topics.table_marks import TABLES_TOPIC, TablesMark, decode_tables_mark
from shmq.shm.core import Store
from shmq.shm.unit import units_of

_UNITS_PER_READ = 256


class MarkReader:
    """Reads the queue of marks of one generation of segments, whether or not its records are visible yet."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._version = -1
        self._queue = -1  # its index; -1: no mark was ever stored
        self._next = 0
        self._next = self._bounds()[1]

    def take(self) -> list[tuple[int, TablesMark | None]]:
        """Return the log position and the mark of each new record, in the order of the log.

        None stands for what cannot be read as a mark: the record, or units that are missing.

        Raises:
            OSError: the log cannot be read.
        """
        begin, end = self._bounds()
        found = list[tuple[int, TablesMark | None]]()
        self._next = max(self._next, begin)  # the queue of a new slave begins at the first record that is left
        if end <= self._next:
            return found
        with contextlib.closing(LogFile(self._store)) as file:
            while self._next < end:
                count = min(end - self._next, _UNITS_PER_READ)
                units = list(units_of(self._store.units_stored(self._queue, self._next, count)))
                for unit in units:
                    found.append((unit.log_position, _mark(file.read(unit.log_position, unit.record_bytes))))
                if not units:
                    found.append((self._store.log_end, None))
                self._next += len(units) or count
        return found

    def _bounds(self) -> tuple[int, int]:
        version = self._store.table_version
        if version != self._version:
            self._version = version
            topic = self._store.topic_find(TABLES_TOPIC)
            queue = self._store.topic(topic)["queues"][0] if topic >= 0 else -1
            if queue != self._queue:
                self._queue, self._next = queue, 0
        if self._queue < 0:
            return 0, 0
        row = self._store.queue(self._queue)
        return row.offset_min, row.offset_max


def _mark(data: bytes) -> TablesMark | None:
    record = stored_record(data)
    return decode_tables_mark(record.body) if record is not None and record.topic == TABLES_TOPIC else None
