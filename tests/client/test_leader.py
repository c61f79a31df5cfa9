"""The way from a slave's host to its leader, while a switch changes who that is."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from shmq.client.following.copying import Copying
from shmq.client.leader import TABLES_SECONDS, Leader
from shmq.daemon.ha.slave import following
from shmq.errors import NotMaster
from shmq.protocol.codes import Request
from shmq.shm.core import READ_ONLY_FOLLOWER, Store


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


def test_a_topic_is_waited_for_as_long_as_a_slave_takes_to_copy_tables() -> None:
    assert following._TABLES_MS == 1000 * TABLES_SECONDS
