"""Notes, with each answer of a master, from where on the log may hold copies that its words do not tell of.

How far delayed and timed messages are delivered is said by words, which come here once a second; each copy that
delivery makes comes at once, as a record. So the copies made just before the master was gone are here, and no word
tells of them: the next master walks through the log for them from the mark (`daemon/broker/timers/copies.py`).

    an answer      tells of every copy that had come here before it was asked for, but those behind the master's mark
    a master of before that follows now: its own words tell of no copy that another one makes from now on
"""

from collections.abc import Mapping

from shmq.daemon.broker.tables import Tables, committed_of
from shmq.daemon.broker.timers.copies import copies_begin
from shmq.delay_levels import SCHEDULE_COPIES_GROUP, SCHEDULE_TOPIC
from shmq.timing import TIMER_COPIES_GROUP, TIMER_TOPIC

MARKS: Mapping[str, str] = {SCHEDULE_TOPIC: SCHEDULE_COPIES_GROUP, TIMER_TOPIC: TIMER_COPIES_GROUP}
"""The group whose offset is the mark, by the topic where messages wait."""


def note_told_copies(tables: Tables, topic_name: str, mark: int, asked_end: int) -> None:
    """Note what an answer with the words of a topic does not tell of.

    Args:
        mark: the master's own; 0: its words tell of every copy.
        asked_end: where the log here ended before it was asked.
    """
    begin = min(mark, asked_end) if mark > 0 else asked_end
    _put(tables, topic_name, begin or copies_begin(tables, topic_name))


def note_own_copies(tables: Tables, log_end: int) -> None:
    """Note that the words here may be those of a master of before."""
    for topic_name, group in MARKS.items():
        topic = tables.topic(topic_name)
        if topic is not None and topic.queues and committed_of(tables, group, topic.queues[0]) == 0:
            _put(tables, topic_name, log_end)


def _put(tables: Tables, topic_name: str, mark: int) -> None:
    topic = tables.topic(topic_name)
    if topic is not None and topic.queues:
        slot = tables.offset_put(tables.group_put(MARKS[topic_name]), topic.queues[0])
        tables.set_committed(slot, mark)
