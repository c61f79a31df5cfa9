"""Which commits of a slave its master has to hear of: those made while it was gone, and no others."""

from __future__ import annotations

import pytest

from shmq.daemon.ha.slave.kept_commits import KeptCommits, Place
from shmq.delay_levels import SCHEDULE_GROUP
from tests.broker.conftest import MemoryTables


class Slave:
    """Two queues of a topic, and what groups commit there."""

    def __init__(self) -> None:
        self.tables = MemoryTables()
        self.tables.topic_put("orders", read_queues=2, write_queues=2, perm=6, flags=0, kind=0)
        self.kept = KeptCommits(self.tables)  # type: ignore[arg-type]

    def commit(self, group: str, offset: int, queue_id: int = 0) -> int:
        topic = self.tables.topic("orders")
        assert topic is not None
        slot = self.tables.offset_put(self.tables.group_put(group), topic.queues[queue_id])
        self.tables.set_committed(slot, offset)
        return slot

    def collected(self) -> dict[tuple[str, int], int]:
        self.kept.collect()
        return {(place.group, place.queue_id): offset for place, offset in self.kept.waiting.items()}


@pytest.fixture
def slave() -> Slave:
    return Slave()


def test_what_was_committed_while_the_master_was_gone_waits(slave: Slave) -> None:
    slave.commit("billing", 3)
    slave.commit("audit", 3)
    slave.kept.lost()
    slave.commit("billing", 5)
    slave.commit("billing", 2, queue_id=1)
    slave.commit("new", 1)
    slave.kept.lost()  # it was tried again
    slave.commit("billing", 6)
    assert slave.collected() == {("billing", 0): 6, ("billing", 1): 2, ("new", 0): 1}


def test_what_was_committed_beside_a_living_master_is_this_hosts(slave: Slave) -> None:
    slave.kept.lost()
    slave.kept.collect()
    slave.commit("local", 7)
    slave.kept.lost()
    assert slave.collected() == {}


def test_what_rose_since_the_master_spoke_of_it_counts_though_its_death_was_noticed_late(slave: Slave) -> None:
    slot = slave.commit("billing", 3)
    slave.kept.spoken_of(slot)
    slave.commit("billing", 4)
    slave.kept.lost()
    assert slave.collected() == {("billing", 0): 4}


def test_what_was_set_back_and_the_groups_of_the_broker_itself_do_not_wait(slave: Slave) -> None:
    slave.commit("billing", 3)
    slave.kept.lost()
    slave.commit("billing", 1)
    slave.commit(SCHEDULE_GROUP, 9)
    assert slave.collected() == {}


def test_what_the_master_has_not_heard_of_waits_for_the_next_one(slave: Slave) -> None:
    slave.kept.lost()
    slave.commit("billing", 4)
    slave.commit("audit", 4)
    slave.kept.collect()
    slave.kept.forget(Place("audit", "orders", 0))
    slave.kept.lost()
    assert slave.collected() == {("billing", 0): 4}
