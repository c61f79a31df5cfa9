"""Notes, at a promotion, from which pop on the group's progress is not known on this host.

Progress of groups comes here once a second, each pop and each acknowledgement at once, as a record of the revive topic.
So the last pops before the master was gone are here, and the progress behind them is not. POP goes on behind them if it
knows which they are (`daemon/broker/pop/state.py`); else messages that were acknowledged came again.

    revive queue 0   … a pop that the last answer knew | pops since …
                                                       ^ offset of the group CID_RMQ_SYS_REVIVE_KNOWN
"""

from bisect import bisect_left

from shmq.daemon.broker.tables import Tables
from shmq.protocol.pop import REVIVE_TOPIC_PREFIX
from shmq.protocol.system_topics.pop_records import OWN_QUEUE, REVIVE_KNOWN_GROUP


def note_known_pops(tables: Tables, known_end: int) -> None:
    """Note where the pops begin whose records lie at `known_end` or behind it in the log."""
    for topic in tables.topics():
        if not topic.name.startswith(REVIVE_TOPIC_PREFIX) or len(topic.queues) <= OWN_QUEUE:
            continue
        queue = topic.queues[OWN_QUEUE]
        low, high = tables.queue_bounds(queue)
        first = low + bisect_left(range(low, high), known_end, key=lambda offset: _position(tables, queue, offset))
        tables.set_committed(tables.offset_put(tables.group_put(REVIVE_KNOWN_GROUP), queue), first)


def _position(tables: Tables, queue: int, queue_offset: int) -> int:
    return next((unit.log_position for unit in tables.units(queue, queue_offset, 1)), 0)
