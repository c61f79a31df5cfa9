"""Damage under a running broker: bytes of its files flipped while it runs, read over memory and TCP, then a restart.

    life     a store is laid out · the broker starts · bytes are flipped one by one, and everything is read both ways
             · it is stopped, or killed · it starts again · everything is read both ways · one message to each queue

    must hold    no message with other content, none that was not sent; every message is there whose record was not hit
                 a queue goes on behind every offset that was given out

Nothing in the store becomes due meanwhile.

At most one byte of a table is flipped in a life, as two would be both of its generations at once.
"""

from __future__ import annotations

import random
import shutil
from collections import Counter
from pathlib import Path

import shmq
from shmq.client.connection import Connection, connect
from shmq.testing import Broker
from tests.crash.damage.damage import Case, sample
from tests.crash.damage.stores import FILE_BYTES, Stores, make_stores
from tests.tools.store.conftest import end_in_order

_TOPICS = ("orders", "bills")
_FLIPS_OF_A_LIFE = 10
_MESSAGES_MOST = 1000

Place = tuple[str, int, int]


def running_damage(seed: int, *, lives: int) -> tuple[Counter[str], list[str]]:
    """Live so many lives on copies of one store; returns counts and what was wrong."""
    counts: Counter[str] = Counter()
    wrong: list[str] = []
    stores = make_stores(end="stopped")
    for life in range(lives):
        found, anomalies = _Life(stores, seed + life).run()
        counts += found
        wrong += [f"life {life}: {each}" for each in anomalies]
    return counts, wrong


class _Life:
    """A broker on a copy that is damaged under it, and its successor."""

    def __init__(self, stores: Stores, seed: int) -> None:
        self._stores = stores
        self._chance = random.Random(seed)
        self._cases = _chosen(sample(stores, 6 * _FLIPS_OF_A_LIFE, seed))
        self._counts: Counter[str] = Counter()
        self._wrong: list[str] = []
        self._truth: dict[Place, tuple[bytes, int, int]] = {}  # body, log position, bytes of the record at least
        self._done: list[Case] = []

    def run(self) -> tuple[Counter[str], list[str]]:
        """Live it; returns counts and what was wrong."""
        with Broker(file_bytes=FILE_BYTES, default_queues=2, flush="sync", tcp=True) as broker:
            end_in_order(broker)
            broker.kill_daemon()
            self._lay_out(broker.store)
            broker.start()
            with broker.connect() as mq:
                for message in _all(mq):
                    place = message.topic, message.queue_id, message.offset
                    self._truth[place] = bytes(message.body), message.log_position, message.record_bytes
            for case in self._cases:
                self._flip(broker.store, case)
                self._look(broker, str(case))
            if self._chance.random() < 0.5:
                end_in_order(broker)
            broker.kill_daemon()
            try:
                broker.start()
            except shmq.ShmqError as error:
                self._wrong.append(f"it does not start again: {error}")
                return self._counts, self._wrong
            self._counts["restarts"] += 1
            self._look(broker, "after the restart")
            self._send(broker)
        return self._counts, self._wrong

    def _lay_out(self, root: Path) -> None:
        self._stores.whole.lay_out(root)
        for name in ("index", "shmq.index.sums"):  # the files are smaller than a broker's, so it makes its own
            shutil.rmtree(root / name)
        (root / "shmq.index").unlink()

    def _flip(self, root: Path, case: Case) -> None:
        path = root / case.name
        try:
            with path.open("r+b", buffering=0) as file:
                file.seek(case.at)
                byte = file.read(1)
                if byte:
                    file.seek(case.at)
                    file.write(bytes([byte[0] ^ case.bits]))
        except FileNotFoundError:
            return  # the broker has put another in its place
        self._done.append(case)
        self._counts["flipped_while_running"] += 1

    def _look(self, broker: Broker, when: str) -> None:
        for url in (broker.url, f"rocketmq://{broker.name_server}"):
            with connect(url) as mq:
                found = {}
                for message in _all(mq):
                    found[message.topic, message.queue_id, message.offset] = bytes(message.body)
            self._counts["read"] += len(found)
            way = url.partition(":")[0]
            for place, (body, position, size) in self._truth.items():
                is_hit = any(case.hits(position, size) for case in self._done)
                if place not in found and not is_hit:
                    self._wrong.append(f"{when}, {way}: lost {place}")
                elif found.get(place, body) != body:
                    self._wrong.append(f"{when}, {way}: wrong {place}")
            invented = found.keys() - self._truth.keys()
            self._wrong += [f"{when}, {way}: invented {place}: {found[place]!r}" for place in invented]

    def _send(self, broker: Broker) -> None:
        with broker.connect() as mq:
            for topic in _TOPICS:
                for queue_id in range(2):
                    given_out = [place[2] for place in self._truth if place[:2] == (topic, queue_id)]
                    receipt = mq.send(topic, b"behind", queue_id=queue_id)
                    if given_out and receipt.offset <= max(given_out):
                        self._wrong.append(f"offset {receipt.offset} of {topic}/{queue_id} was given out again")


def _chosen(cases: list[Case]) -> list[Case]:
    """Some of them: one of a table, and none of the index, whose files are others here."""
    tables = [case for case in cases if case.is_table][:1]
    others = [case for case in cases if not case.is_table and "index" not in case.name]
    return [*others[: _FLIPS_OF_A_LIFE - len(tables)], *tables]


def _all(mq: Connection) -> list[shmq.Message]:
    return [message for topic in _TOPICS for message in mq.browse(topic, limit=_MESSAGES_MOST)]
