"""What each request of a client reads and changes, and which permissions on which resources it needs for that.

It is one table by request code, and the reading of those bodies that name topics and groups.

    named     topics and groups in the header or the body: judged here, before a handler sees the request
    led to    a log position, a message id, a transaction or a staged chunk belongs to the topic of a record: the
              handler that reads the record judges it (`Call.rights`), and the row says so

A resource is a topic name; a group stands under the name of its retry topic, as in RocketMQ. Sending to a retry topic
is what a consumer does when it sends a message back, so it needs SUB.

Invariant: every code of class client that a broker answers has a row, if only to say that it needs nothing. Requests of
administrators and of servers read and change everything, and need `admin: true`.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from shmq.daemon.logic.access.rights import Permission
from shmq.errors import ProtocolError
from shmq.message import RETRY_PREFIX, origin_topic, retry_topic
from shmq.protocol import dialect
from shmq.protocol.body import decode_body, decode_heartbeat
from shmq.protocol.codes import Request
from shmq.protocol.command import Command
from shmq.protocol.pop import BatchAcks


class Need(NamedTuple):
    """One of these permissions on a resource; `resource` "" is any topic there is."""

    resource: str
    any_of: Permission


_PUB, _SUB = Permission.PUB, Permission.SUB
_KNOWS = _PUB | _SUB  # either right makes a topic's bounds one's business


def needs_of(command: Command) -> list[Need]:
    """Return what a request needs; a code without a row needs what only an administrator has.

    Raises:
        ProtocolError: a body that should name topics or groups does not.
    """
    row = NEEDS.get(command.code)
    if row is None:
        return [Need("", Permission.DENY)]
    return row.needs(command)


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


def _staged(command: Command) -> list[Need]:
    """The topic that the request names; the chunks say which topics the rows are of."""
    topic = command.ext.get("topic", "")
    return [_topic(topic, _PUB)] if topic else [Need("", _PUB)]


def _popped(command: Command) -> list[Need]:
    """A message that was popped lies in the topic that was, or in the retry topic of group and topic."""
    group, topic = command.ext.get("consumerGroup", ""), command.ext.get("topic", "")
    return [Need(retry_topic(group), _SUB), Need(origin_topic(group, topic), _SUB)]


def _batch_ack(command: Command) -> list[Need]:
    needs: dict[Need, None] = {}
    for ack in decode_body(command.body, BatchAcks).acks or ():
        needs |= {Need(retry_topic(ack.c), _SUB): None, Need(origin_topic(ack.c, ack.t), _SUB): None}
    return list(needs)


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


class Row(NamedTuple):
    """What a request reads and changes: of the topics and groups it names, and of what `record` leads to.

    Attributes:
        record: what names something without its topic, so that the handler has to judge it; "" where nothing does.
    """

    needs: Callable[[Command], list[Need]]
    reads: str
    changes: str
    record: str = ""


_GROUP, _TOPIC, _EITHER = _fields(("consumerGroup", None)), _fields(("topic", _SUB)), _fields(("topic", _KNOWS))
_GROUP_AND_TOPIC = _fields(("consumerGroup", None), ("topic", _SUB))
_SEND, _SEND_SHORT = _fields(("topic", _PUB)), _fields(("b", _PUB))

NEEDS: Mapping[int, Row] = {
    Request.SEND_MESSAGE: Row(_SEND, "", "messages of the topic"),
    Request.SEND_MESSAGE_V2: Row(_SEND_SHORT, "", "messages of the topic"),
    Request.SEND_BATCH_MESSAGE: Row(_SEND_SHORT, "", "messages of the topic"),
    Request.SEND_REPLY_MESSAGE: Row(_SEND, "", "messages of the reply topic"),
    Request.SEND_REPLY_MESSAGE_V2: Row(_SEND_SHORT, "", "messages of the reply topic"),
    Request.RECALL_MESSAGE: Row(_SEND, "", "timed messages of the topic, which the handle has to name too"),
    Request.END_TRANSACTION: Row(_SEND, "the half", "messages of the half's topic", "commitLogOffset"),
    Request.PULL_MESSAGE: Row(_GROUP_AND_TOPIC, "messages of the topic", "the group's offset on it"),
    Request.LITE_PULL_MESSAGE: Row(_GROUP_AND_TOPIC, "messages of the topic", "the group's offset on it"),
    Request.QUERY_MESSAGE: Row(_TOPIC, "messages of the topic", ""),
    Request.VIEW_MESSAGE_BY_ID: Row(_fields(), "a message", "", "offset"),
    Request.QUERY_CONSUMER_OFFSET: Row(_GROUP_AND_TOPIC, "the group's offset on the topic", ""),
    Request.UPDATE_CONSUMER_OFFSET: Row(_GROUP_AND_TOPIC, "", "the group's offset on the topic"),
    Request.SEARCH_OFFSET_BY_TIMESTAMP: Row(_EITHER, "bounds of the topic", ""),
    Request.GET_MAX_OFFSET: Row(_EITHER, "bounds of the topic", ""),
    Request.GET_MIN_OFFSET: Row(_EITHER, "bounds of the topic", ""),
    Request.GET_EARLIEST_MSG_STORETIME: Row(_EITHER, "bounds of the topic", ""),
    Request.HEART_BEAT: Row(_heartbeat, "", "members of the groups it names, and their retry topics"),
    Request.UNREGISTER_CLIENT: Row(_GROUP, "", "the connection's own membership"),
    Request.CONSUMER_SEND_MSG_BACK: Row(
        _fields(("group", None)), "a message", "messages of the group's retry and dead-letter topics", "offset"
    ),
    Request.GET_CONSUMER_LIST_BY_GROUP: Row(_GROUP, "members of the group", ""),
    Request.LOCK_BATCH_MQ: Row(_locks, "", "locks of the group on the topics"),
    Request.UNLOCK_BATCH_MQ: Row(_locks, "", "locks of the group on the topics"),
    Request.CHECK_CLIENT_CONFIG: Row(_check_config, "", ""),
    Request.QUERY_ASSIGNMENT: Row(_assignment, "members of the group, queues of the topic", ""),
    # Producers ask for topics that do not exist yet, and for TBW102.
    Request.GET_ROUTEINFO_BY_TOPIC: Row(_fields(), "number of queues and addresses of any topic", ""),
    Request.POP_MESSAGE: Row(_GROUP_AND_TOPIC, "messages of the topic", "the group's offset on it"),
    Request.PEEK_MESSAGE: Row(_GROUP_AND_TOPIC, "messages of the topic", ""),
    Request.NOTIFICATION: Row(_GROUP_AND_TOPIC, "whether the topic has messages for the group", ""),
    Request.POLLING_INFO: Row(_GROUP_AND_TOPIC, "how many of the group wait for the topic", ""),
    Request.ACK_MESSAGE: Row(_popped, "", "what the group has popped of the topic"),
    Request.BATCH_ACK_MESSAGE: Row(_batch_ack, "", "what the groups have popped of the topics"),
    Request.CHANGE_MESSAGE_INVISIBLETIME: Row(_popped, "", "what the group has popped of the topic"),
    Request.STAGE_ROWS: Row(_SEND, "", "staged rows of the topic"),
    Request.COMMIT_ROWS: Row(_staged, "", "messages of the topics of staged chunks", "parts"),
    Request.DROP_ROWS: Row(_staged, "", "staged rows of the topics of chunks", "attempts"),
    Request.STAGED_STATE: Row(_staged, "the last batch of the writer: rows and checksum", ""),
    Request.READ_RANGE: Row(_TOPIC, "messages of the topic", ""),
    Request.DESCRIBE_QUEUES: Row(_TOPIC, "bounds of the topic", ""),
}
