"""Ranges of queues for readers of whole topics over TCP: READ_RANGE and DESCRIBE_QUEUES.

READ_RANGE answers with whole records as they are in the file, so one decoder makes the rows of both kinds of reader,
and a process of another host sees the same bytes as one of this host. Nothing is kept of a reader.

    DESCRIBE_QUEUES topic     {"broker", "identity", "born", "queues": [[first offset left, first not visible], …]}
    READ_RANGE [from, end)    records back to back, or with units=true ConsumeQueue units; nextOffset, offsetMin

Rules: (1) one answer is bounded in bytes and in units looked at; the reader goes on at nextOffset;
(2) nothing above the visible end is handed out, and nothing of a topic that is not the one that was planned;
(3) an offset that is gone is no failure: offsetMin is then behind it, and the body is empty.
"""

from typing import Final

import msgspec

from shmq.daemon.broker.log import Log, Ranged
from shmq.daemon.broker.settings import BrokerSettings
from shmq.daemon.broker.tables import Queues, Topic
from shmq.daemon.logic.header_fields import INT32_MAX, flag_of, number_of, text_of
from shmq.daemon.logic.requests import Answer, Call, Part, serves
from shmq.errors import ProtocolError, RemoteError
from shmq.message import PERM_READ
from shmq.protocol.codes import Request, Response
from shmq.shm.core import UNIT_BYTES

PIECE_BYTES_MAX: Final = 1 << 20
TAGS_MAX: Final = 64


class RangeRequests(Part):
    """Serves ranges."""

    def __init__(self, tables: Queues, log: Log, settings: BrokerSettings) -> None:
        self._tables = tables
        self._log = log
        self._settings = settings

    def _topic(self, call: Call) -> Topic:
        name = text_of(call.ext, "topic")
        topic = self._tables.topic(name)
        if topic is None:
            raise RemoteError(Response.TOPIC_NOT_EXIST, f"topic[{name[:127]}] not exist")
        if not topic.perm & PERM_READ:
            raise RemoteError(Response.NO_PERMISSION, f"the topic[{topic.name}] pulling message is forbidden")
        return topic

    @serves(Request.DESCRIBE_QUEUES)
    def _describe(self, call: Call) -> Answer:
        topic = self._topic(call)
        body = {
            "broker": self._settings.broker_name,
            "identity": self._settings.store_identity,
            "born": self._tables.born_position(topic.name),
            "queues": [
                (self._tables.queue_bounds(queue).offset_min, self._log.visible(queue)) for queue in topic.queues
            ],
        }
        return Answer(body=msgspec.json.encode(body))

    @serves(Request.READ_RANGE)
    def _read(self, call: Call) -> Answer:
        topic = self._topic(call)
        born = number_of(call.ext, "born", default=-1, least=-1)
        if born not in (-1, self._tables.born_position(topic.name)):
            remark = f"topic[{topic.name}] was deleted and made anew after the read was planned"
            raise RemoteError(Response.TOPIC_NOT_EXIST, remark)
        queue_id = number_of(call.ext, "queueId", most=INT32_MAX)
        if queue_id >= len(topic.queues):
            remark = f"queueId[{queue_id}] is illegal, topic:[{topic.name}] has {len(topic.queues)} queues"
            raise RemoteError(Response.SYSTEM_ERROR, remark)
        queue = topic.queues[queue_id]
        start, end = number_of(call.ext, "queueOffset"), number_of(call.ext, "queueEnd")
        if flag_of(call.ext, "units"):
            units = self._log.range_units(queue, start, end)
            first = self._tables.queue_bounds(queue).offset_min
            found = Ranged(start + len(units) // UNIT_BYTES, first, units)
        else:
            size = number_of(call.ext, "bytesMax", default=PIECE_BYTES_MAX, most=PIECE_BYTES_MAX)
            found = self._log.read_range(queue, start, end, bytes_max=size, tags=_tags(call.ext.get("tags", "")))
        ext = {"nextOffset": str(found.next_offset), "offsetMin": str(found.offset_min)}
        return Answer(ext=ext, body=found.body)


def _tags(text: str) -> list[int] | None:
    """The hashes of tags, divided by commas; None for all."""
    parts = text.split(",") if text else []
    if len(parts) > TAGS_MAX or not all(part.removeprefix("-").isdecimal() and len(part) <= 11 for part in parts):
        raise ProtocolError(f"the field tags is {text[:32]!a}; at most {TAGS_MAX} hashes are needed, divided by commas")
    return [int(part) for part in parts] or None
