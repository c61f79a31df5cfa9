"""The thread that sleeps on the log: news once for each publication, and a store that cannot be waited on now."""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from shmq.daemon.bridge.store.log_watch import LogWatch
from shmq.daemon.bridge.store.tables import StoreTables
from shmq.daemon.broker.log import Wanted
from shmq.errors import ShmqError
from shmq.protocol.codes import Role
from shmq.shm.access import Access
from shmq.shm.core import BrokerLog, KeeperStore, Producer, Store, process_start
from shmq.shm.instance import Instance
from shmq.shm.segment import create_segments, unlink_segments
from tests.bridge.live_bridge import SIZES
from tests.deadline import eventually_async


class Scene:
    """A store with one topic, and what a watch told about it."""

    def __init__(self, instance: Instance, store: Store) -> None:
        self.store = store
        self.tables = StoreTables(store, instance, Access(-1))
        self.tables.topic_put("orders", read_queues=1, write_queues=1, perm=6, flags=0, kind=0)
        topic = self.tables.topic("orders")
        assert topic is not None
        self.queue = topic.queues[0]
        self.news: list[list[int]] = []
        self.failures: list[ShmqError] = []

    def start(self) -> LogWatch:
        return LogWatch(
            self.store,
            BrokerLog(self.store),
            news=lambda queues: self.news.append(list(queues)),
            failed=self.failures.append,
        )

    def take_slot(self) -> None:
        slot = self.tables.client_put(os.getpid(), process_start(os.getpid()), Role.BOTH)
        self.store.use_client(slot, self.tables.client_generation(slot))

    def put(self, body: bytes) -> None:
        Producer(self.store, resolve=self.store.topic_find).append("orders", body, queue_id=0)


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    (tmp_path / "commitlog").mkdir()
    (tmp_path / "commitlog" / f"{0:020d}").write_bytes(bytes(SIZES.file_bytes))
    instance, store = create_segments("test", store_path=tmp_path, sizes=SIZES)
    KeeperStore(store).set_allocated_end(SIZES.file_bytes)
    yield Scene(instance, store)
    store.close()
    unlink_segments(instance)


def test_news_come_once_for_each_publication(scene: Scene) -> None:
    async def run() -> None:
        scene.take_slot()
        watch = scene.start()
        try:
            watch.publish(Wanted({scene.queue: 0}))
            scene.put(b"a")
            await eventually_async(lambda: scene.news)
            scene.put(b"b")
            watch.publish(Wanted({scene.queue: 1}))
            await eventually_async(lambda: len(scene.news) == 2)
        finally:
            watch.close()

    asyncio.run(run())
    assert scene.news == [[scene.queue], [scene.queue]] and not scene.failures


def test_a_store_that_cannot_be_waited_on_is_tried_again_and_complained_of_once(scene: Scene) -> None:
    async def run() -> None:
        watch = scene.start()
        try:
            watch.publish(Wanted({scene.queue: 0}))  # without a slot the watch could not be woken
            await eventually_async(lambda: scene.failures)
            watch.publish(Wanted({scene.queue: 0}))
            scene.take_slot()
            scene.put(b"a")
            await eventually_async(lambda: scene.news)
        finally:
            watch.close()

    asyncio.run(run())
    assert scene.news == [[scene.queue]] and len(scene.failures) == 1
