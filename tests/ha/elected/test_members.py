"""Members on every host of an elected group are members of one group, whichever host leads."""

from __future__ import annotations

import contextlib
from collections import Counter
from pathlib import Path

import pytest

import shmq
from tests.deadline import eventually
from tests.ha.elected.group import acknowledged, group_of
from tests.ha.etcd.server import needs_etcd
from tests.ha.slave.test_members import QUEUES, progress_of, received, shared_out
from tests.ha.test_switch import cluster

pytest.importorskip("urllib3")
pytestmark = [needs_etcd(), pytest.mark.slow]


def test_members_of_all_hosts_share_the_queues_before_and_after_a_handover_and_a_death(tmp_path: Path) -> None:
    with group_of(tmp_path, 3, sync=True, default_queues=QUEUES) as (group, _), contextlib.ExitStack() as open_now:
        old = group.wait_for_set(3)
        acknowledged(old, range(1))
        connections, members = {}, {}
        for broker in group.brokers:
            mq = connections[broker] = open_now.enter_context(broker.connect())
            eventually(lambda mq=mq: "orders" in mq.admin.topics)
            members[broker] = open_now.enter_context(mq.subscribe("orders", group="all"))
        assert {len(part) for part in shared_out(*members.values())} == {2}
        received(1, *members.values())
        acknowledged(old, range(1, 60))
        parts = received(59, *members.values())
        assert sum(parts, Counter()) == Counter(range(1, 60)) and all(parts)

        for broker in group.brokers:  # which a slave hears of once a second
            eventually(lambda broker=broker: progress_of("all", broker) == 60)

        new = next(broker for broker in group.brokers if broker is not old)
        cluster(new, "promote")
        assert group.wait_for_set(3) is new
        assert {len(part) for part in shared_out(*members.values())} == {2}
        acknowledged(new, range(60, 120))
        assert all_of(range(60, 120), *members.values()) == Counter(range(60, 120))

        connections[new]._vanish()  # with its host
        new.kill_daemon()
        last = group.leader(besides=new)
        left = [member for broker, member in members.items() if broker is not new]
        acknowledged(last, range(120, 180))
        shared_out(*left)
        all_of(range(120, 180), *left)


def all_of(bodies: range, *members: shmq.Subscription) -> Counter[int]:
    """What members are handed until nothing of these is missing."""
    found: Counter[int] = Counter()

    def is_whole() -> bool:
        for part in received(0, *members):
            found.update(part)
        return set(bodies) <= set(found)

    eventually(is_whole, lambda: str(found))
    return found
