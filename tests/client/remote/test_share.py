"""Ordered members over TCP whose broker gets another master, which knows no locks and gives them to the first."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from shmq.client.position import BEGIN
from shmq.client.remote.groups import TcpGroups
from shmq.client.remote.share import HOLDERS_FIRST
from shmq.client.wire import UNWATCHED, QueueSlot, ignore
from shmq.errors import BrokerNotRunning
from shmq.protocol.dialect import MessageQueue
from tests.client.conftest import StandIn

QUEUE = MessageQueue("b", 0, "orders")
SLOT = QueueSlot(0, 0)


class Master:
    """What a broker's master knows of one group: who has a queue, and how far it was read."""

    def __init__(self, committed: int) -> None:
        self.committed_offset = committed
        self.owners: dict[MessageQueue, str] = {}
        self.answers = True


class Questions:
    """Asks the master of now."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.meanwhile: Callable[[], None] = ignore  # called between a master's answer and its arrival

    async def lock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> set[MessageQueue]:
        master = self.scene.master
        if not master.answers:
            raise BrokerNotRunning("it is not up yet")
        found = {queue for queue in queues if master.owners.setdefault(queue, client_id) == client_id}
        self.meanwhile()
        return found

    async def unlock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> None:
        for queue in queues:
            self.scene.master.owners.pop(queue, None)

    async def committed(self, group: str, queue: MessageQueue) -> int:
        return self.scene.master.committed_offset

    async def commit(self, group: str, queue: MessageQueue, offset: int, *, oneway: bool = False) -> None:
        self.scene.master.committed_offset = offset


def carried_out(work: Coroutine[Any, Any, Any]) -> Future[Any]:
    """Do what is for the I/O thread."""
    done: Future[Any] = Future()
    try:
        done.set_result(asyncio.run(work))
    except Exception as error:
        done.set_exception(error)
    return done


class Member:
    """One of the group, with one consumer."""

    def __init__(self, scene: Scene, name: str) -> None:
        self.scene = scene
        self.questions = Questions(scene)
        loop = SimpleNamespace(time=lambda: scene.now)
        network = SimpleNamespace(loop=loop, soon=ignore, submit=carried_out, spawn=carried_out, is_own_thread=False)
        self.wire: Any = SimpleNamespace(
            client_id=name,
            network=network,
            numbers=SimpleNamespace(queue=lambda topic, number, group: QUEUE),
            place=SimpleNamespace(options=SimpleNamespace(allocation="average")),
            serve=ignore,
            now_ms=lambda: 1,
            timeout=3.0,
            on_masters=ignore,
        )
        self.groups = TcpGroups(self.wire, self.questions)  # type: ignore[arg-type]
        self.groups._upkeep.is_running = True
        spec: Any = SimpleNamespace(
            group="g",
            topic="orders",
            model="clustering",
            ordered=True,
            tags=(),
            codec=None,
            auto_ack=False,
            start=BEGIN,
        )
        owner: Any = SimpleNamespace(keep_for=ignore)
        self.reader, self.share = self.groups.open(owner, spec, ignore)
        self.rebalanced: list[str] = []
        self.groups.watch(UNWATCHED._replace(members_changed=self.rebalanced.append))

    def want(self, *slots: QueueSlot) -> None:
        """Share the queues anew."""
        self.share.want(slots, [SLOT], self.scene.now)
        for _ in range(3):
            self.share.step(self.scene.now)

    def arrive(self, *offsets: int) -> None:
        [queue] = self.reader.queues
        messages: list[Any] = [StandIn(offset=offset, log_position=1) for offset in offsets]
        queue.arrive(messages, offsets[-1] + 1, 100, 0)

    def hear_of_the_switch(self) -> None:
        """Learn who leads now."""
        self.wire.on_masters({"b"})

    @property
    def handled(self) -> list[int]:
        """The offsets of what the listener is given now."""
        return [message.offset for message in self.reader.poll(10)]


class Scene:
    """Two members, and a broker with one queue."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.master = Master(committed=10)
        self.a, self.b = Member(self, "a"), Member(self, "b")
        self.a.want(SLOT)
        self.a.arrive(10, 11)

    def switch(self) -> None:
        self.master = Master(committed=10)


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_a_member_takes_no_queue_before_its_holder_could_lock_it_at_the_new_master(scene: Scene) -> None:
    scene.switch()
    scene.b.hear_of_the_switch()
    scene.b.want(SLOT)
    scene.now += HOLDERS_FIRST / 2
    scene.b.want(SLOT)
    assert not scene.b.share.held
    scene.a.hear_of_the_switch()
    assert scene.a.handled == [10, 11], "it has the lock again"
    scene.now += HOLDERS_FIRST
    scene.b.want(SLOT)
    assert not scene.b.share.held and scene.b.share.last_error


def test_a_queue_without_a_holder_is_taken_when_holders_had_their_time(scene: Scene) -> None:
    scene.switch()
    scene.b.hear_of_the_switch()
    scene.b.want(SLOT)
    scene.now += HOLDERS_FIRST
    scene.b.want(SLOT)
    assert scene.b.share.held and scene.master.owners[QUEUE] == "b"


def test_a_holder_stands_still_until_its_lock_is_confirmed_and_no_longer(scene: Scene) -> None:
    scene.switch()
    scene.master.answers = False
    scene.a.hear_of_the_switch()
    scene.a.want(SLOT)
    assert scene.a.handled == []
    scene.master.answers = True
    asyncio.run(scene.a.groups._upkeep._confirm_locks())
    assert scene.a.handled == [10, 11]


def test_a_lock_that_the_master_of_before_gave_meanwhile_does_not_count(scene: Scene) -> None:
    def switch() -> None:
        scene.a.questions.meanwhile = ignore
        scene.switch()
        scene.a.groups._upkeep.is_running = False  # the new master is not asked yet
        scene.a.hear_of_the_switch()

    scene.now += 20
    scene.a.questions.meanwhile = switch
    asyncio.run(scene.a.share.keep_locks())
    assert scene.a.handled == []


def test_a_queue_that_another_member_has_locked_is_read_anew_from_where_that_one_was(scene: Scene) -> None:
    scene.switch()
    scene.master.owners[QUEUE] = "b"
    scene.a.hear_of_the_switch()
    assert scene.a.handled == [] and not scene.a.reader.progress(), "what it committed would be an old offset"
    scene.a.want(SLOT)
    scene.master.owners.clear()
    scene.master.committed_offset = 50
    scene.now += HOLDERS_FIRST
    scene.a.want(SLOT)
    assert [queue.next_offset for queue in scene.a.reader.queues] == [50]


@pytest.mark.parametrize("round_of_upkeep", ["_confirm_locks", "_keep_locks"])
def test_queues_are_shared_anew_as_soon_as_a_lock_is_refused(scene: Scene, round_of_upkeep: str) -> None:
    scene.switch()
    scene.master.answers = False
    scene.a.hear_of_the_switch()
    scene.master.answers = True
    scene.master.owners[QUEUE] = "b"
    assert scene.a.rebalanced == []
    asyncio.run(getattr(scene.a.groups._upkeep, round_of_upkeep)())
    assert scene.a.rebalanced == ["g"]
    scene.a.want(SLOT)
    asyncio.run(getattr(scene.a.groups._upkeep, round_of_upkeep)())
    assert scene.a.rebalanced == ["g"], "it is known"


def test_a_broker_that_is_back_and_may_have_kept_its_locks_gives_free_queues_at_once(scene: Scene) -> None:
    scene.master.answers = False
    scene.a.wire.on_broker_back({"b"})
    assert scene.a.handled == []
    scene.master.answers = True
    asyncio.run(scene.a.groups._upkeep._confirm_locks())
    assert scene.a.handled == [10, 11]
    scene.master.owners.clear()
    scene.b.wire.on_broker_back({"b"})
    scene.b.want(SLOT)
    assert scene.b.share.held
