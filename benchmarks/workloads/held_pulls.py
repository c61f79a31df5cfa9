"""The workload of held pulls: a message for which hundreds of clients wait at a broker over TCP.

Each client is a connection of its own with one pull that waits on the one queue of a topic. A wave is one message: the
time until its sender is answered, and until the last of the pulls is.

    pulls held ──▶ send ──▶ answer to the sender ──▶ … ──▶ answer to the last pull ──▶ pulls held again

(1) A pull is held when a later request on its connection is answered: each connection is served in order.
(2) All clients are this process, so what a client takes to read its answer is in the time of the last one.
(3) RocketMQ answers a send before the message can be pulled; a pull behind the queue's end would be answered at once.
(4) Every other wave is one without pulls, after the same requests of the same clients: a send that no pull waits for.
"""

from __future__ import annotations

import itertools
import select
import socket
import time
from contextlib import ExitStack

from shmq.measurement.measure import median
from tests.interop.peers.wire import Wire, encode

SEND, PULL, GET_MAX_OFFSET = 310, 11, 30
SUSPEND_WITH_SUBSCRIPTION = 2 | 4
SUSPEND_MS = 20_000
HELD = 500
WAVES, WAVES_MIN = 40, 5
TIMEOUT = 10.0
_serial = itertools.count(1)


class Waiter:
    """A connection with at most one pull that waits."""

    def __init__(self, address: str, topic: str, number: int) -> None:
        host, port = address.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), TIMEOUT)
        self._topic = topic
        self._group = f"held_{number}"
        self._received = b""

    def ask(self) -> None:
        """Send something that is answered at once."""
        self.socket.sendall(encode(GET_MAX_OFFSET, 2, {"topic": self._topic, "queueId": "0"}))

    def hold(self, offset: int) -> None:
        """Send a pull, and something that is answered when the pull is held."""
        fields = {
            "consumerGroup": self._group,
            "topic": self._topic,
            "queueId": "0",
            "queueOffset": str(offset),
            "maxMsgNums": "32",
            "sysFlag": str(SUSPEND_WITH_SUBSCRIPTION),
            "commitOffset": "0",
            "suspendTimeoutMillis": str(SUSPEND_MS),
            "subscription": "*",
            "subVersion": "1",
            "expressionType": "TAG",
        }
        self.socket.sendall(encode(PULL, 1, fields))
        self.ask()

    def answered(self) -> bool:
        """Read what is there; True when it is a whole answer."""
        self._received += self.socket.recv(1 << 16)
        if len(self._received) < 4 or len(self._received) < 4 + int.from_bytes(self._received[:4]):
            return False
        self._received = b""
        return True


def waves(address: str, held: int, count: int) -> dict[str, float]:
    """Measure waves of one message for `held` pulls.

    Returns:
        alone_us and answer_us (median time until a sender is answered, without and with pulls that wait), ratio, and
        last_ms (median time until the last pull is).
    """
    topic = f"held_{next(_serial)}_{time.monotonic_ns():x}"
    with ExitStack() as stack:
        sender = stack.enter_context(Wire(address, TIMEOUT))
        _send(sender, topic)
        waiters = [Waiter(address, topic, number) for number in range(held)]
        poll = select.epoll()
        by_number = {waiter.socket.fileno(): waiter for waiter in waiters}
        for waiter in waiters:
            stack.callback(waiter.socket.close)
            poll.register(waiter.socket, select.EPOLLIN)
        stack.callback(poll.close)
        alone, answers, lasts = [], [], []
        for offset in range(2, 2 + 2 * count, 2):
            for waiter in waiters:
                waiter.ask()
            _gather(poll, by_number)
            alone.append(_send(sender, topic))
            _wait_for(sender, topic, offset)
            for waiter in waiters:
                waiter.hold(offset)
            _gather(poll, by_number)
            begin = time.perf_counter_ns()
            answers.append(_send(sender, topic))
            _gather(poll, by_number)
            lasts.append((time.perf_counter_ns() - begin) / 1e6)
    answer = median(answers)
    return {"alone_us": median(alone), "answer_us": answer, "ratio": answer / median(alone), "last_ms": median(lasts)}


def _send(wire: Wire, topic: str) -> float:
    """Microseconds until a message is answered."""
    ext = dict(zip("abcdefghi", ("held", topic, "TBW102", "1", "0", "0", "1", "0", ""), strict=True))
    data = encode(SEND, opaque := wire.next_opaque(), ext, b"x" * 128)
    begin = time.perf_counter_ns()
    wire.send(data)
    reply = wire.reply_to(opaque)
    took = (time.perf_counter_ns() - begin) / 1000
    if reply is None or reply.code != 0:
        raise RuntimeError(f"a send was answered {reply}")
    return took


def _wait_for(wire: Wire, topic: str, offset: int) -> None:
    """Wait until the queue's end has reached an offset."""
    deadline = time.monotonic() + TIMEOUT
    while True:
        wire.send(encode(GET_MAX_OFFSET, opaque := wire.next_opaque(), {"topic": topic, "queueId": "0"}))
        reply = wire.reply_to(opaque)
        if reply is not None and int(reply.fields.get("offset", -1)) >= offset:
            return
        if time.monotonic() > deadline:
            raise RuntimeError(f"the queue has not reached offset {offset} within {TIMEOUT:g} s: {reply}")
        time.sleep(0.001)


def _gather(poll: select.epoll, waiters: dict[int, Waiter]) -> None:
    """Wait until every client has one whole answer."""
    missing = len(waiters)
    while missing:
        ready = poll.poll(TIMEOUT)
        if not ready:
            raise RuntimeError(f"{missing} of {len(waiters)} clients got no answer within {TIMEOUT:g} s")
        for number, _ in ready:
            missing -= waiters[number].answered()
