"""What only an operator can decide: the one store in sync is gone for good, or etcd has lost what it knew."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from shmq.figures.verdict import Finding, Verdict
from shmq.store.lineage.epochs import load_epochs
from shmq.testing import Broker
from tests.deadline import eventually
from tests.ha.elected.group import Group, acknowledged, group_of, leads
from tests.ha.etcd.server import needs_etcd
from tests.ha.pair import assert_equal
from tests.ha.seen import findings_of
from tests.ha.test_switch import cluster, layout_of, read

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


def last_record(broker: Broker) -> int:
    """Where the last record of a stopped broker's log lies, as the page has it looked at."""
    command = [sys.executable, "-m", "shmq", "--json", "store", "inspect", "--tail", str(broker.store)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return int(json.loads(done.stdout)["record"]["position"])


def test_behind_an_etcd_that_was_put_back_within_the_epoch_the_host_that_led_is_started_alone(tmp_path: Path) -> None:
    """What etcd had then names as in sync a store that left the set since: it would be elected, without the rest."""
    with group_of(tmp_path, 2, sync=True) as (group, etcd):
        old = group.wait_for_set(2)
        new = group.other(old)
        stored = acknowledged(old, range(10))
        etcd.stop()
        shutil.copytree(tmp_path / "etcd" / "data", tmp_path / "backup")
        etcd.start()
        assert group.wait_for_set(2) is old
        new.kill_daemon()
        assert group.wait_for_set(1) is old
        stored += acknowledged(old, range(10, 20))
        old.kill_daemon()
        etcd.stop()
        shutil.rmtree(tmp_path / "etcd" / "data")
        shutil.copytree(tmp_path / "backup", tmp_path / "etcd" / "data")
        etcd.start()
        assert load_epochs(layout_of(old)) == load_epochs(layout_of(new)) and last_record(old) > last_record(new)
        old.restart()
        eventually(lambda: leads(old), group.told)
        new.restart()
        assert group.wait_for_set(2) is old
        assert_equal(old, new)
        assert read(new, 20, "readers") == stored
