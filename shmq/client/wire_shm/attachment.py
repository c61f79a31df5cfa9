"""Owns what the broker tells a process of its host that attaches: segments, slot, and the settings local sends follow.

It does not know how it was asked.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from shmq.delay_levels import DEFAULT_DELAY_LEVELS
from shmq.protocol.body import decode_body
from shmq.protocol.command import Command
from shmq.shm.instance import Instance
from shmq.timing import MAX_DELAY_SECONDS


@dataclass(frozen=True)
class Attachment:
    """What the broker handed out. `client_slot` is -1 for a client without a role."""

    instance: Instance
    client_slot: int
    auto_create: bool
    default_queues: int
    wait_durable: bool
    delay_levels: str  # RocketMQ's messageDelayLevel
    timer_max_delay_seconds: int
    broker_uid: int  # whose segments they must be
    cluster: str


class _AttachBody(msgspec.Struct):
    instance: dict[str, Any]
    clientSlot: int
    autoCreate: bool
    defaultQueues: int
    waitDurable: bool
    cluster: str = "DefaultCluster"
    messageDelayLevel: str = DEFAULT_DELAY_LEVELS
    timerMaxDelaySec: int = MAX_DELAY_SECONDS


def attachment_of(reply: Command, broker_uid: int) -> Attachment:
    """Read the answer to ATTACH.

    Raises:
        ProtocolError: it is none.
    """
    body = decode_body(reply.body, _AttachBody)
    return Attachment(
        instance=Instance.from_object(body.instance),
        client_slot=body.clientSlot,
        auto_create=body.autoCreate,
        default_queues=body.defaultQueues,
        wait_durable=body.waitDurable,
        delay_levels=body.messageDelayLevel,
        timer_max_delay_seconds=body.timerMaxDelaySec,
        broker_uid=broker_uid,
        cluster=body.cluster,
    )
