"""The log says what happens, once a line, counts what it leaves out, and holds no messages."""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import subprocess
import sys
import weakref
from typing import Any

import pytest

import shmq
from shmq.daemon.event_log import EventLog
from shmq.testing import Broker
from tests.deadline import eventually
from tests.interruption import met_everywhere


class Collected:
    """A log with a clock of its own."""

    def __init__(self) -> None:
        self._reading, writing = os.pipe()
        os.set_blocking(self._reading, False)
        self.close = weakref.finalize(self, lambda *ends: [os.close(end) for end in ends], self._reading, writing)
        self.now = 0.0
        self.log = EventLog("keeper", "json", descriptor=writing, now=lambda: self.now)

    def lines(self) -> list[dict[str, Any]]:
        """What was written since the last call."""
        try:
            data = os.read(self._reading, 1 << 20)
        except BlockingIOError:
            return []
        return [json.loads(line) for line in data.splitlines()]


def test_a_cause_has_ten_lines_in_ten_seconds_and_the_next_says_how_many_were_left_out() -> None:
    collected = Collected()
    for number in range(1000):
        collected.log("flush.slow", number=number)
    assert [line["number"] for line in collected.lines()] == list(range(10))
    collected.now = 10.0
    collected.log("lock.held_long")
    suppressed, other = collected.lines()
    assert (suppressed["event"], suppressed["cause"], suppressed["suppressed"]) == ("log.suppressed", "flush.slow", 990)
    assert other["event"] == "lock.held_long" and "suppressed" not in other


def test_what_was_left_out_is_said_although_nothing_follows() -> None:
    collected = Collected()
    for _ in range(12):
        collected.log("flush.slow")
    collected.lines()
    collected.log.tick()
    assert collected.lines() == []
    collected.now = 11.0
    collected.log.tick()
    [line] = collected.lines()
    assert line["suppressed"] == 2


def test_what_goes_on_and_on_is_said_less_and_less_often_and_news_at_once() -> None:
    collected, lines = Collected(), list[dict[str, Any]]()
    for second in range(86_400):
        collected.now = float(second)
        collected.log("broker", text=f"{second} timed messages are not delivered yet: the disk is full")
        lines += collected.lines()
    assert [int(line["text"].split()[0]) for line in lines[:31:10]] == [0, 10, 30, 70]
    assert 1_400 < len(lines) < 1_600
    for number in range(20):
        collected.log("broker", text="timed messages are not delivered yet: the log is full", number=number)
    news = collected.lines()
    assert [line["number"] for line in news] == list(range(10))
    assert sum(line.get("suppressed", 0) + 1 for line in [*lines, *news]) == 86_400 + 10
    collected.now += 10.0
    collected.log("broker", text="timed messages are not delivered yet: the log is full", number=30)
    assert [line["suppressed"] for line in collected.lines()] == [10]


def test_a_cause_that_was_quiet_begins_anew() -> None:
    collected = Collected()
    for second in (*range(100), *range(1_000, 1_010)):
        collected.now = float(second)
        collected.log("flush.slow", seconds=second)
    assert [line["seconds"] for line in collected.lines() if line.get("seconds", 0) >= 1_000] == list(
        range(1_000, 1_010)
    )


class Interrupted(Collected):
    """A finalizer, or the handler of a signal, has something to say while its thread says something."""

    def __init__(self) -> None:
        super().__init__()
        for _ in range(12):
            self.log("flush.slow")
        self.lines()
        self.now = 11.0

    def action(self) -> None:
        self.log("lock.held_long")

    def other(self) -> None:
        self.log("process.fault")

    def check(self) -> None:
        assert sum(line.get("suppressed", 0) for line in self.lines()) == 2
        self.close()


class InterruptedByTheSame(Interrupted):
    def other(self) -> None:
        self.log("flush.slow")


@pytest.mark.parametrize("interrupted", [Interrupted, InterruptedByTheSame])
def test_what_was_left_out_is_said_once_though_another_event_comes_in_between(interrupted: type[Interrupted]) -> None:
    assert met_everywhere(interrupted) > 20


def test_one_cause_hides_no_other_and_one_peer_no_other() -> None:
    collected = Collected()
    for _ in range(100):
        collected.log("connection.closed", about="10.0.0.1")
        collected.log("broker", text="the timer queue has no units at 17")
    collected.log("connection.closed", about="10.0.0.2", reason="late")
    collected.log("broker", text="open transactions are looked at again")
    assert [line.get("reason", line.get("text")) for line in collected.lines()[-2:]] == [
        "late",
        "open transactions are looked at again",
    ]


def test_endless_causes_are_one() -> None:
    collected = Collected()
    for number in range(5000):
        collected.log("connection.closed", about=f"10.0.{number}")
    assert len(collected.lines()) <= 256 + 10
    collected.now = 20.0
    collected.log.tick()
    assert sum(line["suppressed"] for line in collected.lines()) == 5000 - 256 - 10


def test_a_line_that_would_be_too_long_is_still_one_object() -> None:
    collected = Collected()
    collected.log("internal.error", trace="x" * 50_000, number=3)
    [line] = collected.lines()
    assert line["cut"] is True and line["number"] == 3 and len(line["trace"]) == 512


def test_faults_and_the_words_of_libraries_are_events_too() -> None:
    program = """
import logging, threading, warnings
from shmq.daemon.event_log import EventLog
EventLog("bridge", "json").own_everything()
logging.getLogger("asyncio").warning("slow: %s", 3)
thread = threading.Thread(target=lambda: 1 / 0); thread.start(); thread.join()
warnings.warn("old", RuntimeWarning)
class Unraisable:
    def __del__(self):
        {}["missing"]
Unraisable()
raise ValueError("two\\nlines")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    library, of_thread, warned, of_finalizer, of_main = [json.loads(line) for line in done.stderr.splitlines()]
    assert (library["event"], library["source"], library["text"]) == ("library.message", "asyncio", "slow: 3")
    assert of_thread["event"] == "process.fault" and of_thread["reason"].startswith("ZeroDivisionError")
    assert (warned["event"], warned["source"]) == ("library.message", "py.warnings") and "old" in warned["text"]
    assert of_finalizer["event"] == "process.fault" and of_finalizer["reason"] == "KeyError: 'missing'"
    assert of_main["reason"] == "ValueError: two\nlines" and "Traceback" in of_main["trace"]
    assert logging.getLogger().handlers is not None


def test_no_body_is_ever_in_the_log_and_every_line_is_an_object() -> None:
    body = b"SECRET-7f3a"
    with Broker(tcp=True, log_format="json") as broker:
        with broker.connect() as mq, shmq.connect(f"rocketmq://{broker.name_server}") as remote:

            @mq.listener("orders", group="failing")
            def on_order(message: shmq.Message) -> None:
                raise shmq.Reject("no")

            mq.start()
            for sender in (mq, remote):
                sender.send("orders", body, properties={"secret": body.decode()})
            eventually(lambda: len(broker.dlq("failing")) == 2, "both are buried")
        host, port = broker.broker_address.rsplit(":", 1)
        for wrong in (b"\x00\x00\x00\x20\x00\x00\x00\x18" + body * 3, b"GET / HTTP/1.1\r\n\r\n" + body * 100):
            with socket.create_connection((host, int(port)), 30.0) as peer:
                peer.sendall(wrong)
                peer.shutdown(socket.SHUT_WR)
                while peer.recv(4096):
                    pass
        os.kill(broker.processes["bridge"].pid, signal.SIGKILL)
        eventually(lambda: "child.ended" in broker.log, "the supervisor says so")
        text = broker.log
    assert body.decode() not in text
    announced = text[text.index("shmq ") : text.index("\n", text.index("ready in ")) + 1]  # its stdout goes there, too
    events = [json.loads(line) for line in text.replace(announced, "").splitlines()]
    assert {"child.started", "connection.closed", "child.ended"} <= {event["event"] for event in events}
    assert all({"time", "process", "event"} <= event.keys() for event in events)
