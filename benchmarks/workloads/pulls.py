"""A pulling load without a consumer: every queue of a topic is read to its end, one request of each in flight.

The connection is that of the tests with real peers. One JSON header is made and read for each pull, and messages are
counted, not decoded, so what is measured is the broker.

    4 size of the record | …    the body of an answer is records, one behind the other
"""

from __future__ import annotations

import time
from typing import NamedTuple

from tests.interop.peers.wire import Frame, Wire, encode

PULL_MESSAGE, GET_MAX_OFFSET = 11, 30
WITH_SUBSCRIPTION = 4
FOUND, NOT_FOUND, RETRY = 0, 19, 20
COUNT_MAX = 32  # of messages a pull returns: what RocketMQ's clients ask for
TIMEOUT = 30.0


class Scan(NamedTuple):
    """The result of a pass over a topic, and its duration."""

    passed: int
    selected: int
    seconds: float


def scan(broker_address: str, topic: str, queues: int, expression: str, kind: str = "TAG") -> Scan:
    """Read a topic from its first message to its last through a filter the broker evaluates.

    Raises:
        RuntimeError: the broker answers anything but messages, or that there are none.
    """
    with Wire(broker_address, TIMEOUT) as wire:
        ends = {queue: _end(wire, topic, queue) for queue in range(queues)}
        begin = time.perf_counter()
        selected = 0
        asked = {_ask(wire, topic, queue, 0, expression, kind): queue for queue, end in ends.items() if end > 0}
        while asked:
            reply = wire.read()
            if reply is None:
                raise RuntimeError("the broker closed the connection")
            queue = asked.pop(reply.header["opaque"])
            selected += _selected(reply)
            offset = int(reply.fields["nextBeginOffset"])
            if offset < ends[queue]:
                asked[_ask(wire, topic, queue, offset, expression, kind)] = queue
        return Scan(sum(ends.values()), selected, time.perf_counter() - begin)


def _end(wire: Wire, topic: str, queue: int) -> int:
    reply = wire.ask(GET_MAX_OFFSET, {"topic": topic, "queueId": str(queue)})
    if reply is None or reply.code != 0:
        raise RuntimeError(f"queue {queue} of {topic} has no end: {reply}")
    return int(reply.fields["offset"])


def _ask(wire: Wire, topic: str, queue: int, offset: int, expression: str, kind: str) -> int:
    opaque = wire.next_opaque()
    fields = {
        "consumerGroup": "TOOLS_CONSUMER",
        "topic": topic,
        "queueId": str(queue),
        "queueOffset": str(offset),
        "maxMsgNums": str(COUNT_MAX),
        "sysFlag": str(WITH_SUBSCRIPTION),
        "commitOffset": "0",
        "suspendTimeoutMillis": "0",
        "subscription": expression,
        "subVersion": "1",
        "expressionType": kind,
    }
    wire.send(encode(PULL_MESSAGE, opaque, fields))
    return opaque


def _selected(reply: Frame) -> int:
    if reply.code not in (FOUND, NOT_FOUND, RETRY):
        raise RuntimeError(f"a pull was answered with {reply.code}: {reply.remark}")
    count = at = 0
    while at < len(reply.body):
        at += int.from_bytes(reply.body[at : at + 4])
        count += 1
    return count
