"""Large batches while the keeper is late, and while keeper and bridge are killed: each is stored whole, and in order.

SHMQ_SOAK_BATCHES asks for the long form, so many of each sender; SHMQ_TEST_SEED repeats a run.
"""

import os
import random
import signal
import threading
from collections import Counter
from collections.abc import Iterator

import pytest

import shmq
from shmq.shm.liveness import signal_proven
from shmq.testing import Broker
from tests.seed import SEED

BATCHES = int(os.environ.get("SHMQ_SOAK_BATCHES", "150"))
COUNT = 50
FILE_BYTES = 4 << 20
BODY_BYTES = (9_000, 9_000, 80_000)
"""Of the batches of each sender: 450 kB, and close to the 4 MiB that one request carries; those take a log file each,
so that most wait for the keeper to make one."""


class Sender(threading.Thread):
    """Sends its batches one after the other, and remembers which were acknowledged."""

    def __init__(self, url: str, number: int) -> None:
        super().__init__(daemon=True)
        self._url = url
        self._number = number
        self.acknowledged: list[int] = []

    def run(self) -> None:
        with shmq.connect(self._url) as mq:
            for batch in range(BATCHES):
                body = bytes(BODY_BYTES[self._number])
                bodies = [b"%d %d %d " % (self._number, batch, at) + body for at in range(COUNT)]
                try:
                    receipts = mq.send_batch("lines", bodies)
                except shmq.ShmqError:
                    continue
                assert [receipt.offset - receipts[0].offset for receipt in receipts] == list(range(COUNT))
                self.acknowledged.append(batch)


def stored(mq: shmq.Connection) -> Iterator[tuple[int, int, int]]:
    with mq.pull_consumer("lines", start="begin") as consumer:
        while found := consumer.poll(COUNT, 0.0):
            for message in found:
                sender, batch, at, _ = bytes(message.body).split(b" ", 3)
                yield int(sender), int(batch), int(at)


def disturb(broker: Broker, chance: random.Random, until: threading.Event, kills: tuple[str, ...]) -> int:
    """Keep the keeper from its work for 0.3 to 0.8 s of each second, or kill a process; return how often."""
    times = 0
    while not until.wait(chance.uniform(0.2, 0.7)):
        is_kill = bool(kills) and chance.random() < 0.5
        mark = broker.processes.get(chance.choice(kills) if is_kill else "keeper")
        if mark is None:  # it was killed, and is started again just now
            continue
        if is_kill:
            signal_proven(mark)
        else:
            signal_proven(mark, signal.SIGSTOP)
            until.wait(chance.uniform(0.3, 0.8))
            signal_proven(mark, signal.SIGCONT)
        times += 1
    return times


@pytest.mark.parametrize("kills", [(), ("keeper", "bridge")], ids=["late", "killed"])
def test_each_batch_is_stored_as_a_whole(kills: tuple[str, ...]) -> None:
    ended = threading.Event()
    with Broker(tcp=True, file_bytes=FILE_BYTES) as broker, broker.connect() as mq:
        mq.admin.create_topic("lines", queues=1)
        over_tcp = f"rocketmq://{broker.name_server}"
        senders = [Sender(url, number) for number, url in enumerate((broker.url, over_tcp, over_tcp))]
        for sender in senders:
            sender.start()
        joiner = threading.Thread(target=lambda: [sender.join() for sender in senders] and ended.set())
        joiner.start()
        times = disturb(broker, random.Random(SEED), ended, kills)
        joiner.join()
        found = list(stored(mq))
    print(f"{times} disturbances, {[len(sender.acknowledged) for sender in senders]} of {BATCHES} acknowledged")
    wholes = [found[first : first + COUNT] for first in range(0, len(found), COUNT)]
    torn = [whole[0] for whole in wholes if whole != [(*whole[0][:2], at) for at in range(COUNT)]]
    assert torn == []
    often = Counter(whole[0][:2] for whole in wholes)
    lost = [(n, batch) for n, sender in enumerate(senders) for batch in sender.acknowledged if not often[n, batch]]
    assert lost == []
    for number, sender in enumerate(senders):
        order = [batch for n, batch in (whole[0][:2] for whole in wholes) if n == number]
        assert order == sorted(order)
        # A sender without an answer may send again; an answered batch is stored once.
        assert kills or all(often[number, batch] == 1 for batch in sender.acknowledged)
