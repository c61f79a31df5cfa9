"""Serves the bounds of queues and the progress of groups, and resets that progress.

They are the requests 202, 208, 303, 308, 314, 317 and 43, and the reset, 222.

Offsets are those in shared memory, so what local members acknowledged is in every answer. A request that would list
more than `list_entries_max` queues is refused, with the way to ask for less.

A reset writes the new offsets, whether or not members are online, as RocketMQ 5 does. A member that is online would
write its own place over them: one over TCP gets the new place (220); a local one is asked to share anew (40), loses its
queue, and reads on from the group's offset when it takes the queue again.

    timestamp -1       the end of each queue           isForce false    no offset goes forward
    timestamp t        the first message from then on
    queueId, offset    one queue, one place            (RocketMQ 5)
"""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from shmq.daemon.broker.groups.registry import GroupRegistry
from shmq.daemon.broker.settings import BrokerSettings
from shmq.daemon.broker.statistics.queue_index import QueueIndex
from shmq.daemon.broker.statistics.statistics import Statistics
from shmq.daemon.broker.tables import Tables, Topic
from shmq.daemon.logic.header_fields import INT32_MAX, INT64_MAX, flag_of, number_of, text_of
from shmq.daemon.logic.requests import Answer, Call, Notice, Part, serves
from shmq.errors import FlowControl, RemoteError, TopicNotFound, UsageError
from shmq.message import check_consumer_group, check_group
from shmq.progress import Backlog
from shmq.protocol.admin_body import OffsetWrapper, QueueTimeSpan, QueueTimeSpans, TopicOffset
from shmq.protocol.body import LOG_END, TABLES_VERSION, encode_body
from shmq.protocol.codes import Language, Request, Response, TopicKind
from shmq.protocol.dialect import MessageQueue, dumps
from shmq.protocol.system_topics.pop_records import QueueKey

_OFFSET_AHEAD = (1 << 63) - 1  # RocketMQ's answer for a queue on which the compared group is ahead
_SEPARATORS = re.compile("[;,]")
_ALL_QUEUES = -1
_THE_END_MS = -1  # RocketMQ's word for it; any other time before 1970 is before the first message
_NO_OFFSET = -1


class ProgressRequests(Part):
    """Serves bounds of queues and progress of groups."""

    def __init__(
        self,
        tables: Tables,
        registry: GroupRegistry,
        queues: QueueIndex,
        statistics: Statistics,
        settings: BrokerSettings,
        popped: Callable[[], Mapping[QueueKey, int]],
    ) -> None:
        self._tables = tables
        self._registry = registry
        self._queues = queues
        self._statistics = statistics
        self._settings = settings
        self._popped = popped

    def _topic(self, name: str) -> Topic:
        topic = self._tables.topic(name)
        if topic is None:
            raise TopicNotFound(f"topic[{name[:127]}] not exist")
        return topic

    def _queue_key(self, topic: str, queue_id: int) -> MessageQueue:
        return MessageQueue(self._settings.broker_name, queue_id, topic)

    @serves(Request.GET_TOPIC_STATS_INFO)
    def _topic_stats(self, call: Call) -> Answer:
        topic = self._topic(text_of(call.ext, "topic"))
        table = {}
        for queue_id, queue in enumerate(topic.queues[: topic.write_queues]):
            least, most = self._tables.queue_bounds(queue)
            stored_ms = self._tables.store_ms(queue, most - 1) if most > least else 0
            table[self._queue_key(topic.name, queue_id)] = TopicOffset(least, most, max(0, stored_ms))
        tps = self._statistics.tps("TOPIC_PUT_NUMS", topic.name)
        return Answer(body=dumps({"offsetTable": table, "topicPutTps": tps}))

    # -- progress of groups

    @serves(Request.GET_CONSUME_STATS)
    def _consume_stats(self, call: Call) -> Answer:
        group = text_of(call.ext, "consumerGroup")
        asked = call.ext.get("topic") or call.ext.get("topicList") or ""
        names = [name for name in _SEPARATORS.split(asked) if name] or self._queues.topics_of(group)
        topics = self._read_by(group, names)
        self._check_size(sum(topic.read_queues for topic in topics), "ask for one topic of the group")
        table: dict[MessageQueue, OffsetWrapper] = {}
        for topic in topics:
            table |= self._wrappers(group, topic)
        return Answer(body=dumps({"consumeTps": self._get_tps(group, topics), "offsetTable": table}))

    def _read_by(self, group: str, names: Iterable[str]) -> list[Topic]:
        """The topics that exist and that the group, if it has members, still subscribes to."""
        online = self._registry.consumer_group(group)
        subscribed = online.table if online is not None else {}
        topics = (self._tables.topic(name) for name in dict.fromkeys(names) if not subscribed or name in subscribed)
        return [topic for topic in topics if topic is not None]

    def _wrappers(self, group: str, topic: Topic) -> dict[MessageQueue, OffsetWrapper]:
        committed, popped = self._queues.topic_progress(group, topic), self._popped()
        table = {}
        for queue_id, queue in enumerate(topic.queues[: topic.read_queues]):
            consumed = committed.get(queue_id, 0)
            last_ms = self._tables.store_ms(queue, consumed - 1) if consumed > 0 else 0
            table[self._queue_key(topic.name, queue_id)] = OffsetWrapper(
                brokerOffset=self._tables.queue_bounds(queue).offset_max,
                consumerOffset=consumed,
                lastTimestamp=max(0, last_ms),
                pullOffset=consumed,
                popped=popped.get(QueueKey(group, topic.name, queue_id), 0),
            )
        return table

    def _get_tps(self, group: str, topics: Iterable[Topic]) -> float:
        return sum((self._statistics.tps("GROUP_GET_NUMS", f"{topic.name}@{group}") for topic in topics), 0.0)

    @serves(Request.GET_BROKER_CONSUME_STATS)
    def _broker_stats(self, call: Call) -> Answer:
        ordered_only = flag_of(call.ext, "isOrder")
        found: list[dict[str, Any]] = []
        behind = entries = 0
        for group in sorted(self._tables.groups()):
            stats = []
            for topic in self._read_by(group, self._queues.topics_of(group)):
                if ordered_only and topic.kind != TopicKind.FIFO:
                    continue
                entries += topic.read_queues
                self._check_size(entries, "ask group by group")
                table = self._wrappers(group, topic)
                for entry in table.values():  # RocketMQ's sum of differences, which knows no first stored offset
                    behind += Backlog(entry.consumerOffset, 0, entry.brokerOffset).waiting
                stats.append({"consumeTps": self._get_tps(group, [topic]), "offsetTable": table})
            found.append({group: stats})
        address = str(call.connection.local or "")
        body = {"brokerAddr": address, "consumeStatsList": found, "totalDiff": behind, "totalInflightDiff": 0}
        return Answer(body=dumps(body))

    @serves(Request.QUERY_CONSUME_TIME_SPAN)
    def _time_spans(self, call: Call) -> Answer:
        topic = self._topic(text_of(call.ext, "topic"))
        committed = self._queues.topic_progress(text_of(call.ext, "group"), topic)
        wall_ms = self._tables.clock_ms
        spans = []
        for queue_id, queue in enumerate(topic.queues[: topic.read_queues]):
            least, most = self._tables.queue_bounds(queue)
            consumed = committed.get(queue_id, 0)
            first_ms = self._tables.store_ms(queue, least)
            next_ms = self._tables.store_ms(queue, max(consumed, least)) if consumed < most else -1
            spans.append(
                QueueTimeSpan(
                    messageQueue=self._queue_key(topic.name, queue_id),
                    minTimeStamp=first_ms,
                    maxTimeStamp=self._tables.store_ms(queue, most - 1),
                    consumeTimeStamp=self._tables.store_ms(queue, consumed - 1) if consumed > 0 else first_ms,
                    delayTime=max(0, wall_ms - next_ms) if next_ms >= 0 else 0,
                )
            )
        return Answer(body=encode_body(QueueTimeSpans(spans)))

    # -- offsets of several groups

    @serves(Request.QUERY_CORRECTION_OFFSET)
    def _correction(self, call: Call) -> Answer:
        topic = self._topic(text_of(call.ext, "topic"))
        left_out = set(_SEPARATORS.split(call.ext.get("filterGroups", "")))
        least: dict[int, int] = {}
        for group in self._queues.groups_of(topic):
            if group in left_out:
                continue
            for queue_id, committed in self._queues.topic_progress(group, topic).items():
                if committed >= self._tables.queue_bounds(topic.queues[queue_id]).offset_min:
                    least[queue_id] = min(committed, least.get(queue_id, committed))
        compared = self._queues.topic_progress(text_of(call.ext, "compareGroup"), topic)
        for queue_id, committed in compared.items():
            if committed > least.get(queue_id, committed):
                least[queue_id] = _OFFSET_AHEAD
        return Answer(body=dumps({"correctionOffsets": least}))

    @serves(Request.CLONE_GROUP_OFFSET)
    def _clone(self, call: Call) -> Answer:
        source = text_of(call.ext, "srcGroup")
        target = text_of(call.ext, "destGroup")
        if target not in self._tables.groups():
            check_consumer_group(target)
        asked = call.ext.get("topic", "")
        names = [asked] if asked else self._queues.topics_of(source)
        topics = [topic for name in names if (topic := self._tables.topic(name)) is not None]
        if not flag_of(call.ext, "offline"):
            topics = self._read_by(source, [topic.name for topic in topics])
        self._check_size(sum(topic.read_queues for topic in topics), "clone topic by topic")
        places = [  # all of them first, as for a reset
            (self._tables.offset_put(self._tables.group_put(target), topic.queues[queue_id]), committed)
            for topic in topics
            for queue_id, committed in self._queues.topic_progress(source, topic).items()
        ]
        for slot, committed in places:
            self._tables.set_committed(slot, committed)
        return Answer()

    @serves(Request.GET_ALL_CONSUMER_OFFSET)
    def _all_offsets(self, call: Call) -> Answer:
        table: dict[str, dict[int, int]] = {}
        entries = 0
        for group in self._tables.groups():
            for progress in self._queues.progress(group):
                entries += 1
                self._check_size(entries, "ask group by group")
                table.setdefault(f"{progress.topic}@{group}", {})[progress.queue_id] = progress.committed
        body = dumps({"offsetTable": table})
        if LOG_END not in call.ext:
            return Answer(body=body)
        # Behind the table: what its words tell of lies below, and a slave believes them once it has that.
        log_end, version = self._tables.facts().log_end, self._tables.version
        return Answer(body=body, ext={LOG_END: str(log_end), TABLES_VERSION: str(version)})

    def _check_size(self, entries: int, hint: str) -> None:
        most = self._settings.list_entries_max
        if entries > most:
            raise FlowControl(f"the answer would list more than {most} queues", hint=hint)

    # -- resets

    @serves(Request.INVOKE_BROKER_TO_RESET_OFFSET)
    def _reset(self, call: Call) -> Answer:
        ext = call.ext
        group, name = check_group(text_of(ext, "group")), text_of(ext, "topic")
        topic = self._tables.topic(name)
        if topic is None:
            raise RemoteError(Response.TOPIC_NOT_EXIST, f"Topic {name[:127]} does not exist")
        if self._tables.group(group) is None:
            raise RemoteError(Response.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {group} does not exist")
        offsets = self._reset_places(topic, ext)
        if not flag_of(ext, "isForce"):
            committed = self._queues.topic_progress(group, topic)
            offsets = {queue: min(offset, committed.get(queue, offset)) for queue, offset in offsets.items()}
        index = self._tables.group_put(group)
        # All places first: there may be no room for one, and members must not hear of a reset that failed.
        slots = {self._tables.offset_put(index, topic.queues[queue_id]): offset for queue_id, offset in offsets.items()}
        for slot, offset in slots.items():
            self._tables.offset_free(slot)
            self._tables.set_committed(slot, offset)
        notices = self._notices(group, name, ext, offsets, is_cpp=call.command.language == Language.CPP)
        return Answer(body=_queue_table(self._settings.broker_name, name, offsets), notices=notices)

    def _reset_places(self, topic: Topic, ext: Mapping[str, str]) -> dict[int, int]:
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
        return bounds.offset_max if time_ms == _THE_END_MS else self._tables.search_time(queue, time_ms)

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
