"""POP on the wire: receipt handles, the lists of offsets in a reply, and batches of acknowledgements.

The broker and our own client share these texts.

    receipt handle      first offset of the pop, pop time, invisible time, revive queue, retry flag, broker, queue id,
                        offset; eight words with one blank between them. It travels as the property POP_CK.
    startOffsetInfo     "<retry flag> <queue id> <first offset>;…"
    msgOffsetInfo       "<retry flag> <queue id> <offset>,<offset>,…;…"
    orderCountInfo      "<retry flag> qo<queue id>%<offset> <tries>;…", and "<retry flag> <queue id> <tries>"

    retry flag          which topic a message lies in: `shmq.message.popped_topic`

A process of the broker's host may ask for places instead of records, with the field `places` "true". The answer's field
`places` says how many there are; they stand before the records, 8 bytes each: the log position, big-endian.

A client's requests, whichever way they travel:

    POP_MESSAGE     one topic, any queue; answered with records, and on this host with places of the log before them
    (BATCH_)ACK     the receipts of any number of pops of one broker together
    CHANGE          one receipt; answered with what the next one is made of

Invariants:
 1. `parse_receipt(str(handle)) == handle`; a text that is no handle raises ProtocolError, whatever it holds.
 2. A reply has one entry for each queue it holds messages of.
"""

from __future__ import annotations

import base64
import binascii
import math
import re
import struct
import time
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

import msgspec

from shmq.errors import ProtocolError
from shmq.message import POP_NORMAL, popped_topic
from shmq.protocol.body import encode_body
from shmq.protocol.codes import Request, Response
from shmq.protocol.command import Command
from shmq.protocol.failure import number_in, reply_of

RECEIPT_PROPERTY = "POP_CK"
FIRST_POP_PROPERTY = "1ST_POP_TIME"
REVIVE_TOPIC_PREFIX = "rmq_sys_REVIVE_LOG_"  # the cluster's name follows; only brokers write there
ORDER_REVIVE_QUEUE = 999  # says in a receipt that the pop was an ordered one
POP_COUNT_MAX = 32  # of one pop, as in RocketMQ: its checkpoints are bitmaps of 32
INVISIBLE_MS_MAX = 7 * 24 * 3600 * 1000
PLACE_BYTES = 8

_RETRY_FLAGS = ("0", "1", "2")
_NUMBER = re.compile(r"[0-9]{1,18}", re.ASCII)
_WORDS = 8
_BITSET_BYTES_MAX = 64  # 512 offsets; a pop has 32


class Receipt(NamedTuple):
    """The receipt that settles one popped message. `first_offset` is the offset its pop began at."""

    first_offset: int
    pop_ms: int
    invisible_ms: int
    revive_queue: int
    retry_flag: str
    broker: str
    queue_id: int
    offset: int

    def __str__(self) -> str:
        return " ".join(map(str, self))

    @property
    def is_ordered(self) -> bool:
        """Whether the message was popped in order."""
        return self.revive_queue == ORDER_REVIVE_QUEUE

    @property
    def pop(self) -> Receipt:
        """The common part of all receipts of one pop of one queue."""
        return self._replace(offset=0)

    def of(self, offset: int) -> Receipt:
        """Return the receipt of another message of the same pop."""
        return self._replace(offset=offset)


def parse_receipt(text: str) -> Receipt:
    """Return the receipt a text stands for.

    Raises:
        ProtocolError: it is none.
    """
    words = text.split(" ")
    numbers = words[:4] + words[6:]
    if len(words) != _WORDS or not all(map(_NUMBER.fullmatch, numbers)) or words[4] not in _RETRY_FLAGS:
        raise ProtocolError(f"{text[:128]!a} is no receipt handle")
    first, pop_ms, invisible_ms, revive_queue = map(int, words[:4])
    return Receipt(first, pop_ms, invisible_ms, revive_queue, words[4], words[5], int(words[6]), int(words[7]))


class Popped(NamedTuple):
    """The part of a pop from one queue. `tries` are those of ordered messages that were popped before."""

    retry_flag: str
    queue_id: int
    first_offset: int
    offsets: Sequence[int]
    tries: Mapping[int, int] = {}


def offset_fields(queues: Sequence[Popped], *, is_ordered: bool = False) -> dict[str, str]:
    """Return the header fields that tell a client which offsets it got."""
    fields = {
        "startOffsetInfo": ";".join(f"{q.retry_flag} {q.queue_id} {q.first_offset}" for q in queues),
        "msgOffsetInfo": ";".join(f"{q.retry_flag} {q.queue_id} {','.join(map(str, q.offsets))}" for q in queues),
    }
    if is_ordered:
        fields["orderCountInfo"] = ";".join(entry for queue in queues for entry in _counts(queue))
    return fields


def _counts(queue: Popped) -> Iterable[str]:
    for offset, tries in queue.tries.items():
        yield f"{queue.retry_flag} qo{queue.queue_id}%{offset} {tries}"
    least = min((queue.tries.get(offset, 0) for offset in queue.offsets), default=0)
    yield f"{queue.retry_flag} {queue.queue_id} {least}"


def parse_start_offsets(text: str) -> dict[tuple[str, int], int]:
    """Return the first offsets of a reply by retry flag and queue id.

    Raises:
        ProtocolError: the text is not of this form.
    """
    return {(flag, _number(queue)): _number(value) for flag, queue, value in _entries(text)}


def _entries(text: str) -> Iterable[list[str]]:
    for entry in text.split(";") if text else ():
        words = entry.split(" ")
        if len(words) != 3:
            raise ProtocolError(f"{entry[:64]!a} is no entry of offsets")
        yield words


def _number(text: str) -> int:
    if not _NUMBER.fullmatch(text):
        raise ProtocolError(f"{text[:32]!a} is no offset")
    return int(text)


def encode_places(log_positions: Sequence[int]) -> bytes:
    """Return places as they stand before the records of an answer."""
    return struct.pack(f">{len(log_positions)}Q", *log_positions)


def read_places(body: bytes, count: int) -> Sequence[int]:
    """Return the log positions an answer begins with.

    Raises:
        ProtocolError: it has not so many.
    """
    if count * PLACE_BYTES > len(body):
        raise ProtocolError(f"an answer of {len(body)} bytes has no {count} places")
    return struct.unpack_from(f">{count}Q", body)


class BatchAck(msgspec.Struct):
    """Some messages of one pop in the body of BATCH_ACK_MESSAGE, under the wire's short names."""

    c: str = ""
    t: str = ""
    r: str = "0"
    so: int = 0
    q: int = 0
    rq: int = 0
    pt: int = 0
    it: int = 0
    b: str | None = None

    @property
    def offsets(self) -> list[int]:
        """The offsets that are acknowledged.

        Raises:
            ProtocolError: the set of bits is none.
        """
        try:
            bits = base64.b64decode(self.b or "", validate=True)
        except (binascii.Error, ValueError) as error:
            raise ProtocolError(f"the set of acknowledged offsets is no base64: {error}") from error
        if len(bits) > _BITSET_BYTES_MAX:
            raise ProtocolError(f"a set of {8 * len(bits)} acknowledged offsets; a pop has {POP_COUNT_MAX}")
        number = int.from_bytes(bits, "little")
        return [self.so + bit for bit in range(number.bit_length()) if number >> bit & 1]


class BatchAcks(msgspec.Struct):
    """Body of BATCH_ACK_MESSAGE."""

    brokerName: str | None = None
    acks: list[BatchAck] | None = None


def bit_set(first_offset: int, offsets: Iterable[int]) -> str:
    """Return offsets as the base64 text of a set of bits that begins at `first_offset`."""
    number = 0
    for offset in offsets:
        number |= 1 << (offset - first_offset)
    return base64.b64encode(number.to_bytes((number.bit_length() + 7) // 8, "little")).decode()


# ---- requests as a client makes them, and their answers ------------------------------------------------------------

FROM_FIRST: Final = 0
ANY_QUEUE: Final = -1
NOTHING: Final = (Response.PULL_NOT_FOUND, Response.POLLING_TIMEOUT, Response.POLLING_FULL)


class Batch(NamedTuple):
    """The answer to a pop: `places` are log positions; `body` holds records. Both are empty when that was nothing."""

    body: bytes = b""
    places: Sequence[int] = ()
    first_offsets: Mapping[tuple[str, int], int] = MappingProxyType({})
    pop_ms: int = 0
    invisible_ms: int = 0
    revive_queue: int = 0
    rest: int = 0

    def pops(self, broker_name: str) -> dict[int, Receipt]:
        """Return by queue id what the receipts of messages that came without one have in common."""
        return {
            queue_id: Receipt(
                first, self.pop_ms, self.invisible_ms, self.revive_queue, POP_NORMAL, broker_name, queue_id, 0
            )
            for (flag, queue_id), first in self.first_offsets.items()
            if flag == POP_NORMAL
        }


def pop_of(pops: Mapping[int, Receipt], queue_id: int) -> Receipt:
    """Return the pop of a queue; raises ProtocolError when the answer does not speak of it."""
    found = pops.get(queue_id)
    if found is None:
        raise ProtocolError(f"the answer to a pop does not say where queue {queue_id} begins")
    return found


def pop_request(
    group: str,
    topic: str,
    selection: tuple[str, str],
    *,
    broker: str,
    count: int,
    invisible: float,
    hold: float,
    wants_places: bool,
) -> Command:
    """Return POP_MESSAGE; `selection` is a subscription's type and text, `invisible` and `hold` are seconds."""
    ext = {
        "consumerGroup": group,
        "topic": topic,
        "queueId": str(ANY_QUEUE),
        "maxMsgNums": str(count),
        "invisibleTime": str(math.ceil(invisible * 1000)),
        "pollTime": str(round(hold * 1000)),
        "bornTime": str(round(time.time() * 1000)),
        "initMode": str(FROM_FIRST),
        "expType": selection[0],
        "exp": selection[1],
        "order": "false",
        "bname": broker,
    }
    if wants_places:
        ext["places"] = "true"
    return Command(code=Request.POP_MESSAGE, ext=ext)


def batch_of(reply: Command) -> Batch:
    """Read the answer to a pop.

    Raises:
        ShmqError: the broker refused; the type says why.
        ProtocolError: it is no such answer.
    """
    if reply.code in NOTHING:
        return Batch()
    reply_of(reply)  # raises what was refused
    count = number_of(reply, "places") if "places" in reply.ext else 0
    return Batch(
        reply.body[count * PLACE_BYTES :],
        read_places(reply.body, count),
        parse_start_offsets(reply.ext.get("startOffsetInfo", "")),
        number_of(reply, "popTime"),
        number_of(reply, "invisibleTime"),
        number_of(reply, "reviveQid"),
        number_of(reply, "restNum"),
    )


def ack_request(group: str, topic: str, broker: str, receipts: Sequence[Receipt]) -> Command:
    """Return ACK_MESSAGE of one message, or BATCH_ACK_MESSAGE of several; all are of one broker."""
    if len(receipts) == 1:
        return Command(code=Request.ACK_MESSAGE, ext=_settling_fields(group, topic, receipts[0]))
    pops: dict[Receipt, list[int]] = {}
    for receipt in receipts:
        pops.setdefault(receipt.pop, []).append(receipt.offset)
    acks = [
        BatchAck(
            c=group,
            t=topic,
            r=pop.retry_flag,
            so=pop.first_offset,
            q=pop.queue_id,
            rq=pop.revive_queue,
            pt=pop.pop_ms,
            it=pop.invisible_ms,
            b=bit_set(pop.first_offset, offsets),
        )
        for pop, offsets in pops.items()
    ]
    body = encode_body(BatchAcks(brokerName=broker, acks=acks))
    return Command(code=Request.BATCH_ACK_MESSAGE, ext={"bname": broker}, body=body)


def change_request(group: str, topic: str, receipt: Receipt, seconds: float) -> Command:
    """Return CHANGE_MESSAGE_INVISIBLETIME: hide a message for `seconds` from now."""
    ext = _settling_fields(group, topic, receipt) | {"invisibleTime": str(math.ceil(seconds * 1000))}
    return Command(code=Request.CHANGE_MESSAGE_INVISIBLETIME, ext=ext)


def _settling_fields(group: str, topic: str, receipt: Receipt) -> dict[str, str]:
    return {
        "consumerGroup": group,
        "topic": popped_topic(group, topic, receipt.retry_flag),
        "queueId": str(receipt.queue_id),
        "offset": str(receipt.offset),
        "extraInfo": str(receipt),
        "bname": receipt.broker,
    }


def new_receipt(reply: Command, receipt: Receipt) -> Receipt:
    """Return the receipt that the answer to CHANGE_MESSAGE_INVISIBLETIME makes of the one before."""
    return receipt._replace(
        first_offset=receipt.first_offset if receipt.is_ordered else receipt.offset,
        pop_ms=number_of(reply, "popTime"),
        invisible_ms=number_of(reply, "invisibleTime"),
    )


def number_of(reply: Command, name: str) -> int:
    """Return a field of an answer that is a number, and raise ProtocolError when it is none."""
    return number_in("the answer to a pop", reply.ext, name)
