"""The way into a group's dead-letter topic: each message once.

    consumer ──send back──▶ copy in %DLQ%group ──answer──▶ consumer settles the original
                                    killed here, either of them ──▶ the original comes again, and is sent back again

    %DLQ%group, queue 0    … | 4,096 messages, 16 MiB at most | what was appended since
                               read once, at the first one      read before each one, of any process

Rules: (1) a message whose ORIGIN_MESSAGE_ID and birth are those of one that was read is not stored again. What lies
farther back is not looked at: two dead letters of one message are as far apart as a delivery and the next, not
thousands of others. (2) A message that fills its properties loses the longest of them, and not its way here.
"""

from collections import OrderedDict
from collections.abc import Callable

from shmq.daemon.broker.log import Log, NewRecord, Stored
from shmq.daemon.broker.records.property_text import fitting, property_of
from shmq.daemon.broker.records.stored_record import kept_portions, pieces_of, stored_record
from shmq.daemon.broker.tables import Queues, Topic

ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"
QUEUE_ID = 0
LOOK_BACK_COUNT = 4096
_LOOK_BACK_BYTES = 16 << 20
_READ_COUNT = 32
_READ_BYTES = 256 << 10
_Identity = tuple[str | None, int]


class _Known:
    """What is known to be in one dead-letter topic."""

    def __init__(self, born: int, next_offset: int) -> None:
        self.born = born
        self.next_offset = next_offset
        self.origins: OrderedDict[_Identity, Stored] = OrderedDict()

    def add(self, origin: _Identity, stored: Stored) -> None:
        if origin[0]:
            self.origins[origin] = stored
            while len(self.origins) > LOOK_BACK_COUNT:
                self.origins.popitem(last=False)


class DeadLetters:
    """Stores dead letters."""

    def __init__(self, tables: Queues, log: Log) -> None:
        self._tables = tables
        self._log = log
        self._known: dict[str, _Known] = {}

    def store(
        self, topic: Topic, copy: NewRecord, *, append: Callable[[Topic, int, NewRecord], Stored] | None = None
    ) -> Stored:
        """Store the copy of a message whose tries are used up, and return where it is; where it is already, if it is.

        Args:
            append: stores it in place of the log's own, with what else belongs to this step.

        Raises:
            BrokerBusy, LogFull and the other errors of a send; nothing is stored then.
        """
        origin = property_of(copy.properties, ORIGIN_MESSAGE_ID), copy.born_ms
        copy.properties = fitting(copy.properties)
        known = self._caught_up(topic)
        if origin[0] and origin in known.origins:
            return known.origins[origin]
        stored = (append or self._log.append)(topic, QUEUE_ID, copy)
        if stored.queue_offset == known.next_offset:
            known.next_offset += 1
            known.add(origin, stored)
        return stored

    def _caught_up(self, topic: Topic) -> _Known:
        queue = topic.queues[QUEUE_ID]
        known = self._known.get(topic.name)
        if known is None or known.born != queue or known.next_offset > self._tables.queue_bounds(queue).offset_max:
            # The first one, or one that was purged and is made anew: what was in it before does not count.
            known = self._known[topic.name] = _Known(queue, self._look_back(queue))
        for pulled in kept_portions(self._tables, self._log, queue, known.next_offset):
            for data in pieces_of(pulled.body):
                known.add(*_entry(data))
            known.next_offset = pulled.next_offset
        return known

    def _look_back(self, queue: int) -> int:
        """Return the offset from which on a topic is read that is not known yet."""
        offset_min, offset_max = self._tables.queue_bounds(queue)
        first, read_bytes = offset_max, 0
        while first > max(offset_min, offset_max - LOOK_BACK_COUNT) and read_bytes < _LOOK_BACK_BYTES:
            first = max(offset_min, first - _READ_COUNT)
            read_bytes += len(self._log.read(queue, first, count_max=_READ_COUNT, bytes_max=_READ_BYTES).body)
        return first


def _entry(data: bytes) -> tuple[_Identity, Stored]:
    record = stored_record(data)
    if record is None:
        return (None, 0), Stored(0, 0, 0, 0)
    stored = Stored(record.queue_offset, record.log_position, record.store_ms, record.log_position + len(data))
    return (property_of(record.properties, ORIGIN_MESSAGE_ID), record.born_ms), stored
