"""`shmq nameserver` in a process of its own."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path

import pytest

from shmq.protocol.codes import Request, Response
from tests.nameserver.live_nameserver import name_server
from tests.tools.json_schema import check
from tests.tools.shell import TIMEOUT, Shell

UNUSED = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF, signal.SIGIO)
ORDER = {"namespace": "ORDER_TOPIC_CONFIG", "key": "orders", "value": "broker-a:4"}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT])
def test_it_says_where_it_is_and_ends_on_a_signal(number: signal.Signals) -> None:
    with name_server() as server:
        check("nameserver", server.announcement)
        assert server.announcement["pid"] == server.process.pid
        for unused in UNUSED:
            server.process.send_signal(unused)
        with server.peer() as peer:
            assert peer.ask(Request.GET_ALL_TOPIC_LIST_FROM_NAMESERVER).body == b'{"topicList":[]}'
        assert server.end(number)[0] == 0


def test_the_kv_configuration_outlives_the_process_in_a_file_of_ours_alone(tmp_path: Path) -> None:
    path = tmp_path / "kvConfig.json"
    with name_server("--kv", str(path)) as server, server.peer() as peer:
        assert peer.ask(Request.PUT_KV_CONFIG, ORDER).code == Response.SUCCESS
        server.end(signal.SIGKILL)
    assert (
        path.read_text()
        == '{\n\t"configTable":{\n\t\t"ORDER_TOPIC_CONFIG":{\n\t\t\t"orders":"broker-a:4"\n\t\t}\n\t}\n}'
    )
    assert os.stat(path).st_mode & 0o007 == 0
    with name_server("--kv", str(path)) as server, server.peer() as peer:
        assert peer.ask(Request.GET_KV_CONFIG, ORDER).ext == {"value": "broker-a:4"}


def test_a_kv_file_that_cannot_be_read_ends_the_start(tmp_path: Path) -> None:
    path = tmp_path / "kvConfig.json"
    path.write_text("{")
    error = Shell().fails(65, "nameserver", "--listen", "127.0.0.1:0", "--kv", str(path))
    assert error["type"] == "CorruptionError" and str(path) in error["hint"]


def test_beyond_loopback_it_has_to_be_asked_for() -> None:
    error = Shell().fails(78, "nameserver", "--listen", "0.0.0.0:0")
    assert "--insecure" in error["hint"]
    with name_server("--insecure", listen="0.0.0.0:0") as server:
        assert server.address.startswith("0.0.0.0:")


def test_a_port_in_use_is_named() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        assert str(port) in Shell().fails(78, "nameserver", "--listen", f"127.0.0.1:{port}")["error"]


def test_in_text_it_says_what_to_type_next() -> None:
    with Shell().start("nameserver", "--listen", "127.0.0.1:0") as process:
        assert process.stdout is not None
        lines = [process.stdout.readline().decode() for _ in range(4)]
        assert f"pid {process.pid}" in lines[0]
        address = lines[1].split()[1]
        assert f"--nameserver {address}" in lines[3] and f"namesrvAddr={address}" in lines[3]
        process.send_signal(signal.SIGTERM)
        assert process.wait(TIMEOUT) == 0
