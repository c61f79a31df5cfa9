"""What is drawn by chance leaves `random`'s state to the program, and ids differ however it was seeded."""

import asyncio
import itertools
import os
import random
import re
import socket
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

import shmq
import shmq.aio
from shmq.client import client_id
from shmq.protocol.message_id import UniqueIds
from tests.conformance.conftest import PATIENCE, Named
from tests.interruption import interrupted_everywhere

NOW_MS = 1_790_000_000_000


def test_ids_of_equal_seeds_hosts_and_pids_differ() -> None:
    made = []
    for _ in range(20):
        random.seed(7)
        ids = UniqueIds("172.17.0.2", pid=1)
        made += [ids.next(NOW_MS) for _ in range(1000)]
    assert len(set(made)) == len(made)


def test_ids_of_a_clock_that_stands_or_goes_back_differ() -> None:
    ids = UniqueIds("172.17.0.2", pid=1)
    made = [ids.next(NOW_MS + number // 50_000 % 2) for number in range(200_000)]
    assert len(set(made)) == len(made)


def lines_of_a_new_round(ids: UniqueIds, at: int) -> int:
    """Let another thread make ids before that line of the one that begins the counter anew; return how many it has."""
    made: list[str] = []
    for _ in range(2):  # the second round has all numbers under one head
        made.append(ids.next(NOW_MS))
        while not made[-1].endswith("FFFF"):
            made.append(ids.next(NOW_MS))
    others = map(partial(map, ids.next), [[]] * at + [[NOW_MS, NOW_MS + 1, NOW_MS]])
    lines = interrupted_everywhere(lambda: made.append(ids.next(NOW_MS)), lambda: made.extend(next(others, ())))
    assert len(set(made)) == len(made)
    return lines


def test_ids_of_threads_that_meet_where_the_counter_begins_anew_differ() -> None:
    ids = UniqueIds("172.17.0.2", pid=1)
    lines = lines_of_a_new_round(ids, 0)
    for at in range(1, lines + 1):
        lines_of_a_new_round(ids, at)
    assert lines > 5


def test_containers_that_number_their_processes_alike_have_clients_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "worker-0")
    monkeypatch.setattr(os, "getpid", lambda: 1)
    monkeypatch.setattr(time, "monotonic_ns", lambda: 812)  # as libraries that stop the clock do
    made = set()
    for _ in range(100):
        monkeypatch.setattr(client_id, "_serial", itertools.count(1))
        made.add(client_id.new_client_id())
    assert len(made) == 100


def test_no_id_is_taken_from_what_a_program_may_replace() -> None:
    """Tests set `uuid.uuid4` to what counts, and some programs to what follows a seed."""
    root = Path(client_id.__file__).resolve().parents[2]
    sources = [path for folder in ("shmq", "daemon", "tools", "spark") for path in root.joinpath(folder).rglob("*.py")]
    calls = re.compile(r"\b(uuid\.uuid\d|random\.(?!Random\(|SystemRandom\()\w+)\(")
    assert len(sources) > 500
    assert [str(path) for path in sources if calls.search(path.read_text())] == []


def test_no_call_moves_the_programs_own_sequence(url: str, named: Named) -> None:
    async def awaited() -> None:
        async with shmq.aio.connect(url) as mq:
            await mq.send(named("orders"), b"x", delay=0.001)

    random.seed(7)
    before = random.getstate()
    with shmq.connect(url, trace=True) as mq, mq.producer(group="shop", compression="zlib") as producer:
        topic = named("orders")
        mq.admin.create_topic(topic, queues=2)
        producer.send(topic, bytes(10_000), key="o-42")
        producer.send_nowait(topic, b"x", delay_level=1).result(PATIENCE)
        producer.send_batch(topic, [b"a", b"b"])
        producer.transaction(topic, b"x").commit()
        with mq.subscribe(topic, group=named("billing"), start="begin") as consumer:
            [message] = consumer.receive(1, PATIENCE)
            message.nack(5)
            consumer.reject(consumer.receive(1, PATIENCE)[0])
        with mq.simple_consumer(topic, group=named("simple"), start="begin") as simple:
            simple.receive(1, PATIENCE)[0].extend(60)
        mq.browse(topic, key="o-42")
    asyncio.run(awaited())
    assert random.getstate() == before


def _ids(mq: shmq.Connection, topic: str) -> list[str]:
    """The ids that a connection gives its messages: of delayed ones, and over TCP of all."""
    sends: list[Callable[[], shmq.Receipt]] = [lambda: mq.send(topic, b"x"), lambda: mq.send(topic, b"x", delay=60)]
    found = []
    for send in sends * 8:
        with mq.producer(group="shop") as producer:
            transaction = producer.transaction(topic, b"x")
            found += [transaction.id, send().message_id]
            transaction.rollback()
    return found


def test_the_ids_of_a_forked_child_are_its_own(mq: shmq.Connection, topic: str) -> None:
    random.seed(7)
    _ids(mq, topic)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(write, " ".join(_ids(mq, topic)).encode())
        finally:
            os._exit(0)
    os.close(write)
    own = _ids(mq, topic)
    with os.fdopen(read) as said:
        childs = said.read().split()
    os.waitpid(child, 0)
    assert len(childs) == len(own) == len({*own, *childs}) // 2
