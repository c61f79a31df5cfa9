"""`shmq health` and `shmq check`: one verdict, four forms, Nagios' exit statuses."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from shmq.shm.liveness import status_of
from shmq.testing import Broker
from shmq.tools import start
from tests.deadline import eventually
from tests.protocol.certificates import DAY, make_certificate
from tests.tools.json_schema import check
from tests.tools.shell import Inside, Shell, until


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(tcp=True) as broker:
        with broker.connect() as mq:
            mq.producer().send("orders", b"x" * 100)
            mq.admin.create_topic("closed")
        yield broker


@pytest.fixture
def shell(broker: Broker, capsysbinary: pytest.CaptureFixture[bytes]) -> Shell:
    return Inside(broker.url, capsysbinary)


def test_health_is_shown_in_four_forms_with_one_verdict(shell: Shell, broker: Broker) -> None:
    document = shell.json("health", "health", "--deep")
    assert (document["verdict"], document["exit"]) == ("OK", 0)
    assert document["broker"]["tcp"] == broker.broker_address
    text = shell.ok("health").decode().splitlines()
    assert text[0].startswith(f"OK  broker {broker.name}  pid {broker.processes['supervisor'].pid}")
    assert len(text) == 1 + len([line for line in text if line.startswith(("  ✓", "      why", "      do"))])
    line = shell.ok("health", "--format", "nagios").decode()
    head, _, data = line.strip().partition(" | ")
    assert head == f"OK broker {broker.name}"
    for field in data.split(" "):
        assert re.fullmatch(r"[\w.-]+=-?[\d.e+-]+(B|s|%|c)?(;[\d.]*){0,2}", field), field
    families = shell.ok("health", "--format", "prometheus").decode()
    assert 'shmq_health_status{check="all",subject=""} 0' in families.splitlines()


def test_the_short_way_answers_as_the_long_one(shell: Shell, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    quick = shell.json("health", "health", "--fast")
    assert quick["verdict"] == "OK" and quick["groups"] == []
    long = shell.json("health", "health", "--fast", "--lag-warn", "1")  # an option only the long way knows
    assert [finding["check"] for finding in quick["findings"]] == [finding["check"] for finding in long["findings"]]
    assert shell.run("health", "--fast", "-q").out == b""
    assert shell.run("health", "--fast", "--no-such-option").status == 64
    assert shell.run("health", "--fast", "--deep").status == 64
    assert shell.run("health", "--fast", "-u", "rocketmq://127.0.0.1:9").status == 64


def test_the_short_way_imports_neither_click_nor_psutil(broker: Broker) -> None:
    program = (
        "import sys; from shmq.tools.start import main; status = main(['health', '--fast', '-q', '-u', sys.argv[1]]); "
        "print(status, *[name for name in ('click', 'psutil', 'rich', 'msgspec', 'lark') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-P", "-c", program, broker.url], capture_output=True, text=True, check=True)
    assert done.stdout == "0\n"


def test_the_short_way_takes_the_current_context(broker: Broker, tmp_path: Path) -> None:
    shell = Shell(SHMQ_CONFIG_DIR=str(tmp_path))
    shell.ok("context", "add", "mine", broker.url)
    shell.ok("context", "use", "mine")
    for words in (("health", "--fast"), ("health", "--fast", "--lag-warn", "9")):
        assert shell.ok(*words).startswith(f"OK  broker {broker.name} ".encode())
    (tmp_path / "contexts.json").write_text("{")
    assert shell.run("health", "--fast").status == 64


def test_no_broker_is_critical_and_one_that_may_not_be_read_is_unknown(
    tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    url = f"shmq://{tmp_path}/absent"
    shell = Inside(url, capsysbinary)
    for words in (("health",), ("health", "--fast"), ("check", "store"), ("check", "group", "g")):
        result = shell.run(*words)
        assert (result.status, result.err) == (2, ""), result
        assert b"do   shmq serve --name absent" in result.out
    assert start.main(["health", "--fast", "-q", "-u", url]) == 2
    (tmp_path / "strange").mkdir()
    (tmp_path / "strange" / "instance.json").write_text("{")
    assert Inside(f"shmq://{tmp_path}/strange", capsysbinary).run("health", "--fast").status == 3


def test_waiting_ends_when_all_is_well_or_the_time_is_up(broker: Broker, shell: Shell) -> None:
    keeper = broker.processes["keeper"].pid
    os.kill(keeper, signal.SIGSTOP)
    until(lambda: status_of(keeper).get("State", "").startswith("T"), "the keeper to stop")
    try:
        assert shell.run("health", "--fast", "--wait", "300ms").status == 2
        with shell.start("health", "--wait", "60s", "-q") as waiting:
            os.kill(keeper, signal.SIGCONT)
            assert waiting.wait(60) == 0
    finally:
        os.kill(keeper, signal.SIGCONT)


def test_a_topic_is_checked_against_thresholds(shell: Shell) -> None:
    assert shell.json("check", "check", "topic", "orders")["verdict"] == "OK"
    document = shell.json("check", "check", "topic", "orders", "--messages-warn", "1", status=1)
    [finding] = document["findings"]
    assert finding["measures"]["messages"] == {"value": 1, "unit": "", "warn": 1, "crit": None}
    assert finding["why"] and finding["do"] == "shmq topic show orders"
    assert shell.run("check", "topic", "orders", "--quiet-crit", "0s").status == 2
    assert finding["measures"]["size"]["value"] == shell.json("topic-show", "topic", "show", "orders")["size_bytes"]


@pytest.mark.parametrize("kind", ["topic", "group"])
def test_what_does_not_exist_is_critical_and_names_the_nearest(shell: Shell, kind: str) -> None:
    shell.run("group", "create", "order")
    document = shell.json("check", "check", kind, "orderz", status=2)
    near = {"topic": "orders", "group": "order"}[kind]
    assert f'did you mean "{near}"?' in document["findings"][0]["do"]


def test_the_store_memory_and_processes_have_checks_of_their_own(shell: Shell, broker: Broker) -> None:
    for words in (("store",), ("memory",), ("process",), ("process", "keeper")):
        assert shell.json("check", "check", *words)["verdict"] == "OK"
    pid = broker.processes["bridge"].pid
    document = shell.json("check", "check", "process", str(pid), "--rss-crit", "1m", status=2)
    [finding] = [entry for entry in document["findings"] if entry["verdict"] == "CRITICAL"]
    assert str(pid) in finding["what"]
    assert shell.run("check", "process", "no-pid").status == 2
    assert shell.run("check", "store", "--behind-crit", "0").status == 2


def test_watching_jsonl_is_one_document_a_line(shell: Shell) -> None:
    [line] = shell.ok("health", "--jsonl").splitlines()
    check("health", json.loads(line))


def test_a_certificate_that_is_over_makes_the_broker_critical_and_doctor_names_it(
    tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    cert, key = make_certificate(tmp_path, begins_in=-3 * DAY, ends_in=-DAY)
    with Broker(tcp=True, tls_mode="permissive", tls_cert=str(cert), tls_key=str(key)) as broker:
        shell = Inside(broker.url, capsysbinary)

        def told() -> list[tuple[str, str]]:
            document = json.loads(shell.run("health", "--json").out)
            return [(each["verdict"], each["what"]) for each in document["findings"] if each["check"] == "security"]

        [(verdict, what)] = eventually(told, "the roster is written within a second")
        assert verdict == "CRITICAL" and what.startswith(f"certificate {cert} expired on ")
        doctor = json.loads(shell.run("doctor", "--json").out)
        assert f"{what} – clients that look at it refuse the connection" in [
            each["text"] for each in doctor["findings"] if each["check"] == "broker.security"
        ]
        eventually(lambda: "tls.notice" in broker.log, lambda: broker.log)
