"""Owns delayed sends of this client: the meaning of `delay_level=`, and how a local producer stores such a message.

It does not know who delivers; the broker does, from the queues of the schedule topic (`daemon/broker/delay.py`).

    delay_level=3 ─▶ DELAY=3 ─▶ SCHEDULE_TOPIC_XXXX, queue 2, REAL_TOPIC, REAL_QID, unit: store time + 10 s

Rules:
    (1) a local producer stores what a broker stores for the same message over TCP: the record in the schedule topic,
        the receipt with the topic and queue the message is for, and the queue offset it waits at;
    (2) a level above the highest is the highest, 0 is no delay, as in RocketMQ.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from shmq.delay_levels import DELAY, REAL_QUEUE_ID, REAL_TOPIC, SCHEDULE_TOPIC, DelayLevels
from shmq.errors import UsageError
from shmq.message import check_properties, encode_properties
from shmq.shm.core import UNIT_DELAY_BASE, receipt_make, tag_hash

if TYPE_CHECKING:
    from shmq.client.session import Session
    from shmq.shm.core import Producer, Receipt

_PERM_WRITE = 2


def level_properties(level: Any) -> dict[str, str]:
    """Return what `delay_level=` stands for.

    Raises:
        UsageError: not a number from 0 on.
    """
    if type(level) is not int or level < 0:
        raise UsageError(f"delay_level={level!r} is no level", hint="1 (1 s) to 18 (2 h), 0 for none")
    return {DELAY: str(level)} if level else {}


MEANINGS: Final = {"delay_level": level_properties}


def is_delayed(found: Mapping[str, str]) -> bool:
    """Whether these properties make a message wait."""
    return DELAY in found


def check_one(found: Mapping[str, str]) -> None:
    """Refuse two delays of one message."""


class DelayedSend:
    """Stores the delayed messages of one session; any thread may use it."""

    __slots__ = ("_levels", "_session", "_turn")

    def __init__(self, session: Session) -> None:
        self._session = session
        self._levels = DelayLevels(session.control.attachment.delay_levels)
        self._turn = itertools.count()

    def send(
        self, producer: Producer, topic: str, body: Any, found: Mapping[str, str], arguments: dict[str, Any]
    ) -> Receipt:
        """Store one message where it waits, and return a receipt of the topic it is for.

        Raises:
            UsageError: a queue the topic does not have, or a property that is not the application's.
        """
        queue_id = self._queue_id(topic, arguments.pop("queue_id", None), arguments.get("message_group"))
        level = self._levels.level_of(int(found[DELAY]))
        properties = {DELAY: str(level), REAL_TOPIC: topic, REAL_QUEUE_ID: str(queue_id)}
        code = UNIT_DELAY_BASE + self._levels.delay_ms(level)
        own = arguments.pop("properties", None)
        if own:
            check_properties(own)
            properties.update(own)
        self._ensure(SCHEDULE_TOPIC)
        text = encode_properties(properties).encode()
        stored = producer.send(SCHEDULE_TOPIC, body, properties=text, queue_id=level - 1, tag_code=code, **arguments)
        return receipt_make(topic, queue_id, stored.offset, stored.log_position, stored.store_ms, stored.message_id)

    def _ensure(self, topic: str) -> None:
        """A broker that never had a delayed message may not have the topic yet."""
        if self._session.store.topic_find(topic) < 0:
            self._session.put_topic(topic, queues=self._levels.count, only_if_missing=True)

    def _queue_id(self, topic: str, queue_id: int | None, message_group: str | None) -> int:
        """Return the queue the message is for, chosen as the core chooses."""
        entry = self._session.store.topic(self._session.resolve(topic))
        queues = entry["write_queues"] if entry["perm"] & _PERM_WRITE else 0
        if not queues:
            raise UsageError(f"topic '{topic}' takes no messages: permission {entry['perm']}")
        if queue_id is not None:
            if type(queue_id) is not int or not 0 <= queue_id < queues:
                raise UsageError(
                    f"topic '{topic}' has {queues} write queues, so queue_id is 0 to {queues - 1}, not {queue_id!r}"
                )
            return queue_id
        if message_group is not None:
            return (tag_hash(message_group) & 0x7FFFFFFF) % queues
        return next(self._turn) % queues
