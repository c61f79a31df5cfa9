"""The headers of POP's requests, and the checks that all of them share.

Names, bounds and the order of the checks are RocketMQ's.

    POP_MESSAGE     number of messages · topic · topic readable · queue id · group · group may consume · names' length
    ACK, CHANGE     topic · queue id · offset · receipt
"""

from collections.abc import Mapping
from typing import NamedTuple

from shmq.daemon.broker.groups.selection import TAG
from shmq.daemon.broker.groups.settings import GroupSettings, check_consumes
from shmq.daemon.broker.tables import Names, Topic
from shmq.daemon.logic.header_fields import ADVICE, INT32_MAX, INT64_MAX, flag_of, number_of, text_of
from shmq.errors import InvalidName, RemoteError
from shmq.message import PERM_READ, check_popping
from shmq.protocol.codes import Response
from shmq.protocol.pop import INVISIBLE_MS_MAX, POP_COUNT_MAX

ANY_QUEUE = -1
FROM_FIRST = 0  # initMode; anything else is RocketMQ's "from the last"

_INT64_MIN = -INT64_MAX - 1


class PopHeader(NamedTuple):
    """Fields of POP_MESSAGE, and of what asks whether a pop would bring something."""

    group: str
    topic: str
    queue_id: int
    count_max: int
    invisible_ms: int
    poll_ms: int
    init_mode: int
    expression: str
    expression_type: str
    is_ordered: bool
    attempt: str
    takes_places: bool = False


def read_pop_header(ext: Mapping[str, str], *, is_local: bool = False) -> PopHeader:
    """Return the header of a POP_MESSAGE; only who maps our log can do anything with places of it.

    Raises:
        ProtocolError: a field is missing or no number.
        RemoteError: more messages, or a longer invisible time, than there may be.
    """
    count = number_of(ext, "maxMsgNums", least=-INT32_MAX, most=INT32_MAX)
    if not 1 <= count <= POP_COUNT_MAX:
        raise _parameter(f"a pop of {count} messages; 1 to {POP_COUNT_MAX} are possible")
    return PopHeader(
        text_of(ext, "consumerGroup"),
        text_of(ext, "topic"),
        number_of(ext, "queueId", least=-INT32_MAX, most=INT32_MAX),
        count,
        invisible_ms_of(ext),
        number_of(ext, "pollTime", least=_INT64_MIN),
        number_of(ext, "initMode", most=INT32_MAX),
        ext.get("exp", ""),
        ext.get("expType", "") or TAG,
        flag_of(ext, "order"),
        ext.get("attemptId", ""),
        is_local and flag_of(ext, "places"),
    )


def read_question(ext: Mapping[str, str]) -> PopHeader:
    """Return the header of a NOTIFICATION, PEEK_MESSAGE or POLLING_INFO: what is missing has no meaning there."""
    return PopHeader(
        text_of(ext, "consumerGroup"),
        text_of(ext, "topic"),
        number_of(ext, "queueId", least=-INT32_MAX, most=INT32_MAX),
        max(1, min(POP_COUNT_MAX, number_of(ext, "maxMsgNums", least=-INT32_MAX, most=INT32_MAX, default=1))),
        0,
        number_of(ext, "pollTime", least=_INT64_MIN, default=0),
        FROM_FIRST,
        "",
        TAG,
        flag_of(ext, "order"),
        ext.get("attemptId", ""),
    )


def invisible_ms_of(ext: Mapping[str, str], *, least: int = 1) -> int:
    """Return the invisible time a request asks for.

    Raises:
        RemoteError: shorter or longer than it may be.
    """
    value = number_of(ext, "invisibleTime", least=_INT64_MIN)
    if not least <= value <= INVISIBLE_MS_MAX:
        raise _parameter(f"an invisible time of {value} ms; {least} to {INVISIBLE_MS_MAX} ms are possible")
    return value


def checked_topic(tables: Names, groups: GroupSettings, header: PopHeader) -> Topic:
    """Return the topic of a pop; its group exists afterwards, as RocketMQ's groups need no creation.

    Raises:
        RemoteError: topic, queue or group cannot be popped.
    """
    topic = readable_topic(tables, header.topic)
    if not ANY_QUEUE <= header.queue_id < topic.read_queues:
        raise _parameter(
            f"queueId[{header.queue_id}] is illegal, topic:[{topic.name}] topicConfig.readQueueNums:"
            f"[{topic.read_queues}]"
        )
    check_consumes(tables, groups, header.group)
    try:
        check_popping(header.group, header.topic)
    except InvalidName as error:
        raise _parameter(str(error)) from error
    return topic


def readable_topic(tables: Names, name: str) -> Topic:
    """Return a topic that may be read; raises RemoteError for any other."""
    topic = tables.topic(name)
    if topic is None:
        raise RemoteError(Response.TOPIC_NOT_EXIST, f"topic[{name[:127]}] not exist, apply first please! {ADVICE}")
    if not topic.perm & PERM_READ:
        raise RemoteError(Response.NO_PERMISSION, f"the topic[{topic.name}] peeking message is forbidden")
    return topic


def _parameter(remark: str) -> RemoteError:
    return RemoteError(Response.INVALID_PARAMETER, remark)
