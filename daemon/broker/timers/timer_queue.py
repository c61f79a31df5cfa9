"""Pending timed messages in memory, and which of them is due next.

    this hour and the next      heap of (due << 44 | queue offset), one Python int each: 57 bytes a message
    later hours                 an array for each hour of (ms in the hour << 42 | queue offset): 8 bytes a message

Hours move into the heap in portions while there is time, and all at once when there is none.

Rule: messages leave in the order of (due, queue offset), whatever order they came in.
"""

import heapq
from array import array

_HOUR_MS = 3_600_000
_OFFSET_BITS = 44
_OFFSET_MASK = (1 << _OFFSET_BITS) - 1
_LATER_BITS = 42  # 22 bits are left for the milliseconds of an hour
_LATER_MASK = (1 << _LATER_BITS) - 1


class TimerQueue:
    """(due_ms, queue offset) of every pending message."""

    __slots__ = ("_heap", "_hours", "_near_hour")

    def __init__(self) -> None:
        self._heap: list[int] = []
        self._hours: dict[int, array[int]] = {}
        self._near_hour = 0  # the first hour that is not in the heap yet

    def __len__(self) -> int:
        return len(self._heap) + sum(map(len, self._hours.values()))

    def add(self, due_ms: int, offset: int) -> None:
        """Take one message."""
        hour = due_ms // _HOUR_MS
        if hour < self._near_hour:
            heapq.heappush(self._heap, due_ms << _OFFSET_BITS | offset)
            return
        later = self._hours.get(hour)
        if later is None:
            later = self._hours[hour] = array("Q")
        later.append(due_ms % _HOUR_MS << _LATER_BITS | offset)

    def advance(self, now_ms: int, portion: int) -> bool:
        """Make what is due by now reachable, and up to `portion` of what is due later; True when more is to be moved.

        Messages due within the hour of `now_ms` are in the heap when this returns.
        """
        now_hour = now_ms // _HOUR_MS
        self._near_hour = max(self._near_hour, now_hour + 1)
        for hour in sorted(hour for hour in self._hours if hour <= now_hour):
            self._move(hour, len(self._hours[hour]))
        if now_hour + 1 in self._hours:
            # The hour is filled from its array's end while others still add to the array: it is near when it is empty.
            self._move(now_hour + 1, portion)
        if now_hour + 1 not in self._hours:
            self._near_hour = max(self._near_hour, now_hour + 2)
            return False
        return True

    def _move(self, hour: int, count: int) -> None:
        later = self._hours[hour]
        begin_ms = hour * _HOUR_MS
        moved = later[-count:]
        del later[-count:]
        for packed in moved:
            due_ms = begin_ms + (packed >> _LATER_BITS)
            heapq.heappush(self._heap, due_ms << _OFFSET_BITS | packed & _LATER_MASK)
        if not later:
            del self._hours[hour]

    def first(self) -> tuple[int, int] | None:
        """Return the message that is due first of those that `advance` has reached."""
        if not self._heap:
            return None
        return self._heap[0] >> _OFFSET_BITS, self._heap[0] & _OFFSET_MASK

    def pop(self) -> None:
        """Forget the message `first` returned."""
        heapq.heappop(self._heap)

    def soonest(self, count: int) -> list[tuple[int, int]]:
        """Return up to `count` of those that are due first, in order."""
        found: list[tuple[int, int]] = []
        near = [(self._heap[0], 0)] if self._heap else []  # (entry, its place): below an entry lie only later ones
        while near and len(found) < count:
            entry, place = heapq.heappop(near)
            found.append((entry >> _OFFSET_BITS, entry & _OFFSET_MASK))
            for below in (2 * place + 1, 2 * place + 2):
                if below < len(self._heap):
                    heapq.heappush(near, (self._heap[below], below))
        for hour in sorted(self._hours):
            if len(found) >= count:
                break
            for packed in heapq.nsmallest(count - len(found), self._hours[hour]):
                found.append((hour * _HOUR_MS + (packed >> _LATER_BITS), packed & _LATER_MASK))
        return sorted(found)
