"""The records of POP's state, in the topic rmq_sys_REVIVE_LOG_<cluster>.

It is the form of the records: their tags and bodies.

    tag     body (JSON)                                                  meaning
    ck      so pt it bm n q t c d bn   as RocketMQ's PopCheckPoint       these offsets were handed out, until pt + it
    ack     ao so pt q t c bn          as RocketMQ's AckMsg              one of them is settled
    bAck    aol so pt q t c bn         as RocketMQ's BatchAckMsg         some of them are settled
    ord     c t q a pt it o cm oc ot   RocketMQ: consumerOrderInfo.json  the last ordered pop of a queue
    mode    c t mode n                 RocketMQ: messageRequestMode.json how a group asks for a topic's messages

RocketMQ reads its own three and passes over the others, so a broker of either kind goes on with what the other left.
"""

from typing import ClassVar, NamedTuple

import msgspec

from shmq.protocol.pop import POP_COUNT_MAX
from shmq.typed_json import decode_json

REVIVE_GROUP = "CID_RMQ_SYS_REVIVE_GROUP"
REVIVE_KNOWN_GROUP = "CID_RMQ_SYS_REVIVE_KNOWN"
"""Its offset in a new master's own revive queue is that of the first pop without reported progress; the group
is gone once POP has begun."""
REVIVE_QUEUES = 8
OWN_QUEUE = 0  # the others are read for what a RocketMQ broker left there

_OFFSET_MAX = 1 << 62


class PopKey(NamedTuple):
    """Names one checkpoint. `topic` is where the messages lie: the retry topic, for those that came again."""

    group: str
    topic: str
    queue_id: int
    first_offset: int
    pop_ms: int


class QueueKey(NamedTuple):
    """One queue of one group."""

    group: str
    topic: str
    queue_id: int


class CheckpointRecord(msgspec.Struct):
    """Offsets that were handed out: `so` + each of `d`; a bit of `bm` says that one is settled."""

    so: int
    pt: int
    it: int
    q: int
    t: str
    c: str
    d: list[int]
    bm: int = 0
    n: int = 0
    ro: int = 0
    bn: str = ""

    tag: ClassVar[str] = "ck"

    @property
    def key(self) -> PopKey:
        """The key of this checkpoint."""
        return PopKey(self.c, self.t, self.q, self.so, self.pt)


class AckRecord(msgspec.Struct):
    """Offsets of one checkpoint that are settled: `ao`, or all of `aol`."""

    so: int
    pt: int
    q: int
    t: str
    c: str
    ao: int = -1
    aol: list[int] = []
    bn: str = ""

    @property
    def tag(self) -> str:
        """The tag of the one of RocketMQ's two forms."""
        return "bAck" if self.aol else "ack"

    @property
    def key(self) -> PopKey:
        """The key of its checkpoint."""
        return PopKey(self.c, self.t, self.q, self.so, self.pt)


class OrderRecord(msgspec.Struct):
    """The last ordered pop of a queue: offsets `o`, settled bits `cm`, tries `oc`, times of single messages `ot`."""

    c: str
    t: str
    q: int
    pt: int
    it: int
    o: list[int]
    cm: int = 0
    a: str = ""
    oc: dict[int, int] = {}
    ot: dict[int, int] = {}

    tag: ClassVar[str] = "ord"

    @property
    def key(self) -> QueueKey:
        """The key of queue and group."""
        return QueueKey(self.c, self.t, self.q)


class ModeRecord(msgspec.Struct):
    """A group's mode of consuming a topic; `n` is RocketMQ's popShareQueueNum."""

    c: str
    t: str
    mode: str
    n: int = 0

    tag: ClassVar[str] = "mode"

    @property
    def key(self) -> tuple[str, str]:
        """Group and topic."""
        return self.c, self.t


Record = CheckpointRecord | AckRecord | OrderRecord | ModeRecord

_encoder = msgspec.json.Encoder()
_KINDS: dict[str, type[Record]] = {
    "ck": CheckpointRecord,
    "ack": AckRecord,
    "bAck": AckRecord,
    "ord": OrderRecord,
    "mode": ModeRecord,
}


def encode_record(record: Record) -> bytes:
    """Return the body of a record."""
    return _encoder.encode(record)


def decode_record(tag: str, body: bytes) -> Record | None:
    """Return the record a body holds; None for one of another kind, and for what cannot be."""
    kind = _KINDS.get(tag)
    if kind is None:
        return None
    try:
        record = decode_json(body, kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return record if _is_possible(record) else None


def _is_possible(record: Record) -> bool:
    """Any process that may append may have written it."""
    if isinstance(record, CheckpointRecord):
        return len(record.d) <= POP_COUNT_MAX and _offsets_fit([record.so, *(record.so + step for step in record.d)])
    if isinstance(record, OrderRecord):
        return 0 < len(record.o) <= POP_COUNT_MAX and _offsets_fit(record.o)
    return True


def _offsets_fit(offsets: list[int]) -> bool:
    return all(0 <= offset < _OFFSET_MAX for offset in offsets)
