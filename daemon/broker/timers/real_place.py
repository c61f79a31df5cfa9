"""Reads the topic and queue that a message which has waited for its time was sent to."""

from typing import NamedTuple

from shmq.daemon.broker.records.property_text import property_of
from shmq.daemon.broker.records.stored_record import StoredRecord
from shmq.daemon.broker.tables import Topic, Topics
from shmq.delay_levels import REAL_QUEUE_ID, REAL_TOPIC, SCHEDULE_TOPIC
from shmq.timing import TIMER_TOPIC


class RealPlace(NamedTuple):
    """Where a message belongs."""

    topic: Topic
    queue_id: int

    @property
    def queue(self) -> int:
        """The queue's index."""
        return self.topic.queues[self.queue_id]


def real_place(tables: Topics, record: StoredRecord) -> RealPlace | str:
    """Return where the message of a waiting record belongs, or the name of the topic that is not there any more."""
    name = property_of(record.properties, REAL_TOPIC) or ""
    topic = tables.topic(name)
    if topic is None or not topic.queues or name in (SCHEDULE_TOPIC, TIMER_TOPIC):
        return name
    text = property_of(record.properties, REAL_QUEUE_ID) or ""
    queue_id = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0
    return RealPlace(topic, queue_id % len(topic.queues))  # a topic that was made anew may have fewer
