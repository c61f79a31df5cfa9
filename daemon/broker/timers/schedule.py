"""Where a message goes that is not to be delivered at once: into the schedule topic's queue of its delay level.

Owns the property DELAY on the way in. It does not know who delivers, nor topics and queues of the store.

    DELAY missing, 0 or less     unchanged
    DELAY = n                    SCHEDULE_TOPIC_XXXX, queue n - 1; REAL_TOPIC and REAL_QID say where it belongs
    DELAY above the highest      as the highest, and DELAY says so

A prepared message of a transaction is not delayed: what is committed later is. A delivered message still carries DELAY,
as in RocketMQ; it goes to the log directly and must not come here again.
"""

import re
from dataclasses import replace
from typing import NamedTuple

from shmq.daemon.broker.log import NewRecord
from shmq.daemon.broker.records.property_text import property_of, with_properties
from shmq.delay_levels import DELAY, REAL_QUEUE_ID, REAL_TOPIC, SCHEDULE_TOPIC, DelayLevels
from shmq.errors import UsageError
from shmq.protocol.codes import Response
from shmq.shm.core import UNIT_DELAY_BASE
from shmq.timing import TIMER_TOPIC

_TRANSACTION_MASK = 12
_DELAYED_TYPES = (0, 8)  # none and commit
_INTEGER = re.compile(r"[+-]?[0-9]{1,10}", re.ASCII)  # Java's Integer.parseInt
_INT32 = range(-(1 << 31), 1 << 31)


class Route(NamedTuple):
    """Topic, queue id and record that are stored."""

    topic: str
    queue_id: int
    record: NewRecord

    @property
    def is_delayed(self) -> bool:
        """Whether the message waits for its time."""
        return self.topic in (SCHEDULE_TOPIC, TIMER_TOPIC)


def is_delayable(record: NewRecord) -> bool:
    """Whether a record may wait: it is no prepared message of a transaction."""
    return record.sys_flag & _TRANSACTION_MASK in _DELAYED_TYPES


def route_of(record: NewRecord, topic: str, queue_id: int, levels: DelayLevels) -> Route:
    """Return what is stored in place of a message for a topic's queue; the same where it has no delay.

    Raises:
        UsageError: the property DELAY is no number.
    """
    text = property_of(record.properties, DELAY)
    if text is None or not is_delayable(record):
        return Route(topic, queue_id, record)
    level = levels.level_of(level_of(text))
    if level == 0:
        return Route(topic, queue_id, record)
    properties = with_properties(
        record.properties, {DELAY: str(level), REAL_TOPIC: topic, REAL_QUEUE_ID: str(queue_id)}
    )
    code = UNIT_DELAY_BASE + levels.delay_ms(level)
    return Route(SCHEDULE_TOPIC, level - 1, replace(record, properties=properties, tag_code=code))


def level_of(text: str) -> int:
    """Return the level a property says.

    Raises:
        UsageError: it is no number.
    """
    if _INTEGER.fullmatch(text) and int(text) in _INT32:
        return int(text)
    error = UsageError(f'the property DELAY is "{text[:32]}", a level is a number', hint="1 to 18, 0 for none")
    error.code = Response.SYSTEM_ERROR  # as RocketMQ answers
    raise error
