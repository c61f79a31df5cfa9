"""Whether this host's copy of a queue is a part of the leader's: the message at its end is the leader's, too.

The log of a host may have an end that the leader lacks: another host was elected, or the leader's host lost power. It
is cut off once the two have met, and until then it is read here. What a member acknowledged of it means nothing at the
leader, where other messages get these offsets: its group would step over them. A slave that refuses its master cuts
nothing; there no queue is asked about, as the groups are those of its host.

Logs of one broker are the same up to where they part, so one message speaks for all before it. A place in the log, an
offset and a length may be those of another message; with the sender's id and the time it was stored they are not.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

from shmq.client.following.kept_progress import is_confirmed
from shmq.client.remote.questions import QueueQuestions
from shmq.errors import ConsumeError
from shmq.protocol.dialect import MessageQueue
from shmq.shm.core import CoreError, Message, Store
from shmq.shm.unit import units_of

_LOOK_SECONDS: Final = 0.1
_LOOKS: Final = 10  # until what has just been stored is visible on both hosts


async def is_part(store: Store, questions: QueueQuestions, index: int, queue: MessageQueue) -> bool:
    """Whether the copy of a queue, which has that index here, is a part of the leader's; on the I/O thread.

    Raises:
        ConsumeError: its end is not visible yet.
    """
    last = None if is_confirmed(store, index) else await _last_message(store, index)
    if last is None:
        return True
    for _ in range(_LOOKS):
        if (found := await questions.record_at(queue, last.log_position)) is not None:
            return _identity(found) == _identity(last)
        if last.offset < await questions.offset_min(queue):
            return True  # retention has deleted it there
        await asyncio.sleep(_LOOK_SECONDS)
    return False


def ends_otherwise(queue: MessageQueue) -> ConsumeError:
    """Return the error that refuses a queue which is no part of the leader's."""
    return ConsumeError(
        f"queue {queue.queueId} of {queue.topic} has messages at its end on this host that the leader lacks",
        hint="they are cut off when the two hosts have met, within a second or two; where this host refuses its master,"
        " nothing is cut: shmq cluster status says why, and what to do",
    )


def _identity(message: Message) -> tuple[int, int, int, int, str]:
    return message.log_position, message.queue_id, message.offset, message.store_ms, message.message_id


async def _last_message(store: Store, index: int) -> Message | None:
    """Return the message at the end of a queue of this host; None where there is none that can be read."""
    queue = store.queue(index)
    for _ in range(_LOOKS):
        if store.queue_visible(index) >= queue.offset_max:
            break
        await asyncio.sleep(_LOOK_SECONDS)
    else:
        raise ConsumeError(f"message {queue.offset_max - 1} of queue {index} is not on this host's disk yet")
    if queue.offset_max == queue.offset_min:
        return None
    for unit in units_of(store.units_stored(index, queue.offset_max - 1, 1)):
        with contextlib.suppress(CoreError):  # it is damaged, or retention has just deleted it
            return store.message_at(unit.log_position)
    return None
