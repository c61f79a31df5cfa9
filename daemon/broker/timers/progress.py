"""How far timed messages are delivered: four words in shared memory.

    read      O   queue offset: everything below is known to delivery (or delivered)
    due       T   due time of the last message delivered, in ms
    at        K   its queue offset + 1, with the low 20 bits of T: K << 20 | T mod 2^20
    rolled    R   queue offset: every message below that waits longer than the log keeps files was stored anew

    delivered   =  offset < O  and  (due, offset) < (T, K)        everything else is pending

Each word is the offset of a group on the timer topic's queue, so it outlives the bridge; the keeper writes them into
`config/timerProgress.json` once the log is on disk up to where it ended when they were read.

Invariants:
 1. No mixture of older and newer words that a reader sees calls delivered what was not. O and (T, K) only
    grow; where T has changed and K has not, K does not carry the mark of T and counts as 0.
 2. Behind these words may lie copies they do not tell of: the one before which a process was killed, those of one
    millisecond between T and K, and what was delivered at or behind O while a message due before T held it there (it
    came late, or the clock was set back). `copies.py` finds them in the log, so none of them is made twice.
"""

from shmq.daemon.broker.tables import Offsets
from shmq.timing import TIMER_GROUPS

_MARK_BITS = 20
_MARK = (1 << _MARK_BITS) - 1


class TimerProgress:
    """The words of one queue."""

    __slots__ = ("_slots", "_tables", "at", "due", "read", "rolled")

    def __init__(self, tables: Offsets, queue: int) -> None:
        self._tables = tables
        self._slots = [tables.offset_put(tables.group_put(group), queue) for group in TIMER_GROUPS]
        read, due, at, rolled = (max(0, tables.committed(slot)) for slot in self._slots)
        self.read = read
        self.due = due
        self.at = at >> _MARK_BITS if at & _MARK == due & _MARK else 0
        self.rolled = rolled

    @property
    def is_written(self) -> bool:
        """Whether anything was ever noted."""
        return self.read > 0 or self.due > 0

    def is_delivered(self, due_ms: int, offset: int) -> bool:
        """Whether a message that is known to delivery was delivered already."""
        return due_ms < self.due or (due_ms == self.due and offset < self.at)

    def delivered(self, due_ms: int, offset: int) -> None:
        """A message was delivered, in the order of (due, offset)."""
        if due_ms != self.due:
            self.due = due_ms
            self._tables.set_committed(self._slots[1], due_ms)
        self.at = offset + 1
        self._tables.set_committed(self._slots[2], self.at << _MARK_BITS | due_ms & _MARK)

    def known(self, offset: int) -> None:
        """Note that every message below an offset is pending in memory, or delivered."""
        if offset != self.read:
            self.read = offset
            self._tables.set_committed(self._slots[0], offset)

    def stored_anew(self, offset: int) -> None:
        """Note that every message below an offset that had to be stored anew was."""
        if offset != self.rolled:
            self.rolled = offset
            self._tables.set_committed(self._slots[3], offset)
