"""Which links of a broker the election hears of."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from shmq.daemon.ha.elected.counting import ElectedCounting
from shmq.daemon.ha.election.effects import Leaving, Message, Position
from shmq.daemon.ha.election.message_codec import message_bytes
from shmq.daemon.ha.leader import LeaderLink
from shmq.daemon.ha.meeting import Side
from tests.keeper.conftest import Events


@pytest.mark.parametrize("is_aside", [False, True])
def test_a_slave_that_takes_no_part_in_the_election_counts_nowhere(is_aside: bool) -> None:
    heard: list[tuple[str, Message]] = []
    gone: list[str] = []
    counting = ElectedCounting(
        cast(Any, Events()),
        is_sync=True,
        hears=lambda peer, message: heard.append((peer, message)),
        gone=gone.append,
        in_sync=frozenset,
    )
    side = Side(store="1" * 32, is_aside=is_aside)
    link = cast(LeaderLink, SimpleNamespace(slave=side, epoch=3, acknowledged=100, closed=""))
    counting.report(link, "10.0.0.5:4711", 50)
    counting.heard(link, message_bytes(Leaving(3)))
    counting.gone(link)
    expected = [] if is_aside else [(side.store, Position(3, 100, 50)), (side.store, Leaving(3))]
    assert heard == expected and gone == [store for store, _ in expected[:1]]
