"""The way from a slave's host to its leader, while a switch changes who that is."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from shmq.client.following.copying import Copying
from shmq.client.leader import TABLES_SECONDS, Leader
from shmq.client.remote_session import RemoteSession
from shmq.daemon.ha.slave import following
from shmq.errors import NotMaster, ShmqError
from shmq.protocol.body import TopicConfig, TopicTable, encode_body
from shmq.protocol.codes import Request, Response
from shmq.protocol.command import Command
from shmq.protocol.route import decode_route
from shmq.shm.core import READ_ONLY_FENCED, READ_ONLY_FOLLOWER, Store


class Segments:
    """What a leader is read from; a switch clears the name between two looks."""

    standing = READ_ONLY_FOLLOWER

    def __init__(self, *leaders: str) -> None:
        self._leaders = list(leaders)

    @property
    def leader(self) -> str:
        return self._leaders.pop(0)


def test_a_leader_that_is_cleared_between_two_looks_is_refused_as_not_known() -> None:
    segments = Segments("10.0.0.4:10911", "")
    leader = Leader(lambda: cast(Store, segments), broker="b", cluster="c", client_id="me", timeout=1.0)
    assert leader.is_elsewhere
    with pytest.raises(NotMaster, match="who leads is not known"):
        _ = leader.session


@pytest.mark.parametrize(
    ("standing", "address", "is_elsewhere"),
    [(READ_ONLY_FENCED, "h:1", True), (READ_ONLY_FENCED, "", False), (0, "h:1", False), (0, "", False)],
)
def test_a_host_that_is_fenced_sends_to_the_one_that_leads_now(standing: int, address: str, is_elsewhere: bool) -> None:
    segments = SimpleNamespace(standing=standing, leader=address)
    leader = Leader(lambda: cast(Store, segments), broker="b", cluster="c", client_id="me", timeout=1.0)
    assert leader.is_elsewhere is is_elsewhere
    assert not leader.owns_groups  # those are its own until it follows


def test_a_leader_that_was_left_is_found_again() -> None:
    leader = Leader(lambda: cast(Store, Segments(*["h:1"] * 2)), broker="b", cluster="c", client_id="me", timeout=1.0)
    opened: list[SimpleNamespace] = []

    def opening(address: str) -> Any:
        opened.append(SimpleNamespace(close=lambda: None))
        return opened[-1]

    leader._open = opening  # type: ignore[method-assign]
    assert leader.session is opened[0]
    leader.leave()
    assert leader.session is opened[1]


@pytest.mark.parametrize("is_refused", [False, True])
def test_what_names_a_place_in_the_log_is_not_asked_of_a_leader_whose_log_is_another(is_refused: bool) -> None:
    leader = Leader(
        lambda: cast(Store, Segments("h:1")),
        broker="b",
        cluster="c",
        client_id="me",
        timeout=1.0,
        copying=lambda: Copying(is_refused=is_refused),
    )
    assert leader.owns_groups is leader.takes(Request.CONSUMER_SEND_MSG_BACK) is not is_refused
    assert leader.takes(Request.UPDATE_AND_CREATE_TOPIC)


def answer_of(replies: dict[int, Command], topic: str = "ordered") -> Command:
    """What a host that follows says of the queues of a topic, where its leader answers so."""
    segments = SimpleNamespace(standing=READ_ONLY_FOLLOWER, leader="h:1", topic_find=lambda topic: -1)
    leader = Leader(lambda: cast(Store, segments), broker="b", cluster="c", client_id="me", timeout=1.0)

    async def request(address: str, command: Command, seconds: float) -> Command:
        return replies[command.code]

    wire = SimpleNamespace(network=SimpleNamespace(request=request), names=SimpleNamespace(current="h:1"))
    leader._session = cast(RemoteSession, SimpleNamespace(wire=wire))
    return asyncio.run(leader._answer(Request.GET_ROUTEINFO_BY_TOPIC, {"topic": topic}))


@pytest.mark.parametrize("code", [Request.GET_ROUTEINFO_BY_TOPIC, Request.GET_BROKER_CLUSTER_INFO])
def test_a_host_that_does_not_know_who_leads_answers_with_no_address(code: int) -> None:
    segments = SimpleNamespace(standing=READ_ONLY_FOLLOWER, leader="")
    leader = Leader(lambda: cast(Store, segments), broker="b", cluster="c", client_id="me", timeout=1.0)
    with pytest.raises(NotMaster, match="who leads is not known"):
        asyncio.run(leader._answer(code, {"topic": "orders"}))


CONFIG = TopicConfig("ordered", 4, 8)
UNSUPPORTED = Command(code=Response.REQUEST_CODE_NOT_SUPPORTED, remark="not supported")


@pytest.mark.parametrize(
    "replies",
    [
        {Request.GET_TOPIC_CONFIG: Command(code=Response.SUCCESS, body=encode_body(CONFIG))},
        {
            Request.GET_TOPIC_CONFIG: UNSUPPORTED,  # by a master of RocketMQ 4
            Request.GET_ALL_TOPIC_CONFIG: Command(
                code=Response.SUCCESS, body=encode_body(TopicTable({"ordered": CONFIG, "other": TopicConfig("other")}))
            ),
        },
    ],
)
def test_the_queues_of_a_topic_that_this_host_does_not_know_yet_are_those_at_the_leader(
    replies: dict[int, Command],
) -> None:
    [queues] = decode_route(answer_of(replies).body).queueDatas
    assert (queues.readQueueNums, queues.writeQueueNums) == (4, 8)


@pytest.mark.parametrize(
    "replies",
    [
        {Request.GET_TOPIC_CONFIG: Command(code=Response.TOPIC_NOT_EXIST)},
        {
            Request.GET_TOPIC_CONFIG: UNSUPPORTED,
            Request.GET_ALL_TOPIC_CONFIG: Command(code=Response.SUCCESS, body=encode_body(TopicTable())),
        },
    ],
)
def test_a_topic_that_the_leader_lacks_is_none(replies: dict[int, Command]) -> None:
    assert answer_of(replies).code == Response.TOPIC_NOT_EXIST


@pytest.mark.parametrize("code", [Response.NO_PERMISSION, Response.SYSTEM_ERROR])
@pytest.mark.parametrize("first", [Command(code=0), UNSUPPORTED])
def test_a_leader_that_does_not_say_is_no_leader_without_the_topic(code: int, first: Command) -> None:
    """A message group would go to a queue of the default topic, which is another one than its own."""
    refused = Command(code=code, remark="not for you")
    replies = {Request.GET_TOPIC_CONFIG: first if first.code else refused, Request.GET_ALL_TOPIC_CONFIG: refused}
    with pytest.raises(ShmqError, match="not for you"):
        answer_of(replies)


def test_a_topic_is_waited_for_as_long_as_a_slave_takes_to_copy_tables() -> None:
    assert following._TABLES_MS == 1000 * TABLES_SECONDS
