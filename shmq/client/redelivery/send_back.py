"""Owns messages of this host on their way back to the broker, and what a member reads of its group's retry topic.

It does not know timers or listeners. The broker stores a copy in %RETRY%group, due after RocketMQ's delays, or in
%DLQ%group; then the original is settled. So a retry outlives the process that failed, blocks no offset, and is the same
for members over TCP.

    after (seconds)   1  5  10  30  60  120 ... 7200     the next level that is not shorter; longer ones take the last
    level             1  2   3   4   5    6 ...   18     0: the broker takes 3 + reconsume times, -1: dead letter
    delayMs           the time itself, which our brokers keep to; RocketMQ's know levels only

Rules:
    (1) the original is settled only after the broker has confirmed the copy: nothing is lost, and the broker makes sure
        that no dead letter is there twice;
    (2) what would be due within a second, what an ordered or a broadcast consumer gives back, and what the broker does
        not take, is delivered again by the member itself;
    (3) one consumer of a connection, the group's first, reads the connection's share of the retry topic.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from shmq.client import options
from shmq.client.wire import QueueSlot
from shmq.errors import ConsumeError, ShmqError
from shmq.message import TOPIC_BYTES_MAX, retry_topic
from shmq.protocol.allocation import Strategy
from shmq.protocol.codes import Request
from shmq.protocol.dialect import MessageQueue
from shmq.shm.core import RETRY_QUEUE_BASE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shmq.client.spec import ConsumerSpec
    from shmq.client.wire_shm.session import Session
    from shmq.shm.core import Message

DELAY_SECONDS: Final = (1.0, 5.0, *options.RETRY_DELAYS)
"""RocketMQ's delay levels 1 to 18."""
SHORTEST_DELAY: Final = DELAY_SECONDS[0]
BROKERS_CHOICE: Final = 0
DEAD_LETTER: Final = -1


def delay_level(after: float | None) -> int:
    """Return the level for a delay in seconds; None leaves it to the broker."""
    if after is None:
        return BROKERS_CHOICE
    return min(bisect.bisect_left(DELAY_SECONDS, after) + 1, len(DELAY_SECONDS))


def is_members_own(spec: ConsumerSpec, after: float | None) -> bool:
    """Whether a message that is to come again stays with the member (rule 2)."""
    if spec.group is None or spec.model != "clustering" or spec.ordered:
        return True
    return after is not None and after < SHORTEST_DELAY


def reads_retries(spec: ConsumerSpec, specs: Iterable[ConsumerSpec]) -> bool:
    """Whether this is the consumer of its connection that reads the group's retry topic."""
    if spec.group is None or spec.model != "clustering" or spec.invisible is not None:
        return False
    first = next((known for known in specs if known.group == spec.group and known.invisible is None), spec)
    return first.topic == spec.topic


def retry_ext(spec: ConsumerSpec, message: Message, after: float | None) -> dict[str, str]:
    """Return the fields of CONSUMER_SEND_MSG_BACK for a message that is to come again in `after` seconds."""
    ext = send_back_ext(spec, message, delay_level(after), "")
    if after is not None:
        ext["delayMs"] = str(math.ceil(after * 1000))
    return ext


def send_back_ext(spec: ConsumerSpec, message: Message, level: int, reason: str) -> dict[str, str]:
    """Return the fields of CONSUMER_SEND_MSG_BACK; RocketMQ passes over `attempt`, `reason` and `delayMs`."""
    ext = {
        "offset": str(message.log_position),
        "group": spec.group or "",
        "delayLevel": str(level),
        "originMsgId": message.offset_message_id,
        "originTopic": message.topic,
        "unitMode": "false",
        "attempt": str(message.attempt),
        "reason": reason,
    }
    if spec.attempts_max is not None:
        ext["maxReconsumeTimes"] = str(spec.attempts_max - 1)
    return ext


def hand_back(session: Session, spec: ConsumerSpec, message: Message, after: float | None) -> bool:
    """Let the broker deliver a message again; False when the member has to."""
    if is_members_own(spec, after):
        return False
    try:
        session.control.request(Request.CONSUMER_SEND_MSG_BACK, retry_ext(spec, message, after))
    except ShmqError:
        return False  # the broker is away, or does not take it
    message.ack()
    return True


def bury(session: Session, spec: ConsumerSpec, message: Message, reason: str) -> None:
    """Let the broker store the dead-letter copy of a message.

    Raises:
        ShmqError: the broker is away, or cannot store it now.
    """
    if spec.group is None:
        raise ConsumeError(f"a consumer without a group has no dead-letter topic: {reason}")
    session.control.request(Request.CONSUMER_SEND_MSG_BACK, send_back_ext(spec, message, DEAD_LETTER, reason))


def retry_share(
    session: Session, group: str, members: Sequence[str], client_id: str, allocate: Strategy
) -> list[QueueSlot]:
    """Return the queues of the group's retry topic that a member is to read; [] while there is no such topic."""
    topic = retry_topic(group)
    if len(topic.encode()) > TOPIC_BYTES_MAX or session.store.topic_find(topic) < 0:
        return []
    named = {
        MessageQueue(session.instance.broker_name, queue_id, topic): QueueSlot(
            RETRY_QUEUE_BASE + queue_id, queue_index, slot
        )
        for queue_id, queue_index, slot in sorted(session.control.offset_slots(group, topic))
    }
    return [named[queue] for queue in allocate(members, client_id, list(named))]
