"""A master that lost its tables makes its topics again from its log before a slave follows it: nothing is deleted."""

from __future__ import annotations

from pathlib import Path

import pytest

from shmq.testing import Broker
from tests.ha.test_lives import Life, assert_copied
from tests.ha.test_switch import fixed, slave_of

TABLES = "topics.json*", "subscriptionGroup.json*"


@pytest.mark.slow
def test_a_master_that_lost_its_tables_takes_no_topic_from_its_slave() -> None:
    with Broker(**fixed()) as master, slave_of(master) as slave:
        life, other = Life(master, "goes-on"), Life(master, "stays")
        for each in (life, other):
            each.make()
            each.send(0, 1)
            assert_copied(master, slave, each)
        master.kill_daemon()
        lost = [path for table in TABLES for path in Path(master.store, "config").glob(table)]
        assert {path.name for path in lost} >= {"topics.json", "subscriptionGroup.json"}
        for path in lost:
            path.unlink()
        master.restart()
        life.send(1, 0, 0)  # what the slave copies of it says that they have met
        for each in (life, other):
            assert_copied(master, slave, each)
        assert "ha.topic_deleted" not in slave.log
