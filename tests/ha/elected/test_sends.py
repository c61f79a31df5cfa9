"""Programs that send while brokers of a group change their roles: they see a send that takes longer, and no error."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import pytest

import shmq
import shmq.aio
from shmq.shm.liveness import signal_proven
from shmq.store.lineage.epochs import load_epochs
from shmq.testing import Broker
from tests.deadline import eventually
from tests.ha.elected.group import Group, group_of
from tests.ha.elected.senders import reply_to
from tests.ha.etcd.server import needs_etcd
from tests.ha.pair import assert_equal
from tests.ha.test_switch import cluster, layout_of
from tests.nameserver.live_nameserver import name_server

pytest.importorskip("urllib3")
pytestmark = [needs_etcd(), pytest.mark.slow]
TIMEOUT_SECONDS = 60.0  # of a send: a host's death is noticed when its lease is over, on a machine that is busy
ANSWER_SECONDS = 20.0  # of a request, whose reply may be lost
TOPIC, ASKED = "orders", "questions"
_OPEN_TRANSACTIONS = 20  # of one program
_CONNECTIONS_ENDED = 4  # of one program, at most: bridges start again at both switches, and with a host


class Program:
    """Sends one message after the other over one connection; what may be stored twice is counted apart."""

    topic = TOPIC

    def __init__(self, name: str, url: str) -> None:
        self.name, self.url = name, url
        self.stored: list[bytes] = []
        self.in_doubt: list[bytes] = []
        self.failed: list[Exception] = []
        self.is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.is_over.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            self.send_all()
        except Exception as error:
            self.failed.append(error)

    def send_all(self) -> None:
        with shmq.connect(self.url, timeout=TIMEOUT_SECONDS) as mq:
            for number in self.numbers():
                self.send_one(number, lambda body: mq.send(TOPIC, body))

    def numbers(self) -> Any:
        number = 0
        while not self.is_over.wait(0.01):
            yield number
            number += 1

    def body(self, number: int) -> bytes:
        return b"%s %d" % (self.name.encode(), number)

    @contextlib.contextmanager
    def noting(self, body: bytes, *, is_stored: bool = True) -> Iterator[None]:
        """A send in this block is allowed to fail with its message in doubt, and otherwise not.

        Args:
            is_stored: whether the message is there when it succeeds.
        """
        try:
            yield
        except shmq.ShmqError as error:
            if not error.maybe_stored:
                raise
            self.in_doubt.append(body)
        else:
            if is_stored:
                self.stored.append(body)

    def send_one(self, number: int, send: Callable[[bytes], object]) -> None:
        body = self.body(number)
        with self.noting(body):
            send(body)


class BatchProgram(Program):
    """The same, with batches, delays and packed bodies by turns."""

    def send_all(self) -> None:
        with shmq.connect(self.url, timeout=TIMEOUT_SECONDS) as mq, mq.producer(compression="zlib") as packing:
            ways: list[Callable[[bytes], object]] = [
                lambda body: mq.send_batch(TOPIC, [body]),
                lambda body: mq.send(TOPIC, body, delay=0.1),
                lambda body: packing.send(TOPIC, body.ljust(8192)),
                lambda body: packing.send_nowait(TOPIC, body).result(),
                lambda body: _reserved(mq, body),
            ]
            for number in self.numbers():
                self.send_one(number, ways[number % len(ways)])


class LoopProgram(Program):
    """The same in an event loop."""

    def send_all(self) -> None:
        async def main() -> None:
            async with shmq.aio.connect(self.url, timeout=TIMEOUT_SECONDS) as mq:
                number = 0
                while not await asyncio.to_thread(self.is_over.wait, 0.01):
                    body = self.body(number)
                    number += 1
                    with self.noting(body):
                        await mq.send(TOPIC, body)

        asyncio.run(main())


class TransactionProgram(Program):
    """Begins transactions, and ends each when some more have begun: some begin and end under different leaders."""

    def send_all(self) -> None:
        begun: deque[tuple[bytes, shmq.Transaction]] = deque()
        with shmq.connect(self.url, timeout=TIMEOUT_SECONDS) as mq, mq.producer(group=self.name) as producer:
            for number in self.numbers():
                body = self.body(number)
                with self.noting(body, is_stored=False):
                    begun.append((body, producer.transaction(TOPIC, body)))
                if len(begun) > _OPEN_TRANSACTIONS:
                    self._end(*begun.popleft(), is_committed=number % 3 > 0)
            for body, transaction in begun:
                self._end(body, transaction, is_committed=True)

    def _end(self, body: bytes, transaction: shmq.Transaction, *, is_committed: bool) -> None:
        with self.noting(body, is_stored=is_committed):
            transaction.commit() if is_committed else transaction.rollback()


@contextlib.contextmanager
def passing_no_broker() -> Iterator[None]:
    try:
        yield
    except shmq.BrokerNotRunning as error:
        if "no broker is registered" not in str(error):
            raise


class JoiningProgram(Program):
    """Opens a connection, joins a group, sends and leaves, again and again."""

    def send_all(self) -> None:
        for number in self.numbers():
            # Who opens a connection while the name server knows no broker is not made to wait for one.
            with passing_no_broker(), shmq.connect(self.url, timeout=TIMEOUT_SECONDS) as mq:
                mq.subscribe(TOPIC, group=self.name).close()
                self.send_one(number, lambda body, mq=mq: mq.send(TOPIC, body))


class AskingProgram(Program):
    """Sends requests, each of which is answered; a reply can be lost with the connection by which it was to come."""

    topic = ASKED

    def send_all(self) -> None:
        with shmq.connect(self.url, timeout=ANSWER_SECONDS) as mq:
            for number in self.numbers():
                self.send_one(number, lambda body: self._ask(mq, body))

    def _ask(self, mq: shmq.Connection, body: bytes) -> None:
        assert bytes(mq.request(ASKED, body).body) == reply_to(body)


class AskingLoopProgram(Program):
    """The same in an event loop."""

    topic = ASKED

    def send_all(self) -> None:
        async def main() -> None:
            async with shmq.aio.connect(self.url, timeout=ANSWER_SECONDS) as mq:
                number = 0
                while not await asyncio.to_thread(self.is_over.wait, 0.01):
                    body = self.body(number)
                    number += 1
                    with self.noting(body):
                        assert bytes((await mq.request(ASKED, body)).body) == reply_to(body)

        asyncio.run(main())


def _reserved(mq: shmq.Connection, body: bytes) -> None:
    slot = mq.reserve(TOPIC, len(body))
    try:
        with slot:
            slot.view[:] = body
    except (shmq.NotMaster, shmq.BrokerNotRunning) as error:  # it lies in a log that takes nothing any more
        error.maybe_stored = True
        raise


def programs_of(group: Group, names: str, *, with_joining: bool) -> list[Program]:
    kinds: dict[str, type[Program]] = {
        "": Program,
        "-batch": BatchProgram,
        "-loop": LoopProgram,
        "-transactions": TransactionProgram,
        "-asking": AskingProgram,
        "-asking-loop": AskingLoopProgram,
    }
    if with_joining:  # a program that begins on a dead host is refused
        kinds["-joining"] = JoiningProgram
    places = {"tcp": f"rocketmq://{names}"}
    places |= {f"local{number}": broker.url for number, broker in enumerate(group.brokers)}
    return [make(f"{place}{kind}", url) for place, url in places.items() for kind, make in kinds.items()]


def hand_over(old: Broker, new: Broker) -> None:
    cluster(new, "promote")


def stop(old: Broker, new: Broker) -> None:
    signal_proven(old.processes["supervisor"], signal.SIGTERM)


def kill(old: Broker, new: Broker) -> None:
    old.kill_daemon()


@pytest.mark.parametrize("switch", [hand_over, stop, kill])
def test_a_send_waits_for_the_next_leader(tmp_path: Path, switch: Callable[[Broker, Broker], None]) -> None:
    with name_server() as names, group_of(tmp_path, 2, sync=True, nameservers=names.address) as (group, _):
        old = group.wait_for_set(2)
        new = group.other(old)
        with old.connect() as mq:
            for topic in (TOPIC, ASKED):
                mq.admin.create_topic(topic, queues=4)
        eventually(lambda: names.brokers_of(TOPIC).get("elected", {}).keys() == {"0", "1"})
        programs = programs_of(group, names.address, with_joining=switch is hand_over)

        def go_on(count: int) -> None:
            wanted = {program: len(program.stored) + count for program in programs}
            eventually(
                lambda: all(program.failed or len(program.stored) >= wanted[program] for program in programs),
                lambda: f"{[(each.name, len(each.stored), each.failed) for each in programs]}\n{group.told()}",
            )

        answering = shmq.connect(f"rocketmq://{names.address}")
        answering.replier(ASKED, group="answering")(lambda message: reply_to(bytes(message.body)))
        answering.start()
        for program in programs:
            program.__enter__()
        try:
            go_on(20)
            epoch = load_epochs(layout_of(old))[-1].number
            switch(old, new)
            assert group.wait_for_epoch(epoch + 1) is new
            if switch is not hand_over:
                old.kill_daemon()
                old.restart()
            go_on(20)
            assert group.wait_for_set(2) is new
            hand_over(new, old)
            assert group.wait_for_epoch(epoch + 2) is old
            go_on(20)
        finally:
            for program in programs:
                program.is_over.set()
            for program in programs:
                program.__exit__()
            answering.close()
        assert not [(program.name, *map(repr, program.failed)) for program in programs if program.failed]
        group.wait_for_set(2)
        assert_equal(old, new)
        check_stored(old, programs)


def check_stored(leader: Broker, programs: list[Program]) -> None:
    """Everything that was acknowledged is there, and hardly anything twice."""
    programs = [program for program in programs if program.topic == TOPIC]
    wanted = {body for program in programs for body in program.stored}
    found: Counter[bytes] = Counter()
    with leader.connect() as mq, mq.pull_consumer(TOPIC) as pull:

        def is_read() -> bool:
            for message in pull.poll(max=500, wait=0.5):
                found[bytes(message.body).rstrip()] += 1
            return wanted <= found.keys()

        eventually(is_read, lambda: f"{sorted(wanted - found.keys())[:20]}")
    doubt = {body for program in programs for body in program.in_doubt}
    for program in programs:  # again only where a connection ended with the request under way
        again = [body for body in program.stored if found[body] > 1]
        assert len(again) <= _CONNECTIONS_ENDED, again
    assert found.keys() <= wanted | doubt
    for program in programs:
        assert len(program.in_doubt) <= 10, (program.name, program.in_doubt)
