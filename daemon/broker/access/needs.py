"""Which permissions on which resources a client's request needs.

It is one table by request code, and the reading of those bodies that name topics and groups.

A resource is a topic name; a group stands under the name of its retry topic, as in RocketMQ. Sending to a retry topic
is what a consumer does when it sends a message back, so it needs SUB.

Invariant: every code of class client that a broker answers has a row, if only to say that it needs nothing.
"""

from collections.abc import Callable, Mapping
from enum import IntFlag
from typing import Any, NamedTuple

from shmq.errors import ProtocolError
from shmq.message import RETRY_PREFIX, retry_topic
from shmq.protocol import dialect
from shmq.protocol.body import decode_heartbeat
from shmq.protocol.codes import Request
from shmq.protocol.command import Command


class Permission(IntFlag):
    """What may be done with a topic, or with the group of a retry topic."""

    DENY = 0
    PUB = 1
    SUB = 2


class Need(NamedTuple):
    """One of these permissions on a resource; `resource` "" is any topic there is."""

    resource: str
    any_of: Permission


_PUB, _SUB = Permission.PUB, Permission.SUB
_KNOWS = _PUB | _SUB  # either right makes a topic's bounds one's business


def needs_of(command: Command) -> list[Need]:
    """Return what a request needs; a code without a row needs what nobody but an administrator has.

    Raises:
        ProtocolError: a body that should name topics or groups does not.
    """
    row = _NEEDS.get(command.code)
    if row is None:
        return [Need("", Permission.DENY)]
    return row(command)


def _fields(*parts: tuple[str, Permission | None]) -> Callable[[Command], list[Need]]:
    """Read resources from header fields: a topic with its permission, or a group (None), which needs SUB."""

    def read(command: Command) -> list[Need]:
        needs: list[Need] = []
        for name, permission in parts:
            text = command.ext.get(name, "")
            if text:
                needs.append(Need(retry_topic(text), _SUB) if permission is None else _topic(text, permission))
        return needs

    return read


def _topic(name: str, permission: Permission) -> Need:
    return Need(name, _SUB if name.startswith(RETRY_PREFIX) else permission)


def _any(permission: Permission) -> Callable[[Command], list[Need]]:
    return lambda _: [Need("", permission)]


def _sent_before(command: Command) -> list[Need]:
    """What ends something that was sent names the topic it was sent to, as RocketMQ's clients do since 5."""
    topic = command.ext.get("topic", "")
    return [_topic(topic, _PUB)] if topic else [Need("", _PUB)]


def _heartbeat(command: Command) -> list[Need]:
    needs: dict[Need, None] = {}
    for consumer in decode_heartbeat(command.body).consumerDataSet:
        needs[Need(retry_topic(consumer.groupName), _SUB)] = None
        for subscription in consumer.subscriptionDataSet:
            needs[Need(subscription.topic, _SUB)] = None
    return list(needs)


def _check_config(command: Command) -> list[Need]:
    body = _object(command.body)
    subscription = body.get("subscriptionData")
    topic = subscription.get("topic") if isinstance(subscription, dict) else None
    return [Need(retry_topic(_name(body.get("group"))), _SUB), *([Need(topic, _SUB)] if isinstance(topic, str) else [])]


def _locks(command: Command) -> list[Need]:
    body = _object(command.body)
    queues = body.get("mqSet")
    if not isinstance(queues, list) or not all(isinstance(queue, dict) for queue in queues):
        raise ProtocolError("the body names no queues")
    topics = dict.fromkeys(_name(queue.get("topic")) for queue in queues)
    return [Need(retry_topic(_name(body.get("consumerGroup"))), _SUB), *(Need(topic, _SUB) for topic in topics)]


def _assignment(command: Command) -> list[Need]:
    body = _object(command.body)
    return [Need(retry_topic(_name(body.get("consumerGroup"))), _SUB), Need(_name(body.get("topic")), _SUB)]


def _object(body: bytes) -> dict[Any, Any]:
    value = dialect.loads(body)
    if not isinstance(value, dict):
        raise ProtocolError("the body is no JSON object")
    return value


def _name(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise ProtocolError("the body lacks the name of a topic or a group")
    return value


_GROUP_AND_TOPIC = _fields(("consumerGroup", None), ("topic", _SUB))
_SEND, _SEND_SHORT = _fields(("topic", _PUB)), _fields(("b", _PUB))

_NEEDS: Mapping[int, Callable[[Command], list[Need]]] = {
    Request.SEND_MESSAGE: _SEND,
    Request.SEND_MESSAGE_V2: _SEND_SHORT,
    Request.SEND_BATCH_MESSAGE: _SEND_SHORT,
    Request.SEND_REPLY_MESSAGE: _SEND,
    Request.SEND_REPLY_MESSAGE_V2: _SEND_SHORT,
    Request.RECALL_MESSAGE: _SEND,
    Request.END_TRANSACTION: _sent_before,
    Request.PULL_MESSAGE: _GROUP_AND_TOPIC,
    Request.LITE_PULL_MESSAGE: _GROUP_AND_TOPIC,
    Request.QUERY_MESSAGE: _fields(("topic", _SUB)),
    Request.VIEW_MESSAGE_BY_ID: _any(_SUB),  # a position says nothing about the topic it leads to
    Request.QUERY_CONSUMER_OFFSET: _GROUP_AND_TOPIC,
    Request.UPDATE_CONSUMER_OFFSET: _GROUP_AND_TOPIC,
    Request.SEARCH_OFFSET_BY_TIMESTAMP: _fields(("topic", _KNOWS)),
    Request.GET_MAX_OFFSET: _fields(("topic", _KNOWS)),
    Request.GET_MIN_OFFSET: _fields(("topic", _KNOWS)),
    Request.GET_EARLIEST_MSG_STORETIME: _fields(("topic", _KNOWS)),
    Request.HEART_BEAT: _heartbeat,
    Request.UNREGISTER_CLIENT: _fields(("consumerGroup", None)),
    Request.CONSUMER_SEND_MSG_BACK: _fields(("group", None)),
    Request.GET_CONSUMER_LIST_BY_GROUP: _fields(("consumerGroup", None)),
    Request.LOCK_BATCH_MQ: _locks,
    Request.UNLOCK_BATCH_MQ: _locks,
    Request.CHECK_CLIENT_CONFIG: _check_config,
    Request.QUERY_ASSIGNMENT: _assignment,
    Request.GET_ROUTEINFO_BY_TOPIC: _fields(),  # producers ask for topics that do not exist yet, and for TBW102
    Request.POP_MESSAGE: _GROUP_AND_TOPIC,
    Request.ACK_MESSAGE: _GROUP_AND_TOPIC,
    Request.PEEK_MESSAGE: _GROUP_AND_TOPIC,
    Request.CHANGE_MESSAGE_INVISIBLETIME: _GROUP_AND_TOPIC,
    Request.NOTIFICATION: _GROUP_AND_TOPIC,
    Request.POLLING_INFO: _GROUP_AND_TOPIC,
    Request.BATCH_ACK_MESSAGE: _any(_SUB),
    Request.STAGE_ROWS: _SEND,
    Request.COMMIT_ROWS: _sent_before,  # which rows an attempt has, its name says, and that nobody can guess
    Request.DROP_ROWS: _sent_before,
    Request.STAGED_STATE: _sent_before,
    Request.READ_RANGE: _fields(("topic", _SUB)),
    Request.DESCRIBE_QUEUES: _fields(("topic", _SUB)),
}
