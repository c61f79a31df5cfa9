"""Finds waiting messages that were copied already, but that the words of progress do not cover.

A copy is one append, the word that speaks of it another store: a kill may come between them. So each copy names the
record that waited, and one word more says from where on the log may hold copies that no other word tells of. A start
walks from there. The name is the record's log position + 1 in the field where a committed message names its half: 0
names nothing, the first record of a log has a name too, and no half has it.

    mark   M   log position, as offset of a group on the topic's first queue; 0: the other words tell of every copy

    no mark  and no words: a log whose copies were made by another host, whose words did not come here (or one without
             copies). They lie behind the oldest message that waits, so M is there

    log    … all copies told of │ M … copies, and what others store … │ end at the start
                                └── walked before the first copy of this process ──┘

The keeper writes M beside the words, or where the log ended before it read them, if that is 0 or more: what a host's
death takes from the words is found by the same walk. On a slave M is where the log ended before its master was asked
for the words that are here. A file without it is an older one, or a stock broker's, whose
copies name nothing: there the last copies come again, as they did.

Invariants:
 1. M is set before the first copy that no word covers is stored, and moves on only after all below are covered.
 2. A copy counts only if its queue holds it, it is behind what it names, and has the same body: behind damage a walk
    may find a record inside of a body.
 3. With M = 0, or at the end of the log, nothing is read.
"""

from collections.abc import Callable

from shmq.daemon.broker.log import Log
from shmq.daemon.broker.records.stored_record import StoredRecord, is_queued, kept_record_at
from shmq.daemon.broker.tables import Tables, committed_of

_RECORDS_PER_STEP = 5000  # about 5 ms; the event loop serves others in between

Key = tuple[int, int]  # queue id and queue offset of a waiting record


def name_of(waiting: StoredRecord) -> int:
    """What the copy of a waiting record says it was made from."""
    return waiting.log_position + 1


def copies_begin(tables: Tables, topic_name: str) -> int:
    """Return the log position behind the oldest message that waits in a topic: copies lie there; 0 where none waits."""
    topic = tables.topic(topic_name)
    queues = topic.queues if topic is not None else ()
    oldest = (unit for queue in queues for unit in tables.units(queue, tables.queue_bounds(queue).offset_min, 1))
    return min((unit.log_position + unit.record_bytes for unit in oldest), default=0)


class Copies:
    """The mark of one topic, and what a walk from it has found.

    Args:
        place: name of the topic where messages wait, its first queue (by index), and the group whose offset there is
            the mark.
        has_words: whether the words of progress were ever written.
        is_covered: whether they cover the copy of a waiting record.
    """

    def __init__(
        self,
        tables: Tables,
        log: Log,
        place: tuple[str, int, str],
        *,
        has_words: bool,
        is_covered: Callable[[StoredRecord], bool],
    ) -> None:
        self._topic, queue, group = place
        self._tables, self._log = tables, log
        self._is_covered = is_covered
        self._queue, self._group = queue, group
        self._mark, self._end = committed_of(tables, group, queue), log.end
        if self._mark < 0 and not has_words and (begin := copies_begin(tables, self._topic)):
            self._set(begin)
        self._mark = max(0, self._mark)
        self._position: int | None = self._mark if 0 < self._mark < self._end else None
        self._found: dict[Key, int] = {}  # and where the copy lies, in the order of the log

    def walk(self) -> bool:
        """Look through a part of the log; True when that was the last."""
        if self._position is not None:
            self._position, named = self._log.copies(self._position, self._end, _RECORDS_PER_STEP)
            for copy, name in named:
                self._note(copy, name - 1)
        return self._position is None

    def _note(self, copy_position: int, waiting_position: int) -> None:
        waiting = kept_record_at(self._log, waiting_position) if waiting_position < copy_position else None
        if waiting is None or waiting.topic != self._topic or not is_queued(self._tables, waiting):
            return
        if self._is_covered(waiting):
            return
        copy = kept_record_at(self._log, copy_position)
        if copy is not None and copy.body == waiting.body and is_queued(self._tables, copy):
            self._found[waiting.queue_id, waiting.queue_offset] = copy_position

    def take(self, queue_id: int, queue_offset: int) -> bool:
        """Whether the copy of a waiting record is in the log already; the words are going to cover it now."""
        return bool(self._found) and self._found.pop((queue_id, queue_offset), None) is not None

    def begin(self) -> None:
        """Copies are going to be stored from here on."""
        if not self._mark:
            self._set(self._log.end)

    def end(self, mark: int = 0) -> None:
        """The words cover every copy below `mark`; 0: every copy that this process has stored."""
        if self._position is not None or not self._mark:
            return
        oldest = next(iter(self._found.values()), 0)
        mark = min(mark or oldest, oldest or mark)
        if mark == 0 or mark > self._mark:
            self._set(mark)

    def passed(self, queue_id: int, queue_offset: int) -> None:
        """Forget copies below an offset: no message waits there any more."""
        for key in [key for key in self._found if key[0] == queue_id and key[1] < queue_offset]:
            del self._found[key]

    def _set(self, mark: int) -> None:
        slot = self._tables.offset_put(self._tables.group_put(self._group), self._queue)  # there may be no room
        self._tables.set_committed(slot, mark)
        self._mark = mark
