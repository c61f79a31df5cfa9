"""One line for each event."""

import json
import os
import select

import pytest

from shmq.daemon.event_log import EventLog
from shmq.shm.counters import INTERNAL_ERRORS, LOG_LINES_DROPPED, LooseCounters
from shmq.waits import is_ready
from tests.supervisor.unread_output import KINDS, unread_output


def lines(log_format: str, **values: object) -> str:
    """What one event writes."""
    reading, writing = os.pipe()
    EventLog("keeper", log_format, descriptor=writing)("log.rolled", **values)
    os.close(writing)
    with open(reading) as file:
        return file.read()


def test_a_text_line_names_process_event_and_values() -> None:
    line = lines("text", files=3, reason='a "quoted" one\nwith two lines')
    assert line.count("\n") == 1
    assert line.split(" ", 1)[1] == 'keeper log.rolled files=3 reason="a \\"quoted\\" one\\nwith two lines"\n'


def test_a_json_line_is_one_object() -> None:
    event = json.loads(lines("json", files=3, reason="x"))
    assert {name: event[name] for name in ("process", "event", "files", "reason")} == {
        "process": "keeper",
        "event": "log.rolled",
        "files": 3,
        "reason": "x",
    }


def test_a_closed_stderr_does_not_end_the_broker() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    EventLog("keeper", descriptor=writing)("log.rolled")
    os.close(writing)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("waits", [True, False], ids=["a descriptor that waits", "one that does not"])
def test_a_line_that_cannot_be_written_at_once_is_dropped_and_counted(kind: str, waits: bool) -> None:
    counters = LooseCounters()
    with unread_output(kind) as (writing, _):
        os.set_blocking(writing, waits)
        log = EventLog("keeper", descriptor=writing)
        log("log.rolled")
        log.count_in(counters)
        log("log.rolled")
        log.tick()
    assert counters.counter(LOG_LINES_DROPPED).value == 2


@pytest.mark.parametrize("follows", ["a line", "a tick"])
def test_the_next_line_that_can_be_written_says_how_many_were_dropped(follows: str) -> None:
    with unread_output("pipe") as (writing, reading):
        log = EventLog("keeper", "json", descriptor=writing)
        for _ in range(3):
            log("log.rolled")
        while is_ready(reading, 0):
            os.read(reading, 1 << 20)
        if follows == "a line":
            log("flush.slow", files=3)
        else:
            log.tick()
        log.tick()
        first, *others = [json.loads(line) for line in os.read(reading, 1 << 20).splitlines()]
    assert (first["event"], first["dropped"]) == ("log.dropped", 3)
    assert [event["event"] for event in others] == (["flush.slow"] if follows == "a line" else [])


def test_a_line_fits_a_pipe_as_a_whole_whatever_it_says() -> None:
    many = {f"field_{number}": "x" * 600 for number in range(40)}
    for values in ({"trace": "ä" * 50_000}, many, {"field" * 2000: 1}):
        for log_format in ("text", "json"):
            line = lines(log_format, **values)
            assert len(line) <= select.PIPE_BUF and line.endswith("\n") and line.count("\n") == 1
            assert log_format == "text" or json.loads(line)["event"] == "log.rolled"


def test_faults_of_ours_are_counted_also_those_whose_line_is_left_out() -> None:
    counters = LooseCounters()
    with open(os.devnull, "wb") as nothing:
        log = EventLog("bridge", descriptor=nothing.fileno())
        log.count_in(counters)
        for _ in range(100):
            log("internal.error", where="a tick")
            log("connection.closed")
    assert counters.counter(INTERNAL_ERRORS).value == 100
