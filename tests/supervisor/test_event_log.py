"""One line for each event."""

import json
import os

from shmq.daemon.event_log import EventLog


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
