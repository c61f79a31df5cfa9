"""The examples work as they stand, against the broker that the environment names."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shmq.testing import Broker
from tests.deadline import eventually
from tests.ha.etcd.server import needs_etcd

pytestmark = pytest.mark.slow  # each is a program and a broker of its own

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(shmq_broker: Broker) -> Iterator[Start]:
    """Start an example in a process of its own."""
    started: list[subprocess.Popen[str]] = []

    def begin(name: str, *words: str) -> "subprocess.Popen[str]":
        environment = {**os.environ, "SHMQ_URL": shmq_broker.url}
        program = [sys.executable, "-P", str(EXAMPLES / name), *words]
        started.append(subprocess.Popen(program, stdout=subprocess.PIPE, text=True, env=environment))
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        process.wait(60)
        if process.stdout is not None:
            process.stdout.close()


def line_of(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pytest.fixture
def tcp_broker() -> Iterator[Broker]:
    with Broker(tcp=True) as broker:
        yield broker


def test_the_remote_example_does_the_same_over_tcp(tcp_broker: Broker) -> None:
    program = [sys.executable, "-P", str(EXAMPLES / "remote.py"), f"rocketmq://{tcp_broker.name_server}"]
    said = subprocess.run(program, capture_output=True, text=True, timeout=60, check=True).stdout.splitlines()
    assert said[0].startswith("stored ") and said[1] == "order-42 fruit b'42 apples'"


def test_hello_stores_a_message_and_reads_it_back(start: Start) -> None:
    process = start("hello.py")
    message_id, queue_id, offset = line_of(process).split()
    assert len(message_id) == 32
    assert int(queue_id) in range(8)
    assert offset == "0"
    assert line_of(process) == "order-42 fruit b'42 apples'"


def test_a_filter_selects_and_a_wrong_one_is_explained(start: Start) -> None:
    process = start("filters.py")
    assert line_of(process) == "eu b'3 apples'"
    assert line_of(process).startswith('"LIKE" stands where')
    assert [line_of(process), line_of(process)] == ["region LIKE 'e%'", "^^^^"]
    assert "STARTSWITH" in line_of(process) and process.wait(60) == 0


def test_workers_of_a_group_share_the_messages_and_end_in_order(start: Start, shmq_broker: Broker) -> None:
    workers = [start("group_worker.py") for _ in range(2)]
    with shmq_broker.connect() as mq:
        mq.admin.create_topic("orders")
        eventually(lambda: "billing" in mq.admin.groups and len(mq.admin.groups["billing"].members) == 2, "two members")
        for body in (b"", b"too early", *(b"%d" % number for number in range(100))):
            mq.send("orders", body)
        retried = "%RETRY%billing"
        eventually(lambda: retried in mq.admin.topics and mq.admin.topics[retried].messages, "one comes again")
        eventually(lambda: mq.admin.groups["billing"].lag.total == 0, "all are handled")
        assert all(worker.poll() is None for worker in workers)
    for worker in workers:
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(60) == 0
    lines = [line for worker in workers if worker.stdout is not None for line in worker.stdout]
    assert len(lines) == 101
    assert sum("attempt 2" in line for line in lines) == 1
    assert [letter.reason for letter in shmq_broker.dlq("billing", n=1, timeout=60)] == ["an order without a body"]


def test_a_frame_is_seen_where_it_was_written(start: Start) -> None:
    pytest.importorskip("numpy")
    process = start("zero_copy.py")
    assert line_of(process) == "left (480, 640, 3) bright pixels: 10000"
    assert process.wait(60) == 0


def test_the_asyncio_worker_ends_on_ctrl_c(start: Start) -> None:
    process = start("async_worker.py")
    assert line_of(process) == "fruit b'42 apples'"
    process.send_signal(signal.SIGINT)
    # A shell that runs the tests in the background has SIGINT ignored, and Python leaves it so.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        process.terminate()
        assert process.wait(60) == -signal.SIGTERM
    else:
        assert process.wait(60) == 0


@pytest.fixture
def service(shmq_broker: Broker) -> Iterator[str]:
    """The address of fastapi_app.py, served by uvicorn."""
    command = [sys.executable, "-P", "-m", "uvicorn", "--app-dir", str(EXAMPLES), "--port", "0", "fastapi_app:app"]
    environment = {**os.environ, "SHMQ_URL": shmq_broker.url, "PYTHONUNBUFFERED": "1"}
    environment["SHMQ_TEST_PATIENCE"] = "10"  # its end waits as long for a broker that has stopped
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
    assert process.stderr is not None
    try:
        lines = iter(process.stderr.readline, "")
        yield next(found[0] for line in lines if (found := re.search(r"http://127\.0\.0\.1:\d+", line)))
        process.terminate()
        left = process.stderr.read()
        assert process.wait(60) in (0, -signal.SIGTERM)
        assert "Application shutdown complete" in left and "Traceback" not in left
    finally:
        process.kill()
        process.wait(60)
        process.stderr.close()


def test_the_web_service_sends_handles_and_shows_orders(service: str, shmq_broker: Broker) -> None:
    httpx = pytest.importorskip("httpx", reason="httpx is not installed: pip install -e '.[test]'")
    with httpx.Client(base_url=service, timeout=60) as client:
        assert client.post("/orders", json={"item": "apples", "quantity": 0}).status_code == 422
        with client.stream("GET", "/orders/live") as live:
            lines = live.iter_lines()
            assert next(lines) == ": listening"
            answer = client.post("/orders", json={"item": "apples", "quantity": 42})
            assert answer.status_code == 202
            assert next(line for line in lines if line.startswith("id: ")) == f"id: {answer.json()['message_id']}"
            assert next(lines) == 'data: {"item":"apples","quantity":42}'
        assert eventually(lambda: client.get("/reserved").json()) == {"apples": 42}
        shmq_broker.stop()
        assert client.post("/orders", json={"item": "pears", "quantity": 1}).status_code == 503


def test_the_grind_loses_no_line_when_a_producer_and_a_consumer_are_killed(tmp_path: Path) -> None:
    lines = b"".join(b"line %d of a text that is long enough\n" % number for number in range(2000))
    for name in range(30):
        (tmp_path / f"text-{name:02}").write_bytes(lines)
    command = [sys.executable, "-P", str(EXAMPLES / "grind.py"), "--roots", str(tmp_path)]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert "killed a producer" in finished.stdout
    assert "killed a consumer" in finished.stdout
    assert "acknowledged 60,000 lines: missing 0, with another hash 0, never acknowledged 0" in finished.stdout


@needs_etcd()
def test_a_failover_misses_no_acknowledged_message() -> None:
    pytest.importorskip("urllib3")
    command = [sys.executable, "-P", str(EXAMPLES / "failover.py"), "--seconds", "2"]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert finished.stdout.count(" dies") == 2 and " messages acknowledged, 0 missing" in finished.stdout


def test_a_topic_is_a_table(start: Start) -> None:
    for library in ("pyarrow", "duckdb"):
        pytest.importorskip(library, reason=f"{library} is not installed: pip install -e '.[sql]'")
    process = start("arrow.py")
    assert [line_of(process), line_of(process)] == ["fruit 750", "gift 250"]
    assert re.fullmatch(r"\['queue_id', 'queue_offset', 'body'\] b'\d+ apples'", line_of(process))
    assert process.wait(60) == 0


@pytest.mark.timed
def test_reminders_come_when_they_are_due(start: Start) -> None:
    process = start("reminders.py")
    said = [line_of(process) for _ in range(3)]
    assert sorted(said[:2]) == ["b'as RocketMQ 4 does'", "b'in a second'"]
    assert said[2] == "b'in two'"
    assert process.wait(60) == 0


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("browse.py", ["fruit of the last hour: b'apples'", "by id: b'beets'"]),
        ("retry.py", ["attempt 1: b'the card of o-2'", "attempt 3: b'the card of o-1'"]),
        ("dead_letters.py", ["dead: b'one without a price' because of no price", "again: b'one without a price'"]),
        ("simple_consumer.py", ["packed b'apples'", "packed at attempt 2 b'beets'"]),
        ("ordered.py", ["o-42 b'created'", "o-42 b'paid'", "o-42 b'shipped'"]),
        ("transaction.py", ["rolled back: o-2 cannot be delivered", "placed: o-1 b'3'"]),
        ("request_reply.py", ["b'apple' costs b'42'", "b'pear' costs b'37'"]),
        ("broadcast.py", ["shop 1: b'apples cost 42'", "shop 2: b'apples cost 42'"]),
        ("trace.py", ["billed o-42"]),
        ("producing.py", ["queues of o-42: 1", "packed, and whole again: True", "in the background: 10"]),
        ("flow_control.py", ["stored 1000"]),
        (
            "offsets.py",
            ["behind: 0", "again: 3 messages, behind: 3", "charts is behind 0 and audit 3"],
        ),
    ],
)
def test_an_example_of_one_feature_says_what_it_did(start: Start, name: str, wanted: list[str]) -> None:
    said, _ = start(name).communicate(timeout=60)
    lines = said.splitlines()
    assert [line for line in lines if line in wanted] == wanted


def test_spans_of_an_order_are_one_trace_from_the_shop_to_the_bill(start: Start) -> None:
    said, _ = start("spans.py").communicate(timeout=60)
    spans = {line.partition(" trace=")[0]: dict(re.findall(r"(\w+)=(\S*)", line)) for line in said.splitlines()}
    assert spans.keys() == {"checkout", "send orders", "receive orders", "process orders", "write bill"}
    assert spans["send orders"]["parent"] == spans["checkout"]["id"]
    assert spans["process orders"]["parent"] == spans["send orders"]["id"]
    assert spans["write bill"]["parent"] == spans["process orders"]["id"]
    assert spans["receive orders"]["links"] == spans["send orders"]["id"]
    assert len({span["trace"] for name, span in spans.items() if name != "receive orders"}) == 1


def test_the_two_programs_of_two_hosts_work_on_one(start: Start) -> None:
    sender, receiver = (start("two_programs.py", what, "20") for what in ("send", "receive"))
    assert (line_of(sender), line_of(receiver)) == ("all 20 acknowledged", "all 20 received")
    assert (sender.wait(60), receiver.wait(60)) == (0, 0)
