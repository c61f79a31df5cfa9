"""What tests of a pair that is half stock share: numbered messages under kills, and a reader of one broker alone.

Each body follows from the run's seed and the message's number, so what is read is compared without being kept.
"""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Iterator
from pathlib import Path

import shmq
from shmq.protocol.codes import Request
from shmq.shm.core import records_read
from tests.deadline import attempts
from tests.interop.peers.wire import Wire

FILE_BYTES = 16 << 20  # of the stock brokers' logs, too
TOPIC = "colours"
QUEUES = 4
FOUND, NO_TOPIC, NOT_FOUND = 0, 17, 19
_LONG_BYTES = 150_000  # some are long, so that a run fills several log files
_SEND_SECONDS = 3.0
_PACE_SECONDS = 0.003  # or a run is a log of gigabytes


def body_of(seed: int, number: int) -> bytes:
    """The body of a message."""
    choice = random.Random(f"{seed}/{number}")
    size = choice.randint(_LONG_BYTES // 2, _LONG_BYTES) if choice.random() < 0.1 else choice.randint(0, 1000)
    return b"%d " % number + choice.randbytes(size)


class Sending:
    """A producer over TCP that goes on through every restart of the master.

    Attributes:
        acknowledged: numbers of the messages that are stored for certain.
        tried: of those and of others that may be stored, once or more often.
    """

    def __init__(self, name_server: str, seed: int) -> None:
        self.acknowledged: list[int] = []
        self.tried = 0
        self._url = f"rocketmq://{name_server}"
        self._seed = seed
        self._stopping = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Sending:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join(120.0)
        assert not self._thread.is_alive()

    def told(self) -> str:
        """What it did so far, for a test that waits for it."""
        return f"{len(self.acknowledged)} of {self.tried} acknowledged; {self._error!r}"

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                with shmq.connect(self._url) as mq:
                    self._send(mq)
            except (shmq.ShmqError, OSError) as error:
                self._error = error
                self._stopping.wait(0.2)

    def _send(self, mq: shmq.Connection) -> None:
        while not self._stopping.is_set():
            number = self.tried
            self.tried += 1
            mq.send(TOPIC, body_of(self._seed, number), queue_id=number % QUEUES, timeout=_SEND_SECONDS)
            self.acknowledged.append(number)
            self._stopping.wait(_PACE_SECONDS)


def read_all(address: str, seed: int) -> set[int]:
    """Pull a whole topic from one broker, slave or not, and hold each body against what was sent."""
    found: set[int] = set()
    with _connected(address) as wire:
        for queue_id in range(QUEUES):
            for body in _pulled(wire, queue_id):
                number = int(body.split(b" ", 1)[0])
                assert body == body_of(seed, number) and number % QUEUES == queue_id
                found.add(number)
    return found


def _connected(address: str) -> Wire:
    """A connection to a broker that may just have been killed, and comes again by itself."""
    for _ in attempts(pause=0.2):
        with contextlib.suppress(ConnectionError):
            return Wire(address, 60.0)
    return Wire(address, 60.0)


def _pulled(wire: Wire, queue_id: int) -> Iterator[bytes]:
    offset = 0
    while True:
        fields = {
            "consumerGroup": "readers-of-one",
            "topic": TOPIC,
            "queueId": queue_id,
            "queueOffset": offset,
            "maxMsgNums": 32,
            "sysFlag": 4,
            "commitOffset": 0,
            "suspendTimeoutMillis": 0,
            "subscription": "*",
            "subVersion": 1,
            "expressionType": "TAG",
        }
        reply = wire.ask(Request.PULL_MESSAGE, {name: str(value) for name, value in fields.items()})
        assert reply is not None and reply.code in (FOUND, NO_TOPIC, NOT_FOUND), reply
        if reply.code != FOUND:
            return  # a slave asks for the topics every ten seconds
        for message in records_read(reply.body):
            yield bytes(message.body)
        following = int(reply.fields["nextBeginOffset"])
        assert following > offset, reply
        offset = following


def log_bytes(store: Path, end: int) -> bytes:
    """The log of a store directory up to a position."""
    files = sorted(path for path in (store / "commitlog").iterdir() if path.name.isdecimal())
    return b"".join(path.read_bytes() for path in files)[:end]
