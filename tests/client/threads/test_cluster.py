"""A connection over TCP where callers' threads and the I/O thread meet: nothing gets lost, nothing of before counts."""

import types
from collections.abc import Coroutine, Generator
from types import SimpleNamespace
from typing import Any

from shmq.addresses import Address
from shmq.client.place import RemoteOptions
from shmq.client.position import BEGIN
from shmq.client.remote.groups import TcpGroups
from shmq.client.remote.pulls import PullReader
from shmq.client.remote.questions import Pulled, PullQuestion
from shmq.client.remote.reader import ProcessQueue, TcpReader
from shmq.client.spec import ConsumerSpec, Wanted
from shmq.client.wire import ignore
from shmq.client.wire_tcp.name_service import Routes
from shmq.client.wire_tcp.network import Network
from shmq.client.wire_tcp.route import QueueNumbers, Route
from shmq.errors import UsageError
from shmq.protocol.dialect import MessageQueue
from tests.interruption import by_another_thread, met_everywhere

QUEUE = MessageQueue("a", 0, "orders")


def wire() -> Any:
    """A wire without a network."""
    network = SimpleNamespace(soon=ignore, submit=lambda work: work.close())
    options = SimpleNamespace(allocation="average")
    return SimpleNamespace(place=SimpleNamespace(options=options), network=network, serve=ignore, now_ms=lambda: 1)


class SubscribersMeet:
    """Two threads subscribe over one connection."""

    def __init__(self) -> None:
        self.groups = TcpGroups(wire(), SimpleNamespace())  # type: ignore[arg-type]
        self.made: list[object] = []

    def action(self) -> None:
        spec = ConsumerSpec("orders", "billing", start=BEGIN)
        reader, _ = self.groups.open(SimpleNamespace(), spec, ignore)  # type: ignore[arg-type]
        self.made.append(reader)

    other = action

    def check(self) -> None:
        assert (len(self.groups.readers), len([*self.groups._shares])) == (len(self.made),) * 2


def test_no_reader_and_no_share_gets_lost_where_two_threads_subscribe() -> None:
    assert met_everywhere(SubscribersMeet, before="opcode") > 100


class Record:
    """What a queue looks at of a message."""

    queue_id, record_bytes = 0, 100

    def __init__(self, offset: int) -> None:
        self.offset = self.log_position = offset

    def ack(self) -> None:
        """The object alone counts as settled."""


class ResetMeetsHandOver:
    """An administrator resets a group while a consumer gives a message back to the broker."""

    def __init__(self) -> None:
        self.reader = TcpReader(wire(), owner=None, tags=(), codec=None)
        self.queue = ProcessQueue(QUEUE, 0, 0, settles=True)
        self.reader.open(self.queue)
        self.message: Any = Record(0)
        self.queue.arrive([self.message], 1, 1, 0)

    def action(self) -> None:
        self.reader.hand_over(self.message)

    def other(self) -> None:
        by_another_thread(lambda: self.reader.seek(0, 0), unless_held=self.reader.changed)

    def check(self) -> None:
        assert not self.queue.handed or self.queue.holds(self.message), "it would never be settled again"


def test_no_message_of_before_a_reset_is_with_the_broker() -> None:
    assert met_everywhere(ResetMeetsHandOver, before="opcode") > 50


@types.coroutine
def answered_later() -> Generator[None, None, None]:
    """Wait for an answer."""
    yield


class PullMeetsSeek:
    """The I/O thread begins a pull while the application goes to another place."""

    def __init__(self) -> None:
        self.reader = PullReader(wire(), self, wanted=Wanted(()), codec=None)  # type: ignore[arg-type]
        self.queue = ProcessQueue(QUEUE, 0, 100, settles=False)
        self.reader.open(self.queue)
        self.pulling: Coroutine[Any, Any, None] | None = None

    async def pull(self, question: PullQuestion, _broker_id: int, _timeout: float) -> Pulled:
        await answered_later()
        return Pulled(b"", question.offset + 32, 1000)

    def action(self) -> None:
        self.reader.seek(0, 10)

    def other(self) -> None:
        self.pulling = self.reader._pull(self.queue, 0.0)
        self.pulling.send(None)

    def check(self) -> None:
        if self.pulling is not None:
            try:
                self.pulling.send(None)
            except StopIteration:
                assert self.queue.next_offset in (10, 10 + 32), "messages behind the new place are left out"


def test_the_answer_to_a_pull_from_the_old_place_is_not_taken_for_one_from_the_new_place() -> None:
    assert met_everywhere(PullMeetsSeek, before="opcode") > 50


class LookMeetsRoute:
    """A route is learned while another thread looks at all of them."""

    def __init__(self) -> None:
        self.routes = Routes()
        for topic in ("a", "b", "c"):
            self.routes.put(topic, Route(topic, (), (), {}, ()), 0.0)

    def action(self) -> None:
        assert len(self.routes.all()) >= 3

    def other(self) -> None:
        self.routes.put("d", Route("d", (), (), {}, ()), 0.0)

    def check(self) -> None:
        """The action has looked itself."""


def test_routes_may_be_learned_while_another_thread_looks_at_them() -> None:
    assert met_everywhere(LookMeetsRoute, before="opcode") > 10


class LearningMeetsUse:
    """The I/O thread learns a broker while another one names its queues."""

    def __init__(self) -> None:
        self.numbers = QueueNumbers()
        self.numbers.learn(["a"])

    def action(self) -> None:
        self.numbers.learn(["a", "b"])

    def other(self) -> None:
        queue = MessageQueue("b", 3, "orders")
        assert self.numbers.queue("orders", self.numbers.number(queue)).queueId == 3

    def check(self) -> None:
        self.other()


def test_a_number_of_a_queue_always_names_one() -> None:
    assert met_everywhere(LearningMeetsUse, before="opcode") > 20


class UseMeetsClose:
    """A connection is closed while another thread asks for something."""

    def __init__(self) -> None:
        self.network = Network(RemoteOptions(), connect_timeout=1.0, on_request=ignore, on_reconnect=ignore)
        self.work = self.ask()

    async def ask(self) -> list[Address]:
        return self.network.connected()

    def action(self) -> None:
        try:
            self.network.submit(self.work)
        except UsageError as error:
            assert "closed" in str(error)

    def other(self) -> None:
        self.network.stop(60.0)

    def check(self) -> None:
        self.other()
        self.work.close()


def test_who_asks_while_the_connection_is_closed_hears_that_it_is_closed() -> None:
    assert met_everywhere(UseMeetsClose) > 10
