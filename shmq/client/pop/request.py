"""POP's requests as a client makes them, and their answers, whichever way they travel.

    POP_MESSAGE     one topic, any queue; answered with records, and on this host with places of the log before them
    (BATCH_)ACK     the receipts of any number of pops of one broker together
    CHANGE          one receipt; answered with what the next one is made of

Rule: a receipt is what the broker said with the message, or what the fields of its answer make.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

from shmq.client.spec import ConsumerSpec
from shmq.client.wire import Question
from shmq.errors import ProtocolError
from shmq.message import POP_NORMAL, popped_topic
from shmq.protocol.body import encode_body
from shmq.protocol.codes import Request, Response
from shmq.protocol.command import Command
from shmq.protocol.failure import number_in, reply_of
from shmq.protocol.pop import PLACE_BYTES, BatchAck, BatchAcks, Receipt, bit_set, parse_start_offsets, read_places

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
    spec: ConsumerSpec, broker: str, *, count: int, invisible: float, hold: float, wants_places: bool
) -> Question:
    """Return POP_MESSAGE; `invisible` and `hold` are seconds."""
    ext = {
        "consumerGroup": spec.group or "",
        "topic": spec.topic,
        "queueId": str(ANY_QUEUE),
        "maxMsgNums": str(count),
        "invisibleTime": str(math.ceil(invisible * 1000)),
        "pollTime": str(round(hold * 1000)),
        "bornTime": str(round(time.time() * 1000)),
        "initMode": str(FROM_FIRST),
        "expType": spec.wanted.kind,
        "exp": spec.wanted.expression,
        "order": "false",
        "bname": broker,
    }
    if wants_places:
        ext["places"] = "true"
    return Question(broker, Request.POP_MESSAGE, ext)


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


def ack_request(spec: ConsumerSpec, broker: str, receipts: Sequence[Receipt]) -> Question:
    """Return ACK_MESSAGE of one message, or BATCH_ACK_MESSAGE of several; all are of one broker."""
    if len(receipts) == 1:
        return Question(broker, Request.ACK_MESSAGE, _settling_fields(spec, receipts[0]))
    pops: dict[Receipt, list[int]] = {}
    for receipt in receipts:
        pops.setdefault(receipt.pop, []).append(receipt.offset)
    acks = [
        BatchAck(
            c=spec.group or "",
            t=spec.topic,
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
    return Question(broker, Request.BATCH_ACK_MESSAGE, {"bname": broker}, body)


def change_request(spec: ConsumerSpec, receipt: Receipt, seconds: float) -> Question:
    """Return CHANGE_MESSAGE_INVISIBLETIME: hide a message for `seconds` from now."""
    ext = _settling_fields(spec, receipt) | {"invisibleTime": str(math.ceil(seconds * 1000))}
    return Question(receipt.broker, Request.CHANGE_MESSAGE_INVISIBLETIME, ext)


def _settling_fields(spec: ConsumerSpec, receipt: Receipt) -> dict[str, str]:
    return {
        "consumerGroup": spec.group or "",
        "topic": popped_topic(spec.group or "", spec.topic, receipt.retry_flag),
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
