"""What a command that is run for a message finds in its environment.

Owns the names. It does not know which command is run, nor what becomes of the message.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shmq.shm.core import Message


def environment_of(message: Message) -> dict[str, str]:
    """Return our own environment, and SHMQ_TOPIC, SHMQ_KEY, … of a message."""
    variables = {
        "SHMQ_TOPIC": message.topic,
        "SHMQ_QUEUE": str(message.queue_id),
        "SHMQ_OFFSET": str(message.offset),
        "SHMQ_KEY": message.key or "",
        "SHMQ_TAG": message.tag or "",
        "SHMQ_MESSAGE_ID": message.message_id,
        "SHMQ_ATTEMPT": str(message.attempt),
    }
    return {**os.environ, **variables}
