"""Brokers that elect their master: one leads at a time, and has all that was acknowledged."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

import shmq
from shmq.figures.thresholds import LEASE_WARN_SECONDS
from shmq.figures.verdict import Verdict
from shmq.metrics.report import MetricsReport
from shmq.shm.core import READ_ONLY_FOLLOWER
from shmq.shm.liveness import signal_proven
from shmq.store.lineage.cutting import tails
from shmq.store.lineage.epochs import load_epochs
from shmq.testing import Broker
from tests.deadline import eventually
from tests.ha.elected.group import acknowledged, group_of, links_of
from tests.ha.etcd.server import needs_etcd
from tests.ha.pair import assert_equal, stop_threads
from tests.ha.seen import findings_of
from tests.ha.test_switch import cluster, layout_of, read
from tests.ha.trust.test_trust import secret_file
from tests.nameserver.live_nameserver import name_server
from tests.shm.looking import looking
from tests.tools.json_schema import check
from tests.tools.shell import Shell

pytest.importorskip("urllib3")
pytestmark = [needs_etcd(), pytest.mark.slow]


def refuses(broker: Broker) -> str:
    """Why it takes no message; empty if it does."""
    with broker.connect() as mq:
        try:
            mq.producer().send("orders", b"refused?")
        except shmq.NotMaster as error:
            return str(error)
    return ""


@pytest.mark.parametrize("sync", [True, False])
def test_when_the_leader_dies_the_other_one_goes_on_with_what_was_acknowledged(tmp_path: Path, sync: bool) -> None:
    with group_of(tmp_path, 2, sync=sync) as (group, _):
        old = group.wait_for_set(2)
        new = group.other(old)
        stored = acknowledged(old, range(100))
        assert stored == list(range(100))
        assert_equal(old, new)
        old.kill_daemon()
        assert group.leader(besides=old) is new
        stored += acknowledged(new, range(100, 200))
        assert len(stored) == 200
        old.restart()
        group.wait_for_set(2)
        assert_equal(new, old)
        assert read(new, 200, "readers") == stored


def test_brokers_that_share_a_secret_elect_and_hand_over(tmp_path: Path) -> None:
    with group_of(tmp_path, 2, sync=True, ha_secret_file=secret_file(tmp_path / "link")) as (group, _):
        old = group.wait_for_set(2)
        new = group.other(old)
        stored = acknowledged(old, range(10))
        cluster(new, "promote")
        assert group.wait_for_set(2) is new
        stored += acknowledged(new, range(10, 20))
        assert_equal(new, old)
        assert read(new, 20, "readers") == stored


def test_a_promotion_by_hand_is_a_handover_and_loses_nothing(tmp_path: Path) -> None:
    with group_of(tmp_path, 2, sync=True) as (group, _):
        stored: list[int] = []
        for epoch in (2, 3):
            old = group.wait_for_set(2)
            new = group.other(old)
            stored += acknowledged(old, range(epoch * 10, epoch * 10 + 10))
            address = old.broker_address
            done = cluster(new, "promote")
            assert (done["epoch"], done["missing_bytes"], done["forced"]) == (epoch, 0, False)
            assert done["old_master"] == address
            assert "is the master already" in cluster(new, "promote", fails=True)["error"]
            assert "elected" in cluster(new, "demote", "--master", "127.0.0.1:1", fails=True)["error"]
        group.wait_for_set(2)
        assert_equal(new, old)
        assert read(new, 20, "readers") == stored
        assert not tails(layout_of(new)) and not tails(layout_of(old))


def test_no_process_of_a_broker_that_is_promoted_again_and_again_is_thought_to_die(tmp_path: Path) -> None:
    with group_of(tmp_path, 2, sync=True) as (group, _):
        for _ in range(8):
            cluster(group.other(group.wait_for_set(2)), "promote")
        group.wait_for_set(2)
        told = "".join(broker.log for broker in group.brokers)
        pauses = [float(pause) for pause in re.findall(r"child.ended .*restart_seconds=([\d.]+)", told)]
        assert pauses and max(pauses) <= 0.1, told
        assert ".failed" not in told, "a process was started upon segments that are given up"


def test_who_is_stopped_in_order_hands_over_first(tmp_path: Path) -> None:
    with group_of(tmp_path, 2, sync=True) as (group, _):
        old = group.wait_for_set(2)
        new = group.other(old)
        stored = acknowledged(old, range(10))
        signal_proven(old.processes["supervisor"], signal.SIGTERM)
        assert group.leader(besides=old) is new
        told = eventually(lambda: (links := links_of(new)) and links.election, group.told)
        assert told.why == "handed over"
        stored += acknowledged(new, range(10, 20))
        assert read(new, 20, "readers") == stored


def test_a_leader_that_comes_again_shows_nothing_that_it_had_not_confirmed(tmp_path: Path) -> None:
    """Another may lead by then, and give the same offsets to other messages."""
    with group_of(tmp_path, 2, sync=True) as (group, etcd):
        old = group.wait_for_set(2)
        new = group.other(old)
        stored = acknowledged(old, range(5))
        assert_equal(old, new)
        etcd.stop()
        new.kill_daemon()
        with looking(old) as store, old.connect(timeout=0.4) as mq:
            confirmed = store.confirmed_end
            with pytest.raises(shmq.SendTimeout):
                mq.producer().send("orders", b"of this host only")
            assert store.durable_end > store.confirmed_end == store.visible_end == confirmed
        old.kill_daemon()
        old.restart()
        with looking(old) as store:
            assert store.visible_end <= confirmed < store.log_end
        with old.connect() as mq, mq.pull_consumer("orders") as pull:
            for queue in pull.queues():
                pull.seek(queue, "begin")
            assert all(int(message.body) in stored for message in pull.poll(max=100, wait=0.5))
        etcd.start()
        new.restart()
        leader = group.wait_for_set(2)
        stored += acknowledged(leader, range(100, 110))
        assert_equal(leader, group.other(leader))


def test_a_leader_that_was_stopped_takes_nothing_when_it_wakes_up(tmp_path: Path) -> None:
    with group_of(tmp_path, 2, sync=True) as (group, _):
        old = group.wait_for_set(2)
        new = group.other(old)
        stored = acknowledged(old, range(10))
        with old.connect() as attached:
            producer = attached.producer()
            marks = [mark for role, mark in old.processes.items() if role != "supervisor"]
            for mark in marks:
                stop_threads(mark.pid)
            try:
                assert group.leader(besides=old) is new
                with pytest.raises((shmq.NotMaster, shmq.SendTimeout)):  # not confirmed, whichever host sleeps
                    producer.send("orders", b"lost?")
            finally:
                for mark in marks:
                    os.kill(mark.pid, signal.SIGCONT)
        stored += acknowledged(new, range(10, 20))
        group.wait_for_set(2)
        assert_equal(new, old)
        with looking(old) as store:
            assert store.standing == READ_ONLY_FOLLOWER
        assert read(new, 20, "readers") == stored


def test_without_etcd_a_synchronous_leader_and_its_set_go_on(tmp_path: Path) -> None:
    with group_of(tmp_path, 2, sync=True) as (group, etcd):
        leader = group.wait_for_set(2)
        stored = acknowledged(leader, range(10))
        etcd.stop()

        def is_over() -> bool:
            links = links_of(leader)
            return links is not None and links.election is not None and (links.election.kept_ms_ago or 0) > 4_500

        eventually(is_over, group.told)
        stored += acknowledged(leader, range(10, 20))
        assert_equal(leader, group.other(leader))
        etcd.start()
        eventually(lambda: not is_over(), group.told)
        assert load_epochs(layout_of(leader))[-1].number == 1
        assert read(leader, 20, "readers") == stored


def test_without_etcd_and_the_other_one_an_asynchronous_leader_is_fenced_and_in_no_route(tmp_path: Path) -> None:
    with name_server() as names, group_of(tmp_path, 2, sync=False, nameservers=names.address) as (group, etcd):
        leader = group.wait_for_set(2)
        other = group.other(leader)
        acknowledged(leader, range(10))
        known = lambda: names.brokers_of("orders").get("elected", {})  # noqa: E731
        eventually(lambda: "0" in known(), lambda: str(known()))
        etcd.stop()
        other.kill_daemon()
        eventually(lambda: refuses(leader), group.told)
        eventually(lambda: known() == {}, lambda: str(known()))
        etcd.start()
        other.restart()
        leading = group.leader()
        stored = acknowledged(leading, range(20, 30))
        assert len(stored) == 10
        eventually(lambda: known().get("0") == leading.broker_address, lambda: str(known()))


def test_the_tail_of_an_asynchronous_leader_is_kept_and_counted(tmp_path: Path) -> None:
    with group_of(tmp_path, 2, sync=False) as (group, _):
        old = group.wait_for_set(2)
        new = group.other(old)
        stored = acknowledged(old, range(10))
        assert_equal(old, new)
        stop_threads(old.processes["replication"].pid)
        lost = acknowledged(old, range(10, 20))  # its lease lasts, and nothing is shipped
        old.kill_daemon()
        assert group.leader(besides=old) is new
        stored += acknowledged(new, range(20, 30))
        old.restart()
        group.wait_for_set(2)
        assert_equal(new, old)
        assert read(new, len(stored), "readers") == stored
        [tail] = tails(layout_of(old))
        tail_file = tmp_path / "tail.jsonl"
        command = [sys.executable, "-m", "shmq", "store", "export", "--tail", "--output", str(tail_file), old.store]
        subprocess.run(command, check=True, timeout=60)
        assert len(tail_file.read_text().splitlines()) == len(lost) == 10, tail


def test_three_brokers_follow_the_one_that_is_elected(tmp_path: Path) -> None:
    with group_of(tmp_path, 3, sync=True) as (group, _):
        stored: list[int] = []
        for turn in range(2):
            leader = group.wait_for_set(3)
            stored += acknowledged(leader, range(turn * 10, turn * 10 + 10))
            leader.kill_daemon()
            new = group.leader(besides=leader)
            leader.restart()
        leader = group.wait_for_set(3)
        assert leader is new
        for other in group.brokers:
            if other is not leader:
                assert_equal(leader, other)
        assert read(leader, 20, "readers") == stored


def test_a_replication_process_that_dies_leads_again_in_a_new_epoch(tmp_path: Path) -> None:
    with group_of(tmp_path, 1, sync=True) as (group, _):
        leader = group.leader()
        stored = acknowledged(leader, range(10))
        os.kill(leader.processes["replication"].pid, signal.SIGKILL)
        eventually(lambda: load_epochs(layout_of(leader))[-1].number == 2, group.told)
        stored += acknowledged(leader, range(10, 20))
        os.kill(leader.processes["keeper"].pid, signal.SIGKILL)
        stored += acknowledged(leader, range(20, 30))
        assert read(leader, 30, "readers") == stored


def metrics(broker: Broker) -> dict[str, dict[str, float]]:
    report = MetricsReport(broker.place)
    try:
        return {name: dict(values) for name, values in report.samples().values.items() if values}
    finally:
        report.close()


def test_what_is_shown_names_who_leads_why_and_who_is_in_sync(tmp_path: Path) -> None:
    with group_of(tmp_path, 2, sync=True) as (group, etcd):
        leader = group.wait_for_set(2)
        other = group.other(leader)
        acknowledged(leader, range(1))
        shown = {broker: cluster(broker, "status") for broker in group.brokers}
        for document in shown.values():
            check("cluster-status", document)
        election = shown[leader]["election"]
        assert (election["role"], election["why"], len(election["in_sync"])) == ("leading", "first", 2)
        assert election["leader"] == election["store"] == shown[other]["election"]["leader"]
        assert shown[other]["election"]["role"] == "following"
        for broker in group.brokers:
            check("cluster-members", document := cluster(broker, "members"))
            assert [row["is_here"] for row in document["members"]] == [True, False]
            assert [row["in_sync"] for row in document["members"]] == [True, True]
            parts = {row["store"]: row["part"] for row in document["members"]}
            assert parts == {
                store: "leads" if store == election["leader"] else "follows" for store in election["in_sync"]
            }
        assert [finding.verdict for finding in findings_of(leader, "election")] == [Verdict.OK]
        for broker, part in ((leader, "leading"), (other, "following")):
            said = f"this broker is {part}"
            assert said in Shell(broker.url).run("cluster", "status").err
            assert said in Shell(broker.url).run("top", "--interval", "0.1").out.decode()
            assert part.removesuffix("ing") in Shell(broker.url).run("doctor").out.decode()
            values = metrics(broker)
            assert [labels for labels, value in values["shmq_election_part"].items() if value] == [f'part="{part}"']
            assert sum(values["shmq_electable_stores"].values()) == 2
            assert ("shmq_lease_age_seconds" in values) == (broker is leader)
        assert 0 <= sum(metrics(leader)["shmq_lease_age_seconds"].values()) < LEASE_WARN_SECONDS
        other.kill_daemon()
        eventually(lambda: [row["part"] for row in cluster(leader, "members")["members"]] == ["leads"], group.told)
        other.restart()
        group.wait_for_set(2)
        etcd.stop()
        eventually(lambda: findings_of(leader, "election")[0].verdict is Verdict.WARNING, group.told)
        other.kill_daemon()
        leader.kill_daemon()
        leader.restart()
        [finding] = eventually(lambda: findings_of(leader, "election"), group.told)
        assert finding.verdict is Verdict.CRITICAL and "etcd" in finding.do
        assert "no broker of this name" in refuses(leader)


def spare_of(broker: Broker) -> int:
    """The process that waits to become the broker's next bridge; 0 while there is none."""
    children = psutil.Process(broker.processes["supervisor"].pid).children()
    waiting = [child.pid for child in children if {"--go-fd", "bridge"} <= set(child.cmdline())]
    return next((pid for pid in waiting if pid != broker.processes["bridge"].pid), 0)


def test_the_bridge_of_a_new_leader_is_the_one_that_has_waited(tmp_path: Path) -> None:
    with group_of(tmp_path, 2, sync=True) as (group, _):
        old = group.wait_for_set(2)
        new = group.other(old)
        spare = eventually(lambda: spare_of(new), group.told)
        cluster(new, "promote")
        eventually(lambda: new.processes["bridge"].pid == spare, group.told)
        assert acknowledged(new, range(3)) == [0, 1, 2]
        assert eventually(lambda: spare_of(new), group.told) != spare
