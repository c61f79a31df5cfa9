"""A start that cannot succeed is refused before the broker has written anything."""

import json
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shmq.daemon.rehearsal import rehearse
from shmq.options.broker import Options
from tests.supervisor.conftest import daemon_words

FREE = {"listen": "127.0.0.1:0", "nameserver_listen": "127.0.0.1:0"}


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


def refusal(tmp_path: Path, **settings: Any) -> dict[str, Any]:
    """Start a broker that must end by itself; return what it says."""
    places = {"broker_name": "rehearsed", "runtime_dir": tmp_path / "run", "store": tmp_path / "store"}
    words = daemon_words("serve", **places, file_bytes=262144, **{**FREE, **settings})
    result = subprocess.run(words, capture_output=True, timeout=60, check=False)
    said: dict[str, Any] = json.loads(result.stdout)
    assert (said["ready"], said["exit"]) == (False, result.returncode), result
    return said


def allocated(tmp_path: Path) -> list[str]:
    """What takes room: files of the log, of queues and of the index."""
    store = tmp_path / "store"
    return [str(path.relative_to(store)) for path in store.rglob("*") if path.is_file() and path.stat().st_blocks > 8]


@pytest.mark.parametrize(
    "option",
    [
        pytest.param("listen", id="the port of the broker"),
        pytest.param("nameserver_listen", id="the port of the name server"),
        pytest.param("metrics", id="the port of the metrics"),
    ],
)
def test_a_port_in_use_leaves_no_log_files_behind(tmp_path: Path, taken: int, option: str) -> None:
    said = refusal(tmp_path, **{option: f"127.0.0.1:{taken}"})
    assert said["error"] == f"port {taken} of 127.0.0.1 is in use" and said["kind"] == "ConnectError"
    assert allocated(tmp_path) == []


def test_the_vip_port_is_looked_at_too(tmp_path: Path, taken: int) -> None:
    said = refusal(tmp_path, listen=f"127.0.0.1:{taken + 2}")
    assert f"port {taken} of 127.0.0.1" in said["error"] and allocated(tmp_path) == []


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"acl": "/nonexistent/plain_acl.yml"}, "/nonexistent/plain_acl.yml"),
        ({"tls_mode": "enforcing", "tls_cert": "/nonexistent/c.pem", "tls_key": "/nonexistent/k.pem"}, "c.pem"),
        ({"nameservers": "127.0.0.1:9", "nameserver_ca": "/nonexistent/ca.pem"}, "ca.pem"),
        ({"listen": "0.0.0.0:0"}, "without accounts"),
        ({"metrics": "0.0.0.0:0"}, "without accounts"),
        ({"listen": "192.0.2.1:0"}, "192.0.2.1"),
    ],
)
def test_what_protects_the_ports_is_read_before_anything_is_made(
    tmp_path: Path, settings: dict[str, str], reason: str
) -> None:
    said = refusal(tmp_path, **settings)
    assert reason in said["error"] and said["hint"]
    assert allocated(tmp_path) == []


def test_the_ports_are_free_again_after_the_rehearsal(taken: int) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        port = other.getsockname()[1]
    options = Options(listen=f"127.0.0.1:{port}", nameserver_listen="127.0.0.1:0")
    assert rehearse(options) is None and rehearse(options) is None
    failure = rehearse(Options(listen=f"127.0.0.1:{taken}", nameserver_listen="127.0.0.1:0"))
    assert failure is not None and failure["kind"] == "ConnectError"
    assert rehearse(Options(tcp=False)) is None
