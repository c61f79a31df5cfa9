"""Transactions that were not settled in time, and which of them an administrator has begun anew.

    TRANS_CHECK_MAX_TIME_TOPIC, queue 0    … | expired  | expired  | RESUMED: log position of the first | …
                                               └─ resumed: a new half and that mark, one append

RocketMQ stores a new half each time it is asked to, and each of them may be committed.

Rule: a mark and its half are one append, so a kill leaves a transaction that may be resumed, or one that was.
"""

from shmq.daemon.broker.log import Entry, Log, NewRecord
from shmq.daemon.broker.records.property_text import property_of
from shmq.daemon.broker.records.stored_record import StoredRecord, kept_portions, records_of
from shmq.daemon.broker.tables import Queues
from shmq.protocol.system_topics import transaction

RESUMED = "SHMQ_RESUMED"


class Resumptions:
    """What is known of that topic: log positions of what was resumed."""

    def __init__(self, tables: Queues, log: Log) -> None:
        self._tables = tables
        self._log = log
        self._resumed: set[str] = set()
        self._next_offset = 0

    def resume(self, record: StoredRecord, half: Entry) -> int:
        """Store the half of an expired transaction, and return the log position behind it; 0 when that was done before.

        Raises:
            BrokerBusy, LogFull and the other errors of a send: nothing is stored.
        """
        topic = self._tables.topic(transaction.GIVEN_UP_TOPIC)
        if topic is None:  # it was deleted, and its marks with it
            return 0
        self._catch_up(topic.queues[0])
        name = str(record.log_position)
        if name in self._resumed:
            return 0
        mark = NewRecord(b"", f"TAGS\x01resumed\x02{RESUMED}\x01{name}\x02".encode())
        return self._log.append_together([half, Entry(topic, 0, mark)])[-1].end

    def _catch_up(self, queue: int) -> None:
        self._next_offset = max(self._next_offset, self._tables.queue_bounds(queue).offset_min)
        for pulled in kept_portions(self._tables, self._log, queue, self._next_offset):
            names = (property_of(record.properties, RESUMED) for record in records_of(pulled.body))
            self._resumed.update(name for name in names if name)
            self._next_offset = pulled.next_offset
