"""Offsets written down every few seconds: of every queue that can be reached, and read under the reader's lock."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from shmq.client.remote.duties import Upkeep
from shmq.client.remote.pulls import GroupReader
from shmq.client.remote.reader import ProcessQueue
from shmq.client.wire import ignore
from shmq.errors import BrokerNotRunning
from shmq.protocol.dialect import MessageQueue


class Brokers:
    """Takes commits for all queues but those of brokers that are gone, or that make us fail."""

    def __init__(self) -> None:
        self.committed: dict[tuple[str, int], int] = {}
        self.gone: dict[str, Exception] = {}

    async def commit(self, group: str, queue: MessageQueue, offset: int, *, oneway: bool) -> None:
        if queue.brokerName in self.gone:
            raise self.gone[queue.brokerName]
        self.committed[queue.brokerName, queue.queueId] = offset


class Watched(dict[int, int]):
    """A window that must not be read without the reader's lock: another thread would change it meanwhile."""

    def __init__(self, changed: Any, offsets: list[int]) -> None:
        super().__init__(dict.fromkeys(offsets, 1))
        self._changed = changed

    def __iter__(self) -> Any:
        assert self._changed._is_owned()
        return super().__iter__()


class Scene:
    """A member of a group with one queue on each of three brokers."""

    def __init__(self) -> None:
        self.brokers = Brokers()
        spec = SimpleNamespace(group="g", model="clustering", tags=(), codec=None, auto_ack=False)
        network = SimpleNamespace(soon=lambda work: None)
        wire: Any = SimpleNamespace(network=network, timeout=1.0)
        unused: Any = None
        self.reader = GroupReader(wire, self.brokers, unused, unused, spec, unused)  # type: ignore[arg-type]
        for number, name in enumerate(("a", "b", "c")):
            queue = ProcessQueue(MessageQueue(name, 0, "orders"), number, 10 + number, settles=True)
            queue._window = Watched(self.reader.changed, [10 + number])
            self.reader.open(queue)
        self.upkeep = Upkeep(wire, self.brokers, unused, lambda: [self.reader], list, ignore)

    def commit(self) -> None:
        asyncio.run(self.upkeep._commit())


@pytest.mark.parametrize("fault", [BrokerNotRunning("gone"), RuntimeError("a fault of ours")])
def test_a_broker_that_is_gone_keeps_no_offset_from_the_others(fault: Exception) -> None:
    scene = Scene()
    scene.brokers.gone["a"] = fault
    scene.commit()
    assert scene.brokers.committed == {("b", 0): 11, ("c", 0): 12}
    scene.brokers.gone.clear()
    scene.commit()
    assert scene.brokers.committed["a", 0] == 10


def test_what_is_not_settled_is_looked_at_under_the_lock() -> None:
    scene = Scene()
    assert [committed for *_, committed in scene.reader.assigned()] == [10, 11, 12]
    assert [offset for _, offset in scene.reader.progress()] == [10, 11, 12]
    assert [info["commitOffset"] for _, info in scene.reader.infos()] == [10, 11, 12]
