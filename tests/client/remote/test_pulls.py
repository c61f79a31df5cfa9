"""Pulls that a broker holds, whose master stands still or is cut off, and says nothing while another one leads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from shmq.addresses import Address
from shmq.client.remote import pulls
from shmq.client.remote.duties import Upkeep
from shmq.client.remote.groups import TcpGroups
from shmq.client.remote.pulls import PullReader
from shmq.client.remote.questions import Pulled, PullQuestion
from shmq.client.remote.reader import ProcessQueue
from shmq.client.spec import Wanted
from shmq.client.wire import ignore
from shmq.client.wire_tcp.channel import AnotherLeads
from shmq.client.wire_tcp.name_service import NameService
from shmq.client.wire_tcp.route import decode_route
from shmq.errors import BrokerNotRunning
from shmq.protocol.codes import Response
from shmq.protocol.command import Command
from shmq.protocol.dialect import MessageQueue
from shmq.protocol.route import BrokerData, QueueData, TopicRoute, encode_route


class Silent:
    """Brokers that never answer a pull."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def pull(self, question: PullQuestion, broker_id: int, timeout: float) -> Pulled:
        self.asked.append(question.queue.brokerName)
        await asyncio.Event().wait()
        raise AssertionError("unreachable")


async def turns() -> None:
    """Let everything happen that waits for no answer."""
    for _ in range(20):
        await asyncio.sleep(0)


def test_a_pull_that_another_master_can_answer_is_asked_there_at_once() -> None:
    async def main() -> None:
        loop, brokers = asyncio.get_running_loop(), Silent()
        network = SimpleNamespace(loop=loop, soon=loop.call_soon, spawn=loop.create_task, submit=None)
        options = SimpleNamespace(allocation="average")
        wire: Any = SimpleNamespace(
            network=network, place=SimpleNamespace(options=options), client_id="c", timeout=3.0, on_masters=ignore
        )
        wire.serve, wire.now_ms = ignore, lambda: 1
        groups = TcpGroups(wire, brokers)  # type: ignore[arg-type]
        spec: Any = SimpleNamespace(group="g", topic="orders", model="clustering", ordered=False, tags=(), codec=None)
        spec.auto_ack, spec.wanted = False, Wanted()
        owner: Any = SimpleNamespace(keep_for=ignore)
        reader, _ = groups.open(owner, spec, ignore)
        for number, name in enumerate(("a", "b")):
            reader.open(await reader.made(MessageQueue(name, 0, "orders"), number, 10))
        await turns()
        assert brokers.asked == ["a", "b"]
        wire.on_masters({"b"})
        await turns()
        assert brokers.asked == ["a", "b", "b"]
        reader.close()
        await turns()

    asyncio.run(main())


HOSTS = {
    "alone": {0: "h1:10911"},
    "master and slave": {0: "h1:10911", 1: "h2:10911"},
    "without a master": {1: "h2:10911"},
}


@pytest.mark.parametrize(("hosts", "is_asked"), [("alone", 0), ("master and slave", 1), ("without a master", 1)])
def test_name_servers_are_asked_who_leads_once_for_all_topics_where_that_may_change(hosts: str, is_asked: int) -> None:
    asked: list[str] = []

    def body(topic: str) -> bytes:
        return encode_route(TopicRoute([BrokerData("b", HOSTS[hosts], "c")], [QueueData("b", 4, 4)]), standard=True)

    async def request(address: Address, command: Command, seconds: float) -> Command:
        fields: Mapping[str, str] = command.ext
        asked.append(fields["topic"])
        return Command(code=Response.SUCCESS, body=body(fields["topic"]))

    async def main() -> None:
        loop, unused = asyncio.get_running_loop(), None
        network: Any = SimpleNamespace(loop=loop, request=request)
        names = NameService(network, [Address("names", 9876)], ignore, timeout=3.0)
        for topic in ("orders", "bills"):
            names.routes.put(topic, decode_route(topic, body(topic)), loop.time())
        registration: Any = SimpleNamespace(topics=lambda: ["orders", "bills", "unknown"])
        wire: Any = SimpleNamespace(network=network, names=names)
        upkeep: Any = Upkeep(wire, unused, registration, list, list, ignore)  # type: ignore[arg-type]
        await upkeep._look_who_leads()

    asyncio.run(main())
    assert len(asked) == is_asked


class Answers:
    """Answers that nothing is stored; held pulls of a queue fail with the errors given, one after the other."""

    def __init__(self, errors: dict[str, list[BrokerNotRunning]], *, also_short: bool = False) -> None:
        self.errors, self.also_short = errors, also_short

    async def pull(self, question: PullQuestion, broker_id: int, timeout: float) -> Pulled:
        errors = self.errors.get(question.queue.brokerName, [])
        if errors and (question.hold or self.also_short):
            raise errors.pop(0)
        return Pulled(next_offset=question.offset, offset_max=question.offset)


Polled = Callable[[Answers], list[Any]]


@pytest.fixture
def polled(monkeypatch: pytest.MonkeyPatch) -> Polled:
    """Return what polls two queues for 5 s, of a clock that goes on by one where the poll waits."""
    now = [0.0]

    def wait(_seconds: float) -> None:
        now[0] += 1.0

    def poll(answers: Answers) -> list[Any]:
        reader = reader_of(answers)
        monkeypatch.setattr(pulls, "time", SimpleNamespace(monotonic=lambda: now[0]))
        monkeypatch.setattr(reader.changed, "wait", wait)
        return reader.poll(10, timeout=5)

    return poll


def reader_of(answers: Answers) -> PullReader:
    network = SimpleNamespace(submit=asyncio.run, soon=ignore)
    wire: Any = SimpleNamespace(network=network, now_ms=lambda: 1)
    reader = PullReader(wire, answers, wanted=Wanted(), codec=None)  # type: ignore[arg-type]
    for number, name in enumerate(("a", "b")):
        reader.open(ProcessQueue(MessageQueue(name, 0, "orders"), number, 10, settles=False))
    return reader


@pytest.mark.parametrize("error", [BrokerNotRunning("it was restarted"), AnotherLeads("h2 leads")])
def test_a_poll_that_finds_nothing_says_nothing_of_an_error_that_is_over(
    polled: Polled, error: BrokerNotRunning
) -> None:
    assert polled(Answers({"b": [error]})) == []


def test_a_pull_that_was_given_up_is_no_error_also_before_the_next_master_has_answered(polled: Polled) -> None:
    leads = [AnotherLeads("h2 leads") for _ in range(20)]
    assert polled(Answers({"b": leads})) == []


def test_a_broker_that_cannot_be_read_is_an_error_however_often_others_answer(polled: Polled) -> None:
    down = [BrokerNotRunning("it is down") for _ in range(20)]
    with pytest.raises(BrokerNotRunning, match="it is down"):
        polled(Answers({"a": down}, also_short=True))
