"""`shmq store resend`: a user's message is sent again, the broker's own is left out and counted."""

import json
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

import shmq
from shmq.store.offline.again import Again
from shmq.store.offline.restoration import DEFAULT_DELAY_LEVELS
from shmq.testing import Broker
from shmq.tools.store import resend_command
from shmq.tools.store.resend_command import _send, _send_all
from tests.tables.rows import every_row
from tests.tools.shell import TIMEOUT, Shell, until
from tests.tools.store.conftest import MESSAGES


@pytest.fixture
def target() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


@pytest.fixture
def file(store: Path, tmp_path: Path) -> Path:
    path = tmp_path / "all.jsonl"
    Shell().ok("store", "export", str(store), "--output", str(path))
    return path


def test_a_whole_store_is_sent_again(file: Path, target: Broker) -> None:
    shell = Shell(target.url)
    document = shell.json("store-resend", "store", "resend", str(file), "--yes")
    with target.connect() as mq:
        bodies = Counter(bytes(message.body) for message in mq.browse("orders", limit=10_000))
    assert bodies == Counter([b"%d" % number * 50 for number in range(MESSAGES)] + [b"bought 0", b"bought 1"])
    timers = shell.json("timer-list", "timer", "list", "--topic", "orders")["timers"]
    assert len(timers) == 5, "they wait for what is left of their hour"
    assert document["sent"] == MESSAGES + 5 + 2
    assert document["records"] == document["sent"] + sum(row["records"] for row in document["left_out"])
    left = {row["topic"] for row in document["left_out"]}
    assert left == {"RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"}


def test_nothing_is_sent_without_a_yes_and_it_goes_on_at_a_line(file: Path, target: Broker) -> None:
    shell = Shell(target.url)
    assert shell.run("store", "resend", str(file)).status == 64
    told = shell.json("store-resend", "store", "resend", str(file), "--dry-run")
    assert told["sent"] > MESSAGES
    with target.connect() as mq:
        assert "orders" not in mq.admin.topics
    document = shell.json(
        "store-resend", "store", "resend", str(file), "--yes", "--from-line", str(told["records"] - 2)
    )
    assert document["records"] == 3


def test_words_that_no_send_of_ours_takes_are_sent_again_as_escapes(file: Path, target: Broker) -> None:
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    (record, *_) = [line for line in lines if line["topic"] == "orders" and not line["sys_flag"]]
    strange = {"TAGS": " a\0", "KEYS": "k\u3000 \x7f", "__SHARDINGKEY": "\x01", "n\x05": "v\x02\ud800", "empty": ""}
    file.write_text(json.dumps(record | {"properties": strange, "topic": "strange"}))
    Shell(target.url).json("store-resend", "store", "resend", str(file), "--yes")
    with target.connect() as mq:
        (again,) = mq.browse("strange")
    assert (again.tag, again.keys, again.message_group) == ("\\x20a\\x00", ["k\u3000", "\\x7f"], "\\x01")
    assert again.properties["n\\x05"] == "v\\x02\\ud800" and "empty" not in again.properties


def test_an_error_says_how_many_lines_are_done_and_where_to_go_on(file: Path, target: Broker) -> None:
    lines = file.read_text().splitlines()
    lines[7] = json.dumps(json.loads(lines[7]) | {"topic": "no name"})
    file.write_text("\n".join(lines))
    error = Shell(target.url).fails(64, "store", "resend", str(file), "--yes")
    assert error["hint"].startswith(f"the lines below 8 of {file} are done: --from-line 8 goes on there")


def test_an_interrupted_call_says_where_to_go_on(file: Path, target: Broker) -> None:
    lines = [line for line in file.read_text().splitlines() if json.loads(line)["topic"] == "orders"][:MESSAGES]
    file.write_text("\n".join(lines * 100))
    shell = Shell(target.url)
    with shell.start("store", "resend", str(file), "--yes") as process, target.connect() as mq:
        until(lambda: "orders" in mq.admin.topics and mq.admin.topics["orders"].messages, "the first lines")
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=TIMEOUT)
        done = mq.admin.topics["orders"].messages
    assert process.returncode == 130 and done < 100 * MESSAGES
    assert f"the lines below {done + 1} of {file} are done: --from-line {done + 1} goes on there" in err.decode()


@every_row(
    ("number", "maybe_stored", "said"),
    [
        (8, False, "the lines below 8 of FILE are done: --from-line 8 goes on there; wait"),
        (
            8,
            True,
            "the lines below 8 of FILE are done: --from-line 8 goes on there; line 8 may be stored already: "
            "--from-line 9 leaves it out; wait",
        ),
        (1, False, "wait"),
        (1, True, "line 1 may be stored already: --from-line 2 leaves it out; wait"),
    ],
)
def test_an_error_says_what_is_done_and_whether_its_line_may_be_stored(
    tmp_path: Path, number: int, maybe_stored: bool, said: str
) -> None:
    class Failing:
        def send(self, *_: Any, **__: Any) -> None:
            error = shmq.SendTimeout("no answer", hint="wait")
            error.maybe_stored = maybe_stored
            raise error

    again = Again("orders", 0, b"x", {})
    with pytest.raises(shmq.SendTimeout) as failed:
        _send(cast("Any", Failing()), again, tmp_path, number)
    assert failed.value.hint.replace(str(tmp_path), "FILE") == said


def test_an_interrupt_before_the_first_line_says_of_none_that_it_is_done(
    file: Path, target: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(resend_command, "_send", interrupted)
    said: list[str] = []
    call = SimpleNamespace(connect=target.connect, terminal=SimpleNamespace(say=said.append))
    with pytest.raises(KeyboardInterrupt):
        _send_all(cast("Any", call), file, 1, DEFAULT_DELAY_LEVELS)
    assert said == []


@every_row("line", ["{}", "no json", '{"topic": 3}', "[]"])
def test_a_line_that_is_no_record_is_named_before_anything_is_sent(file: Path, target: Broker, line: str) -> None:
    lines = file.read_text().splitlines()
    lines[7] = line
    file.write_text("\n".join(lines))
    error = Shell(target.url).fails(65, "store", "resend", str(file), "--yes")
    assert "line 8" in error["error"]
    with target.connect() as mq:
        assert "orders" not in mq.admin.topics


def test_lines_of_exports_have_what_is_needed(file: Path) -> None:
    assert {"topic", "body_base64", "prepared_position"} <= json.loads(file.read_text().splitlines()[0]).keys()
