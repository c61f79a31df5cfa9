"""The header of a send, under its long names (10, 324) and its short ones (310, 320, 325).

Every answer to a send, an error too, carries MSG_REGION and TRACE_ON, because RocketMQ's clients read them without
asking whether they are there.

    long     producerGroup topic defaultTopic defaultTopicQueueNums queueId sysFlag bornTimestamp flag properties
             reconsumeTimes unitMode maxReconsumeTimes batch
    short    a             b     c            d                     e       f       g             h    i
             j              k        l                 m

A field that is missing under a short name is found missing when it is used, as in RocketMQ: the topic, which is looked
at first, is then called blank.
"""

import re
from collections.abc import Mapping
from typing import NamedTuple

from shmq.errors import ProtocolError
from shmq.protocol.codes import Request, Response
from shmq.protocol.command import Command

_INT32 = range(-(1 << 31), 1 << 31)
_INT64 = range(-(1 << 63), 1 << 63)
_NUMBER = re.compile(r"[+-]?[0-9]{1,19}", re.ASCII)  # as Java's parseInt reads it
_TRUE = ("true", "1")  # the C++ client writes 1
ANSWER_EXT = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}
_SENDS = (Request.SEND_MESSAGE, Request.SEND_MESSAGE_V2, Request.SEND_BATCH_MESSAGE)


class _Names(NamedTuple):
    producer_group: str
    topic: str
    default_topic: str
    default_queues: str
    queue_id: str
    sys_flag: str
    born: str
    flag: str
    properties: str
    reconsume_times: str
    unit_mode: str
    max_reconsume_times: str
    batch: str


_LONG = _Names(
    "producerGroup",
    "topic",
    "defaultTopic",
    "defaultTopicQueueNums",
    "queueId",
    "sysFlag",
    "bornTimestamp",
    "flag",
    "properties",
    "reconsumeTimes",
    "unitMode",
    "maxReconsumeTimes",
    "batch",
)
_SHORT = _Names(*"abcdefghijklm")
_LONG_CODES = (Request.SEND_MESSAGE, Request.SEND_REPLY_MESSAGE)


class SendHeader:
    """Fields of one send; a number is read, and judged, when it is asked for."""

    __slots__ = ("_ext", "_names", "is_batch", "topic")

    def __init__(self, code: int, ext: Mapping[str, str]) -> None:
        self._ext = ext
        self._names = names = _LONG if code in _LONG_CODES else _SHORT
        self.topic = ext.get(names.topic, "")
        self.is_batch = code == Request.SEND_BATCH_MESSAGE or ext.get(names.batch, "").lower() in _TRUE

    @property
    def default_topic(self) -> str:
        """The topic whose settings a topic that does not exist is made with."""
        return self._ext.get(self._names.default_topic, "")

    @property
    def default_queues(self) -> int:
        """How many queues the client wants then."""
        return self._number(self._names.default_queues)

    @property
    def queue_id(self) -> int:
        """Negative: any."""
        return self._number(self._names.queue_id)

    @property
    def sys_flag(self) -> int:
        """Compression, transaction state."""
        return self._number(self._names.sys_flag)

    @property
    def born_ms(self) -> int:
        """When the client made the message."""
        return self._number(self._names.born, _INT64)

    @property
    def flag(self) -> int:
        """The application's own."""
        return self._number(self._names.flag)

    @property
    def properties(self) -> bytes:
        """Property text as the client wrote it."""
        return self._ext.get(self._names.properties, "").encode(errors="replace")

    @property
    def reconsume_times(self) -> int:
        """How often the message was tried; 0 when it is not said."""
        return self._number(self._names.reconsume_times, missing=0)

    @property
    def max_reconsume_times(self) -> int | None:
        """After how many tries it is dead; None leaves it to the group."""
        name = self._names.max_reconsume_times
        return self._number(name) if self._ext.get(name) else None

    @property
    def is_unit_mode(self) -> bool:
        """Whether the client belongs to a deployment unit."""
        return self._ext.get(self._names.unit_mode, "").lower() in _TRUE

    def long_fields(self) -> dict[str, str]:
        """Return the fields that are there, as texts by their long names."""
        return {long: self._ext[name] for long, name in zip(_LONG, self._names, strict=True) if name in self._ext}

    def _number(self, name: str, bounds: range = _INT32, *, missing: int | None = None) -> int:
        text = self._ext.get(name)
        if not text:
            if missing is None:
                raise ProtocolError(f"the field {name} is missing")
            return missing
        try:
            value = int(text) if len(text) <= 20 and _NUMBER.fullmatch(text) else None
        except ValueError:
            value = None
        if value is None or value not in bounds:
            raise ProtocolError(f"the field {name} is {text[:32]!a}; a number is needed")
        return value


def sent_ext(message_id: str, queue_id: str, queue_offset: str) -> dict[str, str]:
    """Return the header fields of the answer to a send that succeeded."""
    return {**ANSWER_EXT, "msgId": message_id, "queueId": queue_id, "queueOffset": queue_offset}


def refuse_long_send(command: Command, body_bytes: int, frame_bytes_max: int) -> Command:
    """Return the answer to a send whose body was too long to be kept.

    Neither topic nor account are looked at: it is refused to every sender, and a signature covers the body.

    Raises:
        ProtocolError: the command is no send, so nothing explains its length.
    """
    what = f"a message of {body_bytes} bytes; frames of {frame_bytes_max} bytes are allowed"
    if command.is_reply or command.code not in _SENDS:
        raise ProtocolError(f"command {command.code} brings {what}")
    return command.reply(Response.MESSAGE_ILLEGAL, ext=ANSWER_EXT, remark=f"the message is illegal: {what}")
