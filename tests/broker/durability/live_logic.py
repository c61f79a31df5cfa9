"""A broker's logic over real segments, under synchronous flush with a disk as slow as the test wants.

No keeper runs: nothing is durable before the test calls `flush`, so every moment between a write and its sync can be
looked at without a pause. A bridge that is killed is another logic over the same segments.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from shmq.addresses import Address
from shmq.daemon.bridge.store.index import StoreIndex
from shmq.daemon.bridge.store.log import StoreLog
from shmq.daemon.bridge.store.tables import StoreTables
from shmq.daemon.broker.broker import Broker
from shmq.daemon.broker.records.stored_record import StoredRecord, kept_portions, records_of
from shmq.daemon.broker.settings import BrokerSettings
from shmq.daemon.broker.transactions.transactions import GATHERING_MS
from shmq.daemon.logic.access.admission import Admission
from shmq.daemon.logic.effects import Effect, Notify, Reply, Report
from shmq.properties import encode_properties
from shmq.protocol.codes import Request
from shmq.protocol.command import FLAG_ONEWAY, Command
from shmq.shm.access import access_rights
from shmq.shm.core import KeeperStore
from shmq.shm.segment import create_segments, unlink_segments
from tests.bridge.live_bridge import SIZES
from tests.deadline import eventually

REMOTE, LOCAL = Address("10.0.0.9", 40_000), Address("127.0.0.1", 10911)
LEVELS = "0s 1h"


class LiveLogic:
    """One store, and the logic that serves it now; `replies` are those that went out, by opaque."""

    def __init__(self, directory: Path, *, flush_sync: bool = True, **settings: Any) -> None:
        (directory / "commitlog").mkdir()
        (directory / "config").mkdir()
        with (directory / "commitlog" / f"{0:020d}").open("wb") as file:
            file.truncate(SIZES.file_bytes)
        self.instance, self.store = create_segments("test", store_path=directory, sizes=SIZES, flush_sync=flush_sync)
        KeeperStore(self.store).set_allocated_end(SIZES.file_bytes)
        self.tables = StoreTables(self.store, self.instance, access_rights())
        self.settings = BrokerSettings(
            broker_name="test",
            version="1",
            abi=1,
            generation=1,
            pid_namespace=0,
            wait_durable=flush_sync,
            serves_tcp=True,
            delay_levels=LEVELS,
            **settings,
        )
        self.admission = Admission()
        self.asked: list[Command] = []
        self.replies: dict[int, Command] = {}
        self.notices: list[tuple[int, Command]] = []
        self.reports: list[str] = []
        self._opaque = itertools.count(1)
        self.tables.topic_put("orders", read_queues=1, write_queues=1, perm=6, flags=0, kind=0)
        self.start()

    def start(self) -> None:
        """Start as the next bridge process, which knows only what segments and log hold."""
        self.log = StoreLog(self.store, report=self.reports.append)
        self.broker = Broker(
            self.tables,
            self.settings,
            now_ms=self.now_ms,
            log=self.log,
            index=StoreIndex(self.store, self.instance, access_rights()),
            admission=self.admission,
        )
        self.broker._transactions._began_ms = self.now_ms - GATHERING_MS  # producers had their time to come back
        self.broker.connected(1, None, self.now_ms, remote=REMOTE, local=LOCAL)

    @property
    def now_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000

    def take(self, effects: list[Effect]) -> None:
        """Carry effects out as far as they can be seen."""
        for effect in effects:
            if isinstance(effect, Reply):
                self.replies[effect.command.opaque] = effect.command
            elif isinstance(effect, Notify):
                self.notices.append((effect.connection_id, effect.command))
            elif isinstance(effect, Report):
                self.reports.append(effect.text)

    def ask(
        self, code: int, ext: Mapping[str, Any], body: bytes = b"", *, oneway: bool = False, connection_id: int = 1
    ) -> int:
        """Send a request; return its opaque."""
        opaque = next(self._opaque)
        fields = {name: str(value) for name, value in ext.items()}
        flag = FLAG_ONEWAY if oneway else 0
        command = Command(code=code, opaque=opaque, ext=fields, body=body, flag=flag, version=400)
        self.asked.append(command)
        self.take(list(self.broker.handle(connection_id, command, self.now_ms)))
        return opaque

    def again(self) -> int:
        """Send the last request once more; return its new opaque."""
        last = self.asked[-1]
        return self.ask(last.code, last.ext, last.body)

    def send(self, body: bytes, **properties: str) -> int:
        """Send a message to the topic orders."""
        fields = dict(zip("abcdefgh", ("p", "orders", "TBW102", 4, 0, 0, 0, 0), strict=True))
        return self.ask(Request.SEND_MESSAGE_V2, fields | {"i": encode_properties(properties)}, body)

    def turn(self) -> None:
        """What a second, and news of the log, do."""
        queues = [queue for topic in self.tables.topics() for queue in topic.queues]
        self.take(self.broker.arrived(queues, self.now_ms))
        self.take(self.broker.tick(self.now_ms))

    def turns(self) -> None:
        """Let the clock pass everything that is due in 20 ms or less, and see to it."""
        until_ms = self.tables.stamp_ms + 25
        eventually(lambda: self.tables.stamp_ms > until_ms, "the clock goes on")
        for _ in range(3):
            self.turn()

    def flush(self) -> None:
        """The disk has written everything."""
        KeeperStore(self.store).flush()
        self.take(self.broker.flushed(self.store.durable_end, self.now_ms))

    def stored(self, topic: str, queue_id: int = 0) -> list[StoredRecord]:
        """What lies in a queue, durable or not."""
        found = self.tables.topic(topic)
        if found is None:
            return []
        portions = kept_portions(self.tables, self.log, found.queues[queue_id], 0)
        return [record for pulled in portions for record in records_of(pulled.body)]

    def bodies(self, topic: str) -> list[bytes]:
        """The bodies of all queues of a topic."""
        found = self.tables.topic(topic)
        queues = range(len(found.queues)) if found is not None else ()
        return [record.body for queue_id in queues for record in self.stored(topic, queue_id)]

    def close(self) -> None:
        """Remove everything."""
        self.store.close()
        unlink_segments(self.instance)


@contextmanager
def live_logic(directory: Path, *, flush_sync: bool = True, **settings: Any) -> Iterator[LiveLogic]:
    """A logic for the length of a with block."""
    logic = LiveLogic(directory, flush_sync=flush_sync, **settings)
    try:
        yield logic
    finally:
        logic.close()
