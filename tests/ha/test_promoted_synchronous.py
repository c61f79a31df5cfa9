"""A slave of a synchronous master that is promoted: what its master promised remains true."""

from __future__ import annotations

import pytest

import shmq
from shmq.shm.core import ACK_CONFIRMED
from shmq.store.lineage.standing import load_identity
from shmq.testing import Broker
from tests.deadline import DEADLINE_SECONDS, eventually
from tests.ha.pair import assert_equal, send
from tests.ha.seen import until_told
from tests.ha.test_switch import cluster, fixed, follow, ha_of, layout_of, read, slave_of
from tests.shm.looking import looking

pytestmark = pytest.mark.slow


def sync_master(in_sync_min: int) -> Broker:
    return Broker(role="sync-master", in_sync_min=in_sync_min, **fixed())


def until_in_sync(master: Broker) -> None:
    until_told(master, lambda told: [row.state for row in told.replicas] == ["in sync"])


def stored(broker: Broker, body: bytes) -> bool:
    """Whether the broker acknowledges it; it makes its segments anew just now."""
    try:
        with broker.connect(timeout=DEADLINE_SECONDS) as mq:
            mq.producer().send("orders", body)
    except (shmq.ReadOnlyStore, shmq.NotMaster, shmq.BrokerNotRunning):
        return False
    return True


@pytest.mark.parametrize("in_sync_min", [1, 2])
def test_a_promoted_slave_waits_for_as_many_disks_as_its_master_did(in_sync_min: int) -> None:
    with sync_master(in_sync_min) as old, slave_of(old) as new:
        until_in_sync(old)
        send(old, range(20))
        assert_equal(old, new)
        assert load_identity(layout_of(new)).inSyncMin == in_sync_min
        old.kill_daemon()
        done = cluster(new, "promote")
        assert (done["epoch"], done["missing_bytes"]) == (1, 0)
        shown = cluster(new, "status")
        assert (shown["role"], shown["standing"], shown["epoch"]) == ("sync-master", "leads", 1)
        with looking(new) as store:
            assert store.head["ack_rule"] == ACK_CONFIRMED and store.epoch == 1
        if in_sync_min == 1:
            eventually(lambda: stored(new, b"20"), lambda: new.log[-2000:])
        else:
            with new.connect() as mq, pytest.raises(shmq.ReadOnlyStore):
                mq.producer().send("orders", b"no")
        follow(old, new)
        until_in_sync(new)
        if in_sync_min == 2:
            eventually(lambda: stored(new, b"20"), lambda: new.log[-2000:])
        send(new, range(21, 30))
        assert_equal(new, old)
        assert read(new, 30, "readers") == list(range(30))
        assert load_identity(layout_of(old)).inSyncMin == in_sync_min


def test_a_slave_that_none_can_follow_does_not_become_a_synchronous_master_unsaid() -> None:
    with sync_master(1) as old:
        where = {"master": old.broker_address, "master_ha": ha_of(old)}
        with Broker(name=old.name, role="slave", tcp=True, **where) as new:
            until_in_sync(old)
            send(old, range(5))
            assert_equal(old, new)
            old.kill_daemon()
            assert "--ha-listen" in cluster(new, "promote", fails=True)["hint"]
            cluster(new, "promote", "--force")
            assert cluster(new, "status")["role"] == "master"
            send(new, range(5, 8))
            assert read(new, 8, "readers") == list(range(8))
