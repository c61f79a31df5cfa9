"""A program that ends: what its last threads and its functions of atexit still do; and no thread to be had."""

import subprocess
import sys
import threading
from pathlib import Path

import pytest

import shmq
from shmq.testing import Broker, SharedBroker

ENDING = Path(__file__).with_name("ending.py")


def test_workers_and_functions_of_atexit_connect_reconnect_and_send_when_the_main_thread_has_ended() -> None:
    with Broker(tcp=True) as broker:
        host, port = broker.name_server.split(":")
        urls = [broker.url, f"rocketmq://{host}:{port}", f"rocketmq://localhost:{port}"]
        done = subprocess.run(
            [sys.executable, "-P", str(ENDING), "orders", *urls], capture_output=True, text=True, timeout=180
        )
        ways = ("connect", "reconnect", "asyncio")
        wanted = [f"{who} {url} {way}" for who in ("worker", "atexit") for url in urls for way in ways]
        assert (done.returncode, done.stdout.splitlines(), done.stderr) == (0, wanted, "")


def test_where_no_thread_can_be_started_the_error_says_so(
    monkeypatch: pytest.MonkeyPatch, shmq_shared_broker: SharedBroker
) -> None:
    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Thread, "start", refused)
    for url in (shmq_shared_broker.url, "rocketmq://127.0.0.1:1"):
        with pytest.raises(shmq.ConnectError, match="at interpreter shutdown") as caught:
            shmq.connect(url)
        assert "before the program ends" in str(caught.value.hint)
