"""Group offsets and queue bounds, served from the tables in shared memory.

They are the requests 14, 15, 29, 30, 31, 32 and OFFSET_SLOTS.

Progress that a TCP client reports for its group (15, or the commit field of a pull) counts as follows:

    no local member has the queue        stored, as in RocketMQ: forward or back
    a local member owns the queue        dropped: it has the newer word, and the client has lost the queue already
    of the topic's former life           passed over: `lives.py`
    of another log, as it may be         passed over: `parted.py`
    behind the group's, from a slave     dropped: it was committed there while this broker was gone
    behind the end of the queue          refused, dropped in a pull: RocketMQ stores it, and the group then silently
                                         misses what comes next

A query never creates anything; a commit and OFFSET_SLOTS create the group and the place of its progress. What 14
answers for a group that never committed is RocketMQ's rule, on which its clients' "consume from where" rests: 0 while
the queue still starts at 0, otherwise "not found".

29 answers the first message at or after a time. When all are older: the last one to a client that names no boundary,
as to 4.9's, and the next offset to one that does, 5.x's (LOWER). UPPER is the last message not after the time.
"""

from functools import partial

import msgspec

from shmq.daemon.broker.groups.lives import Lives, QueueName, Sure
from shmq.daemon.broker.groups.parted import PartedQueues
from shmq.daemon.broker.groups.settings import GroupSettings
from shmq.daemon.broker.settings import BrokerSettings
from shmq.daemon.broker.tables import GroupProgress, committed_of
from shmq.daemon.broker.topics import find_topic
from shmq.daemon.logic.header_fields import INT32_MAX, flag_of, number_of, text_of
from shmq.daemon.logic.requests import Answer, Call, Part, serves
from shmq.errors import OffsetOutOfRange, PermissionDenied, RemoteError, UsageError
from shmq.message import check_group
from shmq.protocol.body import ONLY_FORWARD
from shmq.protocol.codes import Request, Response

_NEVER_COMMITTED = "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first"


class OffsetRequests(Part):
    """Serves offsets."""

    def __init__(
        self,
        tables: GroupProgress,
        groups: GroupSettings,
        settings: BrokerSettings,
        lives: Lives,
        parted: PartedQueues,
    ) -> None:
        self._tables = tables
        self._lives, self._parted = lives, parted
        self._groups = groups
        self._settings = settings

    def _queue_or_none(self, call: Call) -> int | None:
        """Index of the queue a request names; None where RocketMQ takes any name for an empty queue."""
        if call.connection.is_local:
            return self._queue(call)
        topic = self._tables.topic(text_of(call.ext, "topic"))
        queue_id = number_of(call.ext, "queueId", most=INT32_MAX)
        return topic.queues[queue_id] if topic is not None and queue_id < len(topic.queues) else None

    def _queue(self, call: Call) -> int:
        """Index of the queue a request names."""
        name = text_of(call.ext, "topic")
        # RocketMQ's clients commit on a deleted topic again and again.
        typed = call.connection.is_local
        topic = find_topic(self._tables, name, broker_name=self._settings.broker_name, is_typed=typed)
        queue_id = number_of(call.ext, "queueId", most=INT32_MAX)
        if queue_id >= len(topic.queues):
            error = UsageError(
                f"request queueId[{queue_id}] is illegal, topic {topic.name} has queues 0 to {len(topic.queues) - 1}"
            )
            error.code = Response.SYSTEM_ERROR  # as RocketMQ answers
            raise error
        return topic.queues[queue_id]

    @serves(Request.QUERY_CONSUMER_OFFSET)
    def _query(self, call: Call) -> Answer:
        group = text_of(call.ext, "consumerGroup")
        queue_id = number_of(call.ext, "queueId", most=INT32_MAX)
        topic = self._tables.topic(text_of(call.ext, "topic"))
        if topic is None or queue_id >= len(topic.queues):
            return _offset(0)  # RocketMQ answers 0 even for an unknown topic
        queue = topic.queues[queue_id]
        if self._parted.is_asked(call.now_ms):
            self._lives.asked(call.connection.connection_id, QueueName(group, topic.name, queue_id), queue)
        committed = committed_of(self._tables, group, queue)
        if committed >= 0:
            return _offset(committed)
        if self._tables.queue_bounds(queue).offset_min <= 0 and call.ext.get("setZeroIfNotFound") != "false":
            return _offset(0)
        raise RemoteError(Response.QUERY_NOT_FOUND, _NEVER_COMMITTED)

    @serves(Request.UPDATE_CONSUMER_OFFSET)
    def _commit(self, call: Call) -> Answer:
        queue = self._queue(call)
        queue_offset = number_of(call.ext, "commitOffset")
        name = QueueName(call.ext.get("consumerGroup", ""), call.ext["topic"], int(call.ext["queueId"]))
        sure = partial(self._sure, call, name.group, queue)
        if not self._lives.counts(call.connection.connection_id, name, queue, queue_offset, sure):
            return Answer()
        self._check_stored(call, queue, queue_offset)
        group = self._tables.group_put(check_group(text_of(call.ext, "consumerGroup")))
        if call.connection.is_local:
            self._tables.set_committed(self._tables.offset_put(group, queue), queue_offset)
        elif not flag_of(call.ext, ONLY_FORWARD) or queue_offset > committed_of(self._tables, name.group, queue):
            commit_of_remote(self._tables, group, queue, queue_offset)
        return Answer()

    def _sure(self, call: Call, group: str, queue: int) -> Sure | None:
        """Up to where an offset counts that comes before any pull.

        All do but those of members. Of slaves and other bridges they were judged there.
        """
        is_judged = call.connection.is_local or call.connection.is_of_bridge or flag_of(call.ext, ONLY_FORWARD)
        if is_judged or not self._parted.may_be_a_members(call, group):
            return None
        return self._parted.sure(self._tables.group(group), queue, call.now_ms)

    def _check_stored(self, call: Call, queue: int, queue_offset: int) -> None:
        """Refuse an offset behind the end: the group would never see the messages up to it."""
        offset_max = self._tables.queue_bounds(queue).offset_max
        if queue_offset > offset_max:
            raise OffsetOutOfRange(
                f"offset {queue_offset} is behind the end of queue {call.ext['queueId']} of {call.ext['topic']}, which "
                f"is {offset_max}",
                hint=f"0 to {offset_max}",
            )

    @serves(Request.SEARCH_OFFSET_BY_TIMESTAMP)
    def _search(self, call: Call) -> Answer:
        time_ms = number_of(call.ext, "timestamp", least=-(1 << 63))
        queue = self._queue_or_none(call)
        if queue is None:
            return _offset(0)
        boundary = call.ext.get("boundaryType", "").upper()
        is_upper = boundary == "UPPER"
        found = self._tables.search_time(queue, max(0, time_ms) + is_upper)
        if not call.connection.is_local and (is_upper or not boundary):
            bounds = self._tables.queue_bounds(queue)
            found = min(found, bounds.offset_max) - (is_upper or found >= bounds.offset_max)
            found = max(found, bounds.offset_min)
        return _offset(found)

    @serves(Request.GET_MAX_OFFSET)
    def _max(self, call: Call) -> Answer:
        queue = self._queue_or_none(call)
        return _offset(self._tables.queue_bounds(queue).offset_max if queue is not None else 0)

    @serves(Request.GET_MIN_OFFSET)
    def _min(self, call: Call) -> Answer:
        queue = self._queue_or_none(call)
        return _offset(self._tables.queue_bounds(queue).offset_min if queue is not None else 0)

    @serves(Request.GET_EARLIEST_MSG_STORETIME)
    def _earliest(self, call: Call) -> Answer:
        queue = self._queue_or_none(call)
        if queue is None:
            return Answer(ext={"timestamp": "-1"})
        return Answer(ext={"timestamp": str(self._tables.store_ms(queue, self._tables.queue_bounds(queue).offset_min))})

    @serves(Request.OFFSET_SLOTS)
    def _slots(self, call: Call) -> Answer:
        topic = find_topic(self._tables, text_of(call.ext, "topic"), broker_name=self._settings.broker_name)
        name = check_group(text_of(call.ext, "group"))
        if not self._groups.of(name).consumeEnable:
            raise PermissionDenied(
                f'group "{name}" is not allowed to consume: an administrator has disabled it',
                hint=f"mqadmin updateSubGroup -g {name} -s true",
            )
        group = self._tables.group_put(name)
        readable = topic.queues[: topic.read_queues]
        slots = [[queue_id, queue, self._tables.offset_put(group, queue)] for queue_id, queue in enumerate(readable)]
        return Answer(body=msgspec.json.encode({"slots": slots}))


def _offset(queue_offset: int) -> Answer:
    return Answer(ext={"offset": str(queue_offset)})


def commit_of_remote(tables: GroupProgress, group: int, queue: int, queue_offset: int) -> bool:
    """Store the next offset a group (by number) wants of a queue (by index); say whether it counts."""
    if queue_offset > tables.queue_bounds(queue).offset_max:
        return False
    slot = tables.offset_put(group, queue)
    if tables.offset_owned(slot):
        return False
    tables.set_committed(slot, queue_offset)
    return True
