"""Resets: an administrator sets where a group goes on reading.

It is the request 222.

The new offsets are written here, whether or not anybody is online, as RocketMQ 5 does. A member that is online knows
its own place and would write that over ours: one over TCP is told the new place (220); a local one loses its queue, and
reads on from the group's offset when it takes it again, which it does when it is told to share anew (40).

    timestamp -1       the end of each queue           isForce false    no offset goes forward
    timestamp t        the first message from then on
    queueId, offset    one queue, one place            (RocketMQ 5)
"""

from collections.abc import Mapping
from typing import Any

from shmq.daemon.broker.fields import INT32_MAX, INT64_MAX, flag_of, number_of, text_of
from shmq.daemon.broker.groups.registry import GroupRegistry
from shmq.daemon.broker.requests import Answer, Call, Notice, Part, serves
from shmq.daemon.broker.settings import BrokerSettings
from shmq.daemon.broker.statistics.queue_index import QueueIndex
from shmq.daemon.broker.tables import GroupProgress, Topic
from shmq.errors import RemoteError, UsageError
from shmq.message import check_group
from shmq.protocol.codes import Language, Request, Response
from shmq.protocol.dialect import MessageQueue, dumps

_LATEST = -1
_ALL_QUEUES = -1
_NO_OFFSET = -1


class ResetRequests(Part):
    """Serves resets."""

    def __init__(
        self, tables: GroupProgress, registry: GroupRegistry, queues: QueueIndex, settings: BrokerSettings
    ) -> None:
        self._tables = tables
        self._registry = registry
        self._queues = queues
        self._settings = settings

    @serves(Request.INVOKE_BROKER_TO_RESET_OFFSET)
    def _reset(self, call: Call) -> Answer:
        ext = call.ext
        group, name = check_group(text_of(ext, "group")), text_of(ext, "topic")
        topic = self._tables.topic(name)
        if topic is None:
            raise RemoteError(Response.TOPIC_NOT_EXIST, f"Topic {name[:127]} does not exist")
        if self._tables.group(group) is None:
            raise RemoteError(Response.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {group} does not exist")
        offsets = self._wanted(topic, ext)
        if not flag_of(ext, "isForce"):
            committed = self._queues.topic_progress(group, topic)
            offsets = {queue: min(offset, committed.get(queue, offset)) for queue, offset in offsets.items()}
        index = self._tables.group_put(group)
        for queue_id, offset in offsets.items():
            slot = self._tables.offset_put(index, topic.queues[queue_id])
            self._tables.offset_free(slot)
            self._tables.set_committed(slot, offset)
        notices = self._notices(group, name, ext, offsets, is_cpp=call.command.language == Language.CPP)
        return Answer(body=_queue_table(self._settings.broker_name, name, offsets), notices=notices)

    def _wanted(self, topic: Topic, ext: Mapping[str, str]) -> dict[int, int]:
        time_ms = number_of(ext, "timestamp", least=-(1 << 63))
        queue_id = number_of(ext, "queueId", least=_ALL_QUEUES, most=INT32_MAX, default=_ALL_QUEUES)
        offset = number_of(ext, "offset", least=_NO_OFFSET, most=INT64_MAX, default=_NO_OFFSET)
        if queue_id >= topic.read_queues:
            raise UsageError(f"queue {queue_id} of topic {topic.name}, which has {topic.read_queues} to read")
        if offset != _NO_OFFSET and queue_id == _ALL_QUEUES:
            raise UsageError(f"offset {offset} for every queue of topic {topic.name}", hint="name one queue")
        wanted = range(topic.read_queues) if queue_id == _ALL_QUEUES else (queue_id,)
        return {number: self._place(topic.queues[number], time_ms, offset) for number in wanted}

    def _place(self, queue: int, time_ms: int, offset: int) -> int:
        bounds = self._tables.queue_bounds(queue)
        if offset != _NO_OFFSET:
            if not bounds.offset_min <= offset <= bounds.offset_max:
                raise UsageError(f"offset {offset} is not between {bounds.offset_min} and {bounds.offset_max}")
            return offset
        return bounds.offset_max if time_ms < 0 else self._tables.search_time(queue, time_ms)

    def _notices(
        self, group: str, topic: str, ext: Mapping[str, str], offsets: Mapping[int, int], *, is_cpp: bool
    ) -> list[Notice]:
        told = {"topic": topic, "group": group, "timestamp": ext["timestamp"], "isForce": "false"}
        name = self._settings.broker_name
        body = _queue_list(name, topic, offsets) if is_cpp else _queue_table(name, topic, offsets)
        return [
            Notice(origin.connection_id, Request.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": group})
            if origin.is_local
            else Notice(origin.connection_id, Request.RESET_CONSUMER_CLIENT_OFFSET, told, body)
            for origin in self._registry.origins(group)
        ]


def _queue_table(broker_name: str, topic: str, offsets: Mapping[int, int]) -> bytes:
    table: dict[MessageQueue, Any] = {
        MessageQueue(broker_name, queue_id, topic): offset for queue_id, offset in offsets.items()
    }
    return dumps({"offsetTable": table})


def _queue_list(broker_name: str, topic: str, offsets: Mapping[int, int]) -> bytes:
    """The form RocketMQ sends when the administrator's tool is written in C++."""
    return dumps(
        {
            "offsetTable": [
                {"brokerName": broker_name, "offset": offset, "queueId": queue_id, "topic": topic}
                for queue_id, offset in offsets.items()
            ]
        }
    )
