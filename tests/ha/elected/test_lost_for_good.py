"""What only an operator can decide: the one store in sync is gone for good, or etcd has lost what it knew."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from shmq.figures.verdict import Finding, Verdict
from shmq.testing import Broker
from tests.deadline import eventually
from tests.ha.elected.group import Group, acknowledged, group_of, leads
from tests.ha.etcd.server import needs_etcd
from tests.ha.pair import assert_equal
from tests.ha.seen import findings_of
from tests.ha.test_switch import cluster, read

pytest.importorskip("urllib3")
pytestmark = [needs_etcd(), pytest.mark.slow]


def waits_because(broker: Broker, words: str) -> bool:
    return words in str(cluster(broker, "status")["election"]["reason"])


def check_promoted(group: Group, chosen: Broker, stored: list[int]) -> None:
    """It leads, the other one follows it, and what its log had is there."""
    done = cluster(chosen, "promote", "--force")
    assert group.wait_for_epoch(done["epoch"]) is chosen
    stored = stored + acknowledged(chosen, range(100, 110))
    assert group.wait_for_set(2) is chosen
    assert_equal(chosen, group.other(chosen))
    assert read(chosen, len(stored), "readers") == stored


def test_a_slave_leads_by_force_where_the_only_store_in_sync_is_gone(tmp_path: Path) -> None:
    with group_of(tmp_path, 2, sync=True) as (group, _):
        old = group.wait_for_set(2)
        new = group.other(old)
        stored = acknowledged(old, range(10))
        assert_equal(old, new)
        new.kill_daemon()
        assert group.wait_for_set(1) is old
        acknowledged(old, range(10, 20))  # on one disk, which is lost now
        old.kill_daemon()
        shutil.rmtree(old.store)
        old.restart()
        new.restart()
        for broker in group.brokers:
            eventually(lambda broker=broker: waits_because(broker, "is not in sync: only"), group.told)
            assert not leads(broker)
        assert "in sync are the stores" in cluster(new, "promote", fails=True)["error"]
        check_promoted(group, new, stored)


def warned(broker: Broker, words: str) -> list[Finding]:
    """What health says of the election where it warns of that."""
    found = findings_of(broker, "election")
    return [finding for finding in found if finding.verdict is Verdict.WARNING and words in finding.why]


def test_a_leader_goes_on_without_the_data_of_etcd_and_leads_by_force_after_a_restart_of_all(tmp_path: Path) -> None:
    with group_of(tmp_path, 2, sync=True) as (group, etcd):
        first = group.wait_for_set(2)
        cluster(group.other(first), "promote")
        old = group.wait_for_set(2)
        assert old is not first
        stored = acknowledged(old, range(10))
        etcd.stop()
        shutil.rmtree(tmp_path / "etcd" / "data")
        etcd.start()
        [finding] = eventually(lambda: warned(old, "data were lost"), group.told)
        assert "stop every broker" in finding.why
        eventually(
            lambda: "data were lost" in str(cluster(group.other(old), "status")["election"]["reason"]), group.told
        )
        stored += acknowledged(old, range(10, 20))
        for broker in group.brokers:
            broker.kill_daemon()
        for broker in group.brokers:
            broker.restart()
        for broker in group.brokers:
            eventually(lambda broker=broker: waits_because(broker, "lost or put back"), group.told)
            assert not leads(broker)
        check_promoted(group, old, stored)
