"""What people see of a master and its slaves: who, in which state, how far, and why not; each number held against
another source."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator

import pytest

from shmq.addresses import parse_address
from shmq.figures.verdict import Verdict
from shmq.metrics.report import MetricsReport as Report
from shmq.shm.addresses import read_addresses
from shmq.testing import Broker
from tests.deadline import eventually
from tests.ha.pair import assert_equal, log_end, send, settled_end, slave_of, stop_threads
from tests.ha.seen import findings_of, replication_of, until_named, until_told
from tests.shm.looking import looking
from tests.tools.shell import Shell

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def master() -> Iterator[Broker]:
    with Broker(tcp=True, ha_listen="127.0.0.1:0") as broker:
        send(broker, range(100))
        yield broker


@pytest.fixture(scope="module")
def slave(master: Broker) -> Iterator[Broker]:
    with slave_of(master) as broker:
        assert_equal(master, broker)
        yield broker


def status(broker: Broker) -> dict[str, object]:
    document: dict[str, object] = Shell(broker.url).json("cluster-status", "cluster", "status")
    return document


def test_a_master_and_its_slave_are_shown_as_far_as_they_are(master: Broker, slave: Broker) -> None:
    end = settled_end(master, slave)
    told = until_told(master, lambda told: told.replicas and told.replicas[0].lag_bytes == 0)
    (replica,) = told.replicas
    assert (replica.kind, replica.state, replica.acknowledged, replica.lag_ms) == ("shmq", "asynchronous", end, 0)
    assert replica.flushed is not None and replica.flushed <= end
    assert replica.age > 0 and told.age < 60
    rows = Shell(master.url).json("cluster-members", "cluster", "members")["members"]
    assert [(row["part"], row["is_here"], row["in_sync"], row["log_end"]) for row in rows] == [
        ("leads", True, None, end),
        ("follows", False, None, end),
    ]
    assert rows[1]["store"] and "follows" in Shell(master.url).run("cluster", "members").out.decode()
    pid = slave.processes["replication"].pid
    stop_threads(pid)
    try:
        began = time.monotonic()
        send(master, range(100, 300))
        behind = until_told(master, lambda told: told.replicas[0].state == "catching up").replicas[0]
        waited_ms = 1000 * (time.monotonic() - began)
        assert behind.acknowledged == log_end(slave) and behind.lag_bytes == log_end(master) - log_end(slave) > 0
        assert behind.lag_ms is not None and 500 < behind.lag_ms <= waited_ms
        (finding,) = [each for each in findings_of(master, "replica") if each.subject == behind.address]
        assert finding.verdict is Verdict.OK and finding.measures["lag"].value == behind.lag_bytes
        assert "catching up" in Shell(master.url).run("cluster", "status").out.decode()
        assert behind.address in Shell(master.url).run("top", "--interval", "0.1").out.decode()
    finally:
        os.kill(pid, signal.SIGCONT)
    assert_equal(master, slave)
    until_told(master, lambda told: told.replicas[0].state == "asynchronous")


def test_a_slave_tells_of_its_master(master: Broker, slave: Broker) -> None:
    settled_end(master, slave)
    told = until_told(slave, lambda told: told.master and told.master.state == "up to date").master
    assert told is not None and told.age is not None and told.heard_age is not None
    assert (told.kind, told.lag_bytes, told.lag_ms) == ("shmq", 0, 0)
    assert told.address == read_addresses(master.place.ha_path)["ha"]
    (finding,) = findings_of(slave, "master")
    assert finding.verdict is Verdict.OK and "follows" in finding.what
    document = status(slave)
    assert document["role"] == "slave" and document["replicas"] == []
    assert document["log_end"] == log_end(slave)


def test_metrics_say_the_same(master: Broker, slave: Broker) -> None:
    settled_end(master, slave)
    told = until_told(master, lambda told: told.replicas and told.replicas[0].lag_bytes == 0)
    assert len(told.replicas) == 1
    for broker, wanted in (
        (master, {"shmq_replicas": 1, "shmq_replica_lag_bytes": 0, "shmq_replica_lag_seconds": 0}),
        (slave, {"shmq_master_connected": 1, "shmq_master_lag_bytes": 0, "shmq_master_lag_seconds": 0}),
    ):
        report = Report(broker.place)
        try:
            values = report.samples().values
        finally:
            report.close()
        assert {name: sum(values[name].values()) for name in wanted} == wanted


def test_who_has_gone_and_who_was_refused_is_remembered_with_the_reason(master: Broker) -> None:
    with slave_of(master) as other:
        assert_equal(master, other)
    told = until_told(master, lambda told: told.gone)
    (gone,) = told.gone
    assert gone.age < 60 and gone.times >= 1 and gone.reason
    until_named(master, "replica", gone.reason, verdict=Verdict.WARNING)
    host, port = parse_address(read_addresses(master.place.ha_path)["ha"])
    for times in (1, 2):
        with socket.create_connection((host, port)) as stranger:
            stranger.sendall(b"\xff" * 8)
            while stranger.recv(4096):
                pass
        refused = until_told(master, lambda told, times=times: told.refused and told.refused[0].times == times).refused
        assert "below 0" in refused[0].reason and refused[0].age < 60
    finding = until_named(master, "replica", "below 0", verdict=Verdict.WARNING)
    assert "refused 2 times" in finding.what
    result = Shell(master.url).run("doctor")
    assert "refused 2 times" in result.out.decode()


def test_a_master_that_is_gone_is_named_by_its_slave_and_found_again() -> None:
    with Broker(tcp=True, ha_listen="127.0.0.1:0") as master, slave_of(master) as slave:
        send(master, range(10))
        assert_equal(master, slave)
        master.kill_daemon()
        finding = until_named(slave, "master", "Connection refused")
        assert read_addresses(master.place.ha_path).get("ha", "") in finding.what
        lost = replication_of(slave).master
        assert lost is not None and lost.age is None and lost.error_age is not None and lost.error_age < 60
        shown = status(slave)["master"]
        assert isinstance(shown, dict) and shown["state"] == "lost"
        report = Report(slave.place)
        assert report.samples().value("shmq_master_connected") == 0
        report.close()


def test_a_broker_without_other_hosts_says_that() -> None:
    with Broker() as broker:
        document = status(broker)
        assert (document["role"], document["master"], document["age"]) == ("master", None, None)
        assert findings_of(broker, "replica") == findings_of(broker, "master") == []


def test_a_replication_process_that_is_stopped_is_not_taken_at_its_word(master: Broker) -> None:
    pid = master.processes["replication"].pid
    eventually(lambda: replication_of(master))
    stop_threads(pid)
    try:
        finding = eventually(lambda: findings_of(master, "replication"))[0]
        assert finding.verdict is Verdict.UNKNOWN and finding.do
    finally:
        os.kill(pid, signal.SIGCONT)
    with looking(master) as store:
        assert not store.retired
