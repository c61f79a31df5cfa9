"""What is sent over TCP: one message, or one batch, as the request that stores it in any queue of its topic.

    single    ─┐
    batches   ─┼─▶ Outgoing ──send_command──▶ Command
    halves    ─┘

Invariants:
    1. A batch is one request up to what RocketMQ stores at once: it is stored as a whole or not at all.
    2. Batches are not compressed, as RocketMQ's are not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from shmq.client.keywords import DEFAULT_PRODUCER_GROUP, body_of
from shmq.client.wire_tcp.route import DEFAULT_TOPIC_QUEUES
from shmq.errors import MessageTooLarge
from shmq.message import check_topic
from shmq.properties import encode_properties
from shmq.protocol.batch_body import entries_of, pack_entry
from shmq.protocol.codes import Request
from shmq.protocol.command import FLAG_ONEWAY, Command
from shmq.protocol.compression import compress
from shmq.protocol.message_id import UniqueIds
from shmq.protocol.route import DEFAULT_TOPIC
from shmq.shm.core import BODY_BYTES_MAX

BATCH_BYTES_MAX: Final = (4 << 20) - 64
"""Bytes of the records that one batch request becomes, which a broker stores as a whole: RocketMQ's bound, less the end
of a log file of that size."""
RECORD_EXTRA_BYTES: Final = 300
"""Bytes of a record, at most, beside body, topic and properties, with those that brokers add."""
BATCH_COUNT_MAX: Final = 512
"""Messages of one batch request: the ids in its answer have to fit one header field."""


class Outgoing(NamedTuple):
    """One message, or one batch, ready to be sent to any queue of its topic."""

    topic: str
    body: Any
    properties: str
    flag: int
    sys_flag: int
    message_ids: tuple[str, ...]
    born_ms: int
    is_batch: bool = False


def single(
    ids: UniqueIds, now_ms: int, compression: str, topic: str, body: Any, flag: int, properties: dict[str, str]
) -> Outgoing:
    """Return one message ready to be sent."""
    message_id = ids.next(now_ms)
    data, sys_flag = compress(body_of(body), compression)
    text = encode_properties({**properties, "UNIQ_KEY": message_id, "WAIT": "true"})
    return Outgoing(check_topic(topic), data, text, _signed(flag), sys_flag, (message_id,), now_ms)


def batches(
    ids: UniqueIds, now_ms: int, topic: str, bodies: Sequence[Any], each: Sequence[dict[str, str]]
) -> list[Outgoing]:
    """Return the requests that carry `bodies`, in order; `each` holds the properties of each body."""
    check_topic(topic)
    made: list[Outgoing] = []
    pieces: list[bytes] = []
    found: list[str] = []
    size = 0
    for body, properties in zip(bodies, each, strict=True):
        message_id = ids.next(now_ms)
        text = encode_properties({**properties, "UNIQ_KEY": message_id, "WAIT": "true"})
        entry = pack_entry(body_of(body), text.encode())
        stored = len(entry) + len(topic) + RECORD_EXTRA_BYTES
        if pieces and (size + stored > BATCH_BYTES_MAX or len(pieces) >= BATCH_COUNT_MAX):
            made.append(_batch(topic, pieces, found, now_ms))
            pieces, found, size = [], [], 0
        pieces.append(entry)
        found.append(message_id)
        size += stored
    if pieces:
        made.append(_batch(topic, pieces, found, now_ms))
    return made


def _batch(topic: str, pieces: list[bytes], ids: list[str], now_ms: int) -> Outgoing:
    body = b"".join(pieces)
    if len(body) > BODY_BYTES_MAX:  # one message so long that the fields around it do not fit
        raise MessageTooLarge(f"a batch of {len(body)} bytes is longer than {BODY_BYTES_MAX}", hint="use send()")
    text = encode_properties({"WAIT": "true"})  # brokers add these to every message of the batch
    return Outgoing(topic, body, text, 0, 0, tuple(ids), now_ms, is_batch=True)


def halves(batch: Outgoing) -> tuple[Outgoing, Outgoing]:
    """Return a batch of at least two messages as two batches, one behind the other, that have about as many bytes."""
    starts = [entry.start for entry in entries_of(batch.body)][1:]
    count, start = min(enumerate(starts, 1), key=lambda found: abs(2 * found[1] - len(batch.body)))
    ids = batch.message_ids
    return (
        batch._replace(body=batch.body[:start], message_ids=ids[:count]),
        batch._replace(body=batch.body[start:], message_ids=ids[count:]),
    )


def send_command(message: Outgoing, *, group: str, broker_name: str, queue_id: int, oneway: bool = False) -> Command:
    """Return the request that stores a message in one queue."""
    ext = {
        "a": group or DEFAULT_PRODUCER_GROUP,
        "b": message.topic,
        "c": DEFAULT_TOPIC,
        "d": str(DEFAULT_TOPIC_QUEUES),
        "e": str(queue_id),
        "f": str(message.sys_flag),
        "g": str(message.born_ms),
        "h": str(message.flag),
        "i": message.properties,
        "j": "0",
        "k": "false",
        "m": "true" if message.is_batch else "false",
        "n": broker_name,
    }
    code = Request.SEND_BATCH_MESSAGE if message.is_batch else Request.SEND_MESSAGE_V2
    return Command(code=code, ext=ext, body=message.body, flag=FLAG_ONEWAY if oneway else 0)


def _signed(flag: int) -> int:
    """Return the 32 bits of a flag as RocketMQ writes them; the core keeps the same bits."""
    return (int(flag) + (1 << 31)) % (1 << 32) - (1 << 31)
