"""The attributes of a span of a message, by OpenTelemetry's messaging conventions for RocketMQ.

Names are those of the semantic conventions (messaging, status: development); for where a damaged message is they have
none, so those names are ours. `messaging.rocketmq.namespace` is required
there and is empty, as everywhere without namespaces.

Invariant: an argument that no send takes has no attribute here, and is refused by the send itself.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from shmq.client.keywords import MEANINGS
from shmq.client.place import parse_address
from shmq.delay_levels import DELAY
from shmq.errors import DamagedMessage, ShmqError, UsageError
from shmq.timing import DELAY_MS, DELIVER_MS

if TYPE_CHECKING:
    from shmq.shm.core import Message, Receipt

SYSTEM: Final = "messaging.system"
NAMESPACE: Final = "messaging.rocketmq.namespace"
OPERATION_NAME: Final = "messaging.operation.name"
OPERATION_TYPE: Final = "messaging.operation.type"
DESTINATION: Final = "messaging.destination.name"
PARTITION: Final = "messaging.destination.partition.id"
GROUP: Final = "messaging.consumer.group.name"
BATCH_COUNT: Final = "messaging.batch.message_count"
MESSAGE_ID: Final = "messaging.message.id"
BODY_SIZE: Final = "messaging.message.body.size"
ENVELOPE_SIZE: Final = "messaging.message.envelope.size"
TAG: Final = "messaging.rocketmq.message.tag"
KEYS: Final = "messaging.rocketmq.message.keys"
TYPE: Final = "messaging.rocketmq.message.type"
MESSAGE_GROUP: Final = "messaging.rocketmq.message.group"
DELAY_LEVEL: Final = "messaging.rocketmq.message.delay_time_level"
DELIVERY_TIME: Final = "messaging.rocketmq.message.delivery_timestamp"
SERVER_ADDRESS: Final = "server.address"
SERVER_PORT: Final = "server.port"
ERROR_TYPE: Final = "error.type"
QUEUE_OFFSET: Final = "shmq.queue.offset"
LOG_POSITION: Final = "shmq.log.position"

_TYPES: Final = {"create": "create", "send": "send", "request": "send", "receive": "receive", "process": "process"}

Attributes = dict[str, Any]


def of_operation(operation: str, topic: str) -> Attributes:
    """Return what is said of every operation: "create", "send", "request", "receive" or "process"."""
    return {
        SYSTEM: "rocketmq",
        NAMESPACE: "",
        OPERATION_NAME: operation,
        OPERATION_TYPE: _TYPES[operation],
        DESTINATION: topic,
    }


def of_send(arguments: Mapping[str, Any], body: Any) -> Attributes:
    """Return what is known of a message before it is sent; no body when it is several messages, or not written yet."""
    keys = arguments.get("keys")
    words = [*([arguments["key"]] if arguments.get("key") else []), *(keys if isinstance(keys, (list, tuple)) else ())]
    found = _of_message(arguments.get("tag"), words, arguments.get("message_group"))
    found[TYPE] = "normal" if MESSAGE_GROUP not in found else "fifo"
    due = _of_delay(arguments)
    if due:
        found |= {TYPE: "delay", **due}
    with contextlib.suppress(TypeError):  # what is no body is refused by the send
        if body is not None:
            found[BODY_SIZE] = len(body) if isinstance(body, (bytes, bytearray)) else memoryview(body).nbytes
    return found


def of_receipt(receipt: Receipt, host: str) -> Attributes:
    """Return what is known once a message is stored.

    Args:
        host: the broker that stored it, as "host:port"; "" when that is not known.
    """
    found: Attributes = {MESSAGE_ID: receipt.message_id, PARTITION: str(receipt.queue_id)}
    with contextlib.suppress(UsageError):
        address = parse_address(host)
        found |= {SERVER_ADDRESS: address.host, SERVER_PORT: address.port}
    return found


def of_processed(message: Message, group: str | None) -> Attributes:
    """Return the attributes of a message that is being processed."""
    found = of_operation("process", message.topic) | {
        MESSAGE_ID: message.message_id,
        BODY_SIZE: _size_of(message),
        ENVELOPE_SIZE: message.record_bytes,
        PARTITION: str(message.queue_id),
        **_of_message(message.tag, message.keys, message.message_group),
    }
    return found if group is None else found | {GROUP: group}


def _size_of(message: Message) -> int:
    try:
        return message.size
    except ShmqError:  # compressed, and damaged: the program learns that from the body
        return len(message.view)


def of_received(topic: str, group: str | None, count: int) -> Attributes:
    """Return what is known of several messages that were handed out together."""
    found = of_operation("receive", topic) | {BATCH_COUNT: count}
    return found if group is None else found | {GROUP: group}


def of_damaged(topic: str, group: str | None, error: DamagedMessage) -> Attributes:
    """Return what is known of a message that was left out, and where it is."""
    place = {PARTITION: str(error.queue_id), QUEUE_OFFSET: error.offset, LOG_POSITION: error.position}
    return of_received(topic, group, 0) | place


def _of_message(tag: Any, keys: Sequence[Any], message_group: Any) -> Attributes:
    found: Attributes = {}
    if tag:
        found[TAG] = str(tag)
    if keys:
        found[KEYS] = [str(key) for key in keys]
    if message_group:
        found[MESSAGE_GROUP] = str(message_group)
    return found


def _of_delay(arguments: Mapping[str, Any]) -> Attributes:
    meant: dict[str, str] = {}
    for name, meaning in MEANINGS.items():
        with contextlib.suppress(UsageError):  # the send will say so
            if arguments.get(name) is not None:
                meant |= meaning(arguments[name])
    if DELAY in meant:
        return {DELAY_LEVEL: int(meant[DELAY])}
    if DELIVER_MS in meant:
        return {DELIVERY_TIME: int(meant[DELIVER_MS])}
    if DELAY_MS in meant:
        return {DELIVERY_TIME: round(time.time() * 1000) + int(meant[DELAY_MS])}
    return {}
