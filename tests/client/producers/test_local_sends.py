"""Local senders know whether their broker's leader is elected, also while nothing says so."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shmq.client.producers.local_sends import LocalSends
from shmq.shm.links import ElectionState, Links, write_links
from shmq.testing import SharedBroker


@pytest.mark.parametrize("election", [None, ElectionState("leading", "1234")])
def test_what_says_that_the_leader_is_elected_may_go_in_a_switch(
    shmq_shared_broker: SharedBroker, tmp_path: Path, election: ElectionState | None
) -> None:
    path = tmp_path / "links.json"
    write_links(path, Links(1, "master", election=election), mode=0o600, gid=-1)
    with shmq_shared_broker.connect() as mq:
        session = mq._local()
        wire: Any = SimpleNamespace(
            store=session.wire.store, wait_durable=False, control=session.wire.control, place=session.wire.place
        )
        wire.place = SimpleNamespace(links_path=path, broker_name="b")
        sends = LocalSends(wire, session.queues, session.leader)
        sends.sender(1.0)
        path.unlink()
        assert sends._is_elected() is (election is not None)
        write_links(path, Links(1, "master", election=ElectionState("following", "1234")), mode=0o600, gid=-1)
        assert sends._is_elected()
