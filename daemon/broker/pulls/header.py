"""The header of a pull, and the flags in it."""

from collections.abc import Mapping
from typing import NamedTuple

from shmq.daemon.broker.groups.lives import QueueName
from shmq.daemon.logic.header_fields import INT32_MAX, INT64_MAX, number_of
from shmq.errors import ProtocolError

_COMMIT, _SUSPEND, _SUBSCRIPTION = 1, 2, 4
_INT32_MIN, _INT64_MIN = -INT32_MAX - 1, -INT64_MAX - 1


class PullHeader(NamedTuple):
    """Fields of one pull; `sys_flag` says which of them count."""

    group: str
    topic: str
    queue_id: int
    queue_offset: int
    count_max: int
    sys_flag: int
    commit_offset: int
    suspend_ms: int
    expression: str
    subscription_version: int
    expression_type: str
    reader: str = ""  # clients of ours that read for no group: who of a connection asks

    @property
    def name(self) -> QueueName:
        """The queue, as the client knows it."""
        return QueueName(self.group, self.topic, self.queue_id, self.reader)

    @property
    def commits(self) -> bool:
        """Whether `commit_offset` is to be stored."""
        return bool(self.sys_flag & _COMMIT)

    @property
    def suspends(self) -> bool:
        """Whether the answer may wait for messages."""
        return bool(self.sys_flag & _SUSPEND)

    @property
    def has_subscription(self) -> bool:
        """Whether `expression` counts, and not what the group said in its heartbeats."""
        return bool(self.sys_flag & _SUBSCRIPTION)


def read_pull_header(ext: Mapping[str, str]) -> PullHeader:
    """Return the fields of a pull.

    Raises:
        ProtocolError: one is missing or no number.
    """
    try:
        group, topic = ext["consumerGroup"], ext["topic"]
    except KeyError as error:
        raise ProtocolError(f"the custom field <{error.args[0]}> is null") from error
    return PullHeader(
        group,
        topic,
        _int32(ext, "queueId"),
        _int64(ext, "queueOffset"),
        _int32(ext, "maxMsgNums"),
        _int32(ext, "sysFlag"),
        _int64(ext, "commitOffset"),
        _int64(ext, "suspendTimeoutMillis"),
        ext.get("subscription", ""),
        _int64(ext, "subVersion"),
        ext.get("expressionType", "") or "TAG",
        ext.get("reader", ""),
    )


def with_subscription(header: PullHeader, expression: str, kind: str) -> PullHeader:
    """Return the header of a pull that says itself what it wants."""
    return header._replace(sys_flag=header.sys_flag | _SUBSCRIPTION, expression=expression, expression_type=kind)


def _int32(ext: Mapping[str, str], name: str) -> int:
    return number_of(ext, name, least=_INT32_MIN, most=INT32_MAX)


def _int64(ext: Mapping[str, str], name: str) -> int:
    return number_of(ext, name, least=_INT64_MIN)
