"""RocketMQ's delay levels: how long a message of each level waits, and where it waits meanwhile.

    level      1   2   3    4    5   6   ...  18
    delay      1s  5s  10s  30s  1m  2m  ...  2h     one queue of SCHEDULE_TOPIC_XXXX each: queue id = level - 1
    unit       log_position 8 | record_bytes 4 | due time 8, in place of the tag's hash

Rule: the due time is store time + delay, wherever it is computed: by the append under its lock, by a rebuild of the
queue from the log, by RocketMQ itself.
"""

from __future__ import annotations

from shmq.errors import UsageError

SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
DELAY = "DELAY"  # properties of a message that waits there: its level, and where it belongs
REAL_TOPIC = "REAL_TOPIC"
REAL_QUEUE_ID = "REAL_QID"
SCHEDULE_GROUP = "CID_RMQ_SYS_SCHEDULE"  # its offsets on the schedule topic are the progress of delivery
SCHEDULE_COPIES_GROUP = "CID_RMQ_SYS_SCHEDULE_COPIES"  # a log position, see daemon/broker/timers/copies.py
DEFAULT_DELAY_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"

_UNIT_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_LEVELS_MAX = 64
_DELAY_MS_MAX = 1 << 36  # two years; far below what a unit's code can carry


class DelayLevels:
    """The levels of one broker.

    Args:
        text: RocketMQ's messageDelayLevel, delays in rising levels, each a number with s, m, h or d.

    Raises:
        UsageError: the text names no level, too many, or one that is no such delay.
    """

    def __init__(self, text: str = DEFAULT_DELAY_LEVELS) -> None:
        self._delays_ms = tuple(map(_delay_ms, text.split()))
        if not 0 < len(self._delays_ms) <= _LEVELS_MAX:
            raise UsageError(
                f"{len(self._delays_ms)} delay levels, 1 to {_LEVELS_MAX} are possible",
                hint=f'"{DEFAULT_DELAY_LEVELS}"',
            )

    @property
    def count(self) -> int:
        """The highest level."""
        return len(self._delays_ms)

    def level_of(self, wanted: int) -> int:
        """Return the level that holds for a wanted one: 0 for none, the highest for more than there are."""
        return max(0, min(wanted, self.count))

    def delay_ms(self, level: int) -> int:
        """Return how long a message of a level waits; a level that does not exist waits as RocketMQ's do, a second."""
        return self._delays_ms[level - 1] if 0 < level <= self.count else _UNIT_MS["s"]

    def due_ms(self, queue_id: int, store_ms: int) -> int:
        """Return when a record of the schedule topic is due, in milliseconds since the epoch."""
        return store_ms + self.delay_ms(queue_id + 1)


def _delay_ms(text: str) -> int:
    digits, unit = text[:-1], text[-1:]
    if digits.isascii() and digits.isdigit() and unit in _UNIT_MS:
        delay_ms = int(digits) * _UNIT_MS[unit]
        if delay_ms <= _DELAY_MS_MAX:
            return delay_ms
    raise UsageError(f"{text[:32]!r} is no delay", hint="a number and s, m, h or d, for example 30s")
