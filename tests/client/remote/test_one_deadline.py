"""What asks name servers and brokers several times has one deadline for all of it, whichever of them are silent."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from shmq.client.remote.groups import TcpGroups
from shmq.client.remote.questions import QueueQuestions
from shmq.client.remote.registration import Registration
from shmq.client.spec import ConsumerSpec
from shmq.client.wire import ignore
from shmq.client.wire_tcp.name_service import NameService
from shmq.protocol.dialect import MessageQueue
from shmq.protocol.route import DEFAULT_TOPIC
from tests.client.remote.standing_clock import later, on_a_standing_clock
from tests.client.remote.test_silent_name_servers import OLD, SECONDS, Place

QUESTIONS: dict[str, Callable[[NameService], Awaitable[Any]]] = {
    "where it is written": lambda names: names.writable_route("fresh", timeout=SECONDS),
    "where it is read": lambda names: names.readable_route("fresh", timeout=SECONDS),
    "which brokers there are": lambda names: names.broker_names(timeout=SECONDS),
    "where a master is": lambda names: names.master("z", timeout=SECONDS),
    "whether there is a switch": lambda names: names.may_switch("orders", timeout=SECONDS),
}


@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.parametrize("answers", range(6))
def test_what_asks_name_servers_several_times_ends_in_its_time_however_soon_they_fall_silent(
    answers: int, question: str
) -> None:
    async def main() -> None:
        place = Place((DEFAULT_TOPIC,))
        await place.names.route(DEFAULT_TOPIC)
        place.names.routes.forget(DEFAULT_TOPIC)
        place.names._born.add("fresh")
        place.silent_after = len(place.asked) + answers
        assert await place.takes(QUESTIONS[question](place.names)) <= SECONDS + 0.01

    on_a_standing_clock(main())


def test_a_registration_ends_in_its_time_whichever_hosts_are_silent() -> None:
    async def main() -> None:
        for silent in ({"names", "others"}, {"a", "b"}, {"names", "others", "a", "b"}):
            for known in (True, False):
                place = Place(("orders", "%RETRY%billing", "bills", "%RETRY%shop"))
                registration = Registration(place.wire)
                registration.set(["shop"], [ConsumerSpec("orders", "billing"), ConsumerSpec("bills", "shop")])
                if known:
                    await registration.register()
                    await later(OLD)
                place.silent = silent
                assert await place.takes(registration.register()) <= SECONDS + 0.01
                assert await place.takes(registration.introduce("orders", SECONDS)) <= SECONDS + 0.01

    on_a_standing_clock(main())


def test_the_members_of_a_group_are_asked_for_at_another_broker_when_one_is_silent() -> None:
    async def main() -> None:
        place = Place()
        questions = QueueQuestions(place.network, place.names, SECONDS)
        place.silent = {"a"}
        assert await questions.members("billing", "orders", timeout=SECONDS) == ["me"]
        place.silent = {"a", "b"}
        assert await place.takes(questions.members("billing", "orders", timeout=SECONDS)) <= SECONDS + 0.01

    on_a_standing_clock(main())


@pytest.mark.parametrize("question", ["who reads what", "why nothing is read"])
@pytest.mark.parametrize("knows", [True, False])
@pytest.mark.parametrize("answers", range(7))
def test_the_queues_of_a_member_are_shared_out_in_the_time_of_one_request(
    answers: int, knows: bool, question: str
) -> None:
    async def main() -> None:
        topics = ("orders", "%RETRY%billing+orders", "%RETRY%billing")
        place = Place(topics)
        if knows:
            for topic in topics:
                await place.names.route(topic)
            await later(OLD)
        groups, spec, share = groups_of(place), ConsumerSpec("orders", "billing"), SimpleNamespace(missing=[])
        place.silent_after = len(place.asked) + answers
        ask: Any = groups._assignment(spec) if question == "who reads what" else groups._why_unassigned(spec, share)  # type: ignore[arg-type]
        assert await place.takes(ask) <= SECONDS + 0.01

    on_a_standing_clock(main())


@pytest.mark.parametrize("answers", range(3))
def test_a_question_about_a_queue_ends_in_its_time(answers: int) -> None:
    async def main() -> None:
        place = Place()
        questions = QueueQuestions(place.network, place.names, SECONDS)
        await place.names.route("orders")
        await later(OLD)
        place.silent_after = len(place.asked) + answers
        assert await place.takes(questions.committed("billing", MessageQueue("a", 0, "orders"))) <= SECONDS + 0.01

    on_a_standing_clock(main())


def groups_of(place: Place) -> TcpGroups:
    """The groups of a connection, without its upkeep."""
    place.network.soon = place.wire.serve = ignore
    place.wire.place = SimpleNamespace(options=SimpleNamespace(allocation="average"))
    place.wire.slot = lambda queue, retry=False: queue
    return TcpGroups(place.wire, QueueQuestions(place.network, place.names, SECONDS))
