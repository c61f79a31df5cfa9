"""Request and reply over messages: names of properties, the reply topic, and where a reply goes.

    request   any topic                  CORRELATION_ID, REPLY_TO_CLIENT, TTL (ms); CLUSTER, which brokers add
    reply     <cluster>_REPLY_TOPIC      the same three, and MSG_TYPE=reply

    REPLY_TO_CLIENT of a TCP client      its client id: the broker pushes the reply over its connection
    of a local process                   shm:<queue id>:<client id>: the holder of the reply stores it in this queue of
                                         the reply topic, where the process reads it out of shared memory

The address says where the reply goes, so a replier on this host and the broker that gets a reply over TCP store it at
the same place without looking it up. A private topic for each requesting process would make the tables grow with
processes that come and go.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple, Self

CORRELATION_ID: Final = "CORRELATION_ID"
REPLY_TO: Final = "REPLY_TO_CLIENT"
TTL: Final = "TTL"
CLUSTER: Final = "CLUSTER"
MESSAGE_TYPE: Final = "MSG_TYPE"
MESSAGE_TYPE_REPLY: Final = "reply"
PUSH_TIME: Final = "PUSH_REPLY_TIME"
ARRIVE_TIME: Final = "ARRIVE_TIME"

REPLY_QUEUES: Final = 16
"""Queues of a reply topic we make; RocketMQ makes one. Requesters of this host divide them by their client ids."""

_SHARED = re.compile(r"shm:(0|[1-9][0-9]{0,3}):(.+)", re.ASCII)


def reply_topic(cluster: str) -> str:
    """Return the topic of a cluster's replies."""
    return f"{cluster}_REPLY_TOPIC"


class SharedAddress(NamedTuple):
    """The place where a process of the broker's host reads its replies."""

    queue_id: int
    client_id: str

    def __str__(self) -> str:
        return f"shm:{self.queue_id}:{self.client_id}"

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Return the address a REPLY_TO_CLIENT holds, None when it is a TCP client's id."""
        match = _SHARED.fullmatch(text)
        return cls(int(match[1]), match[2]) if match else None
