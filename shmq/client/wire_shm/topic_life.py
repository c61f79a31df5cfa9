"""What the segments say of the topic that a queue belongs to: its life in the log, and whether that can be cut off."""

from __future__ import annotations

from shmq.protocol.codes import TopicFlush
from shmq.shm.core import ACK_CONFIRMED, Store

_NO_TOPIC = 0xFFFF_FFFF  # that of a queue whose topic was deleted


def born_position(store: Store, queue_index: int) -> int:
    """Return where the topic of a queue begins in the log; -1: it was deleted."""
    topic_index = store.queue(queue_index).topic
    return -1 if topic_index == _NO_TOPIC else int(store.topic(topic_index)["born_position"])


def is_confirmed(store: Store, topic_index: int) -> bool:
    """Whether nothing that is read of a topic can be cut off."""
    return bool(store.head["ack_rule"] == ACK_CONFIRMED and store.topic(topic_index)["flush"] != TopicFlush.ASYNC)
