"""Attaching to the broker of this host: what it tells, and the segments it names, mapped into this process.

A broker that answers while its segments or its log are not where this process looks has another /dev/shm, IPC namespace
or file system. That is said as such, and at once: told to start the broker, a user would look for the fault where it is
not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from shmq.delay_levels import DEFAULT_DELAY_LEVELS
from shmq.errors import ForeignNamespace, SegmentError
from shmq.protocol.body import decode_body
from shmq.protocol.command import Command
from shmq.shm.core import Store
from shmq.shm.instance import Instance
from shmq.shm.log_reach import check_log_is_here
from shmq.shm.presence import attach_presence
from shmq.shm.segment import are_here, open_store
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


def map_segments(attachment: Attachment, *, alive: bool) -> Store:
    """Return the mapped segments of an attachment, counted as attached; `alive` says whether its broker answers now.

    Raises:
        ForeignNamespace: they, or the log's files, are in a namespace that this process does not share.
        SegmentError, PermissionDenied, VersionMismatch: as `open_store`.
    """
    instance = attachment.instance
    check_log_is_here(instance)
    try:
        store = open_store(instance, writable=True, uid=attachment.broker_uid)
    except SegmentError as error:
        if not alive or are_here(instance):
            raise
        raise ForeignNamespace(
            f'broker "{instance.broker_name}" answers, but its segments are not in the shared memory of this process',
            hint="share its IPC namespace and its /dev/shm (docker: --ipc=container:<broker>), or connect over TCP",
        ) from error
    attach_presence(instance)
    return store
