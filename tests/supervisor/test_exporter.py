"""Scrapes are answered beside the broker, on loopback, within limits."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from shmq.addresses import parse_address
from shmq.daemon.exporter import check_metrics_exposure
from shmq.errors import BrokerNotRunning, UsageError
from shmq.metrics.exposition import CONTENT_TYPE
from shmq.options.broker import Options
from shmq.shm.addresses import read_addresses
from shmq.shm.instance import Instance, read_instance
from shmq.testing import Broker
from tests.deadline import eventually

DEADLINE_SECONDS = 30.0
Address = tuple[str, int]


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(metrics="127.0.0.1:0") as running:
        yield running


def instance_of(broker: Broker) -> Instance:
    instance = read_instance(broker.place.instance_path)
    assert instance is not None
    return instance


def address_of(broker: Broker) -> Address:
    return parse_address(read_addresses(broker.place.metrics_path)["metrics"])


def ask(address: Address, method: str = "GET", target: str = "/metrics") -> tuple[int, str | None, bytes]:
    connection = http.client.HTTPConnection(*address, timeout=DEADLINE_SECONDS)
    connection.request(method, target)
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, answer.getheader("Content-Type"), body


def raw(address: Address, request: bytes) -> bytes:
    with socket.create_connection(address, DEADLINE_SECONDS) as sender:
        sender.sendall(request)
        parts = []
        while part := sender.recv(65536):
            parts.append(part)
    return b"".join(parts)


def test_a_scrape_is_openmetrics(broker: Broker) -> None:
    status, kind, body = ask(address_of(broker))
    assert (status, kind) == (200, CONTENT_TYPE)
    families = {each.name for each in text_string_to_metric_families(body.decode())}
    assert {"shmq_broker", "shmq_process_up", "rocketmq_topic_number"} <= families


def test_nothing_else_is_served(broker: Broker) -> None:
    address = address_of(broker)
    assert ask(address, "HEAD")[::2] == (200, b"")
    assert ask(address, target="/")[0] == 404
    assert ask(address, target="/metrics?name=x")[0] == 200
    assert ask(address, "POST")[0] == 405
    assert raw(address, b"nonsense\r\n\r\n").startswith(b"HTTP/1.1 400 ")
    assert raw(address, b"GET /metrics HTTP/1.1\r\nX: " + b"x" * 20_000 + b"\r\n\r\n").startswith(b"HTTP/1.1 431 ")


@pytest.mark.slow  # their patience is five seconds
def test_connections_that_say_nothing_do_not_keep_others_out_for_longer_than_their_patience(broker: Broker) -> None:
    address = address_of(broker)
    silent = [socket.create_connection(address, DEADLINE_SECONDS) for _ in range(40)]

    def answered() -> bool:
        try:
            return ask(address)[0] == 200
        except OSError:
            return False

    eventually(answered, "scrapes are answered again")
    for each in silent:
        each.close()


def test_a_killed_exporter_comes_back_at_its_port_and_disturbs_no_client(broker: Broker) -> None:
    address, before = address_of(broker), instance_of(broker)
    os.kill(before.processes["exporter"].pid, signal.SIGKILL)

    def is_back() -> bool:
        now = instance_of(broker).processes.get("exporter")
        try:
            return now not in (None, before.processes["exporter"]) and ask(address)[0] == 200
        except OSError:
            return False

    eventually(is_back, "the exporter is started again")
    after = instance_of(broker).processes
    assert (after["bridge"], after["keeper"]) == (before.processes["bridge"], before.processes["keeper"])


def test_a_stopped_bridge_and_keeper_are_still_measured(broker: Broker) -> None:
    processes = instance_of(broker).processes
    stopped = [processes[role].pid for role in ("bridge", "keeper")]
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    try:
        status, _, body = ask(address_of(broker))
        assert status == 200 and b"shmq_keeper_beat_age_seconds" in body
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)


def test_an_address_that_others_reach_must_be_asked_for_twice() -> None:
    with pytest.raises(UsageError, match=r"0\.0\.0\.0 without accounts") as refusal:
        check_metrics_exposure(Options(metrics="0.0.0.0:0"))
    assert "--insecure" in refusal.value.hint
    check_metrics_exposure(Options(metrics="0.0.0.0:0", insecure=True))
    check_metrics_exposure(Options(metrics="[::1]:0"))
    with pytest.raises(BrokerNotRunning, match="without accounts"), Broker(metrics="0.0.0.0:0"):
        pass


def test_a_taken_port_ends_the_start_with_its_name(broker: Broker) -> None:
    host, port = address_of(broker)
    with pytest.raises(BrokerNotRunning, match=f"port {port} of {host} is in use"), Broker(metrics=f"{host}:{port}"):
        pass


def test_without_the_option_nothing_listens() -> None:
    with Broker() as quiet:
        assert "exporter" not in instance_of(quiet).processes and not quiet.place.metrics_path.exists()


STOPPED_EARLY = """
import os, signal, sys
from shmq.daemon.event_log import EventLog
from shmq.daemon.exporter import run_exporter
from shmq.options.broker import Options
from shmq.daemon.tether import Tether
from shmq.shm.place import place_of

tether = Tether()
tether.watch()
os.kill(os.getpid(), signal.SIGTERM)  # comes before there is a loop that could hear it
sys.exit(run_exporter(place_of(sys.argv[1]), Options(metrics="127.0.0.1:0"), tether=tether, log=EventLog("exporter")))
"""


def test_a_stop_that_comes_while_it_starts_counts(tmp_path: Path) -> None:
    """Else the supervisor waits five seconds for it, and kills it."""
    program = [sys.executable, "-P", "-c", STOPPED_EARLY, f"shmq://{tmp_path}"]
    ended = subprocess.run(program, capture_output=True, text=True, check=False, timeout=DEADLINE_SECONDS)
    assert ended.returncode == 0 and "exporter.listens" in ended.stderr, ended.stderr


def test_its_file_goes_with_the_broker() -> None:
    with Broker(metrics="127.0.0.1:0") as short:
        path = short.place.metrics_path
        assert path.exists()
        counters = f"/dev/shm/shmq.{short.name}.{instance_of(short).generation:016x}.counters"
        assert os.path.exists(counters)
        short.stop()
        assert not path.exists() and not os.path.exists(counters)
