"""`shmq spark …` as it is typed: what cannot be is said before Spark starts, and exit statuses say how it went."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shmq.client.position import parse_position
from shmq.errors import UsageError
from shmq.spark.jobs.commands import job as job_command
from shmq.spark.jobs.replay import ReplaySettings, check_replay
from shmq.spark.jobs.table.delta import DeltaArchive
from shmq.spark.option_values import moment_ms
from shmq.tools.cli import main
from tests.tools.json_schema import check

COUNT = 30
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def desk(broker: Any, mq: Any) -> Any:
    """A broker with a topic of two queues, and one that is empty."""
    for topic in ("desk", "desk-again"):
        mq.admin.create_topic(topic, queues=2)
    for number in range(COUNT):
        mq.send("desk", b"%d" % number, queue_id=number % 2, tag="ab"[number % 2])
    return broker


@pytest.fixture
def run(desk: Any, capfd: pytest.CaptureFixture[str]) -> Run:
    """Type a command; gives exit status, stdout and stderr."""

    def typed(*words: str) -> tuple[int, str, str]:
        capfd.readouterr()
        status = main(["spark", *words, "--url", desk.url])
        said = capfd.readouterr()
        return status, said.out, said.err

    return typed


def told(schema: str, path: Path) -> dict[str, Any]:
    """The report a command has written, which follows its schema."""
    found: dict[str, Any] = json.loads(path.read_text())
    check(schema, found)
    return found


WRONG = {
    "archive --topic desk --to {0}/a --for 10s": "--every 30s --for 1h",
    "archive --topic desk --to {0}/a --every 0s": "--every 30s",
    "archive --topic desk --to {0}/a --plot {0}/none/a.png": "mkdir -p {0}/none",
    "archive --topic desk --to {0}/a --report {0}/none/a.json": "mkdir -p {0}/none",
    "archive --topic desl --to {0}/a": 'did you mean "desk"',
    "archive --to {0}/a": "--topic orders",
    "archive --topic desk --to {0}/a --option maxBytesPerTrigge=4m": "did you mean maxBytesPerTrigger",
    "archive --topic desk --to {0}/a --option maxBytesPerTrigger": "--option key=value",
    "replay --topic desk --to desk --run x": "replay to another topic",
    "replay --topic desk --to nowhere --run x": "shmq topic list",
    "replay --topic desk --to desk-again --run a/b": "letters, digits",
    "replay --topic desk --to desk-again --run x --since 2026-02-01 --until 2026-01-01": "swap them",
    "replay --topic desk --to desk-again --run x --since yesterday": "milliseconds since 1970",
    "replay --from {0} --to desk-again --run x": "shmq spark archive --to DIR",
    "reconcile --topic desk --archive {0}": "shmq spark archive --to DIR",
    "reconcile --topic desk --ledger {0}/none.jsonl": "there is no ledger",
    "lag --topic desk --group absent": "shmq group list",
    "lag --topic desk --bucket 10ms": "--bucket 60s",
    "dlq --group absent": "group absent has no dead letters",
    "dlq --to desk": "add --redrive",
    "dlq --yes": "add --redrive",
}


NO_TOPIC = ("archive --topic desl --to {0}/a", "replay --topic desk --to nowhere --run x")  # the answer is no


@pytest.mark.parametrize("line", WRONG)
def test_what_cannot_be_is_said_with_the_cure_before_spark_starts(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    def no_spark(*arguments: Any) -> Any:
        raise AssertionError("Spark was started")

    monkeypatch.setattr(job_command, "open_session", no_spark)
    status, out, err = run(*line.format(tmp_path).split())
    assert (status, out) == (1 if line in NO_TOPIC else 64, ""), err
    assert WRONG[line].format(tmp_path) in err and err.startswith("error: ")
    assert len(err.splitlines()) <= 2, err
    assert not list(tmp_path.iterdir())


def test_a_dry_run_of_archive_leaves_no_trace_and_no_job_in_its_way(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "archive"
    line = ("archive", "--topic", "desk", "--to", str(path), "--dry-run")
    status, out, err = run(*line)
    assert (status, path.exists()) == (0, False), err
    assert f"would archive {COUNT} messages" in err and out.splitlines()[0].split()[0] == "TOPIC"
    DeltaArchive(path, ("body",), ("topic",)).create()  # as a job that runs has it
    (path / ".left.parquet").touch()
    before = sorted(path.rglob("*"))
    assert run(*line)[0] == 0
    assert sorted(path.rglob("*")) == before


def test_an_archive_of_plain_files_is_refused_by_every_job(run: Run, tmp_path: Path) -> None:
    (tmp_path / "_manifests").mkdir()
    for line in ("archive --topic desk --to {0}", "replay --from {0} --to desk-again --run x --yes",
                 "reconcile --topic desk --archive {0}"):  # fmt: skip
        status, _, err = run(*line.format(tmp_path).split(), "--dry-run")
        assert status == 64 and "plain Parquet files" in err and f"--to {tmp_path}-delta" in err, err


def test_archive_and_reconcile_report_draw_and_say_how_it_went(spark: Any, run: Run, tmp_path: Path) -> None:
    path, picture, report = tmp_path / "archive", tmp_path / "a.png", tmp_path / "a.json"
    words = ("--topic", "desk", "--to", str(path))
    status, _, err = run("archive", *words, "--plot", str(picture), "--report", str(report))
    assert status == 0 and f"archived {COUNT} messages" in err
    found = told("spark-archive", report)
    assert [step["messages"] for step in found["steps"]] == [COUNT] and found["restarts"] == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    ledger = tmp_path / "ledger.jsonl"
    ledger.write_text('{"topic": "desk", "queue_id": 0, "queue_offset": 4711}\n')
    compare = ("reconcile", "--topic", "desk", "--archive", str(path))
    status, out, err = run(*compare, "--ledger", str(ledger), "--plot", str(picture), "--report", str(report))
    assert status == 1 and "1 lost" in out and "4711" in out, err
    assert told("spark-reconcile", report)["differences"] == 1
    status, out, _ = run(*compare, "--dry-run", "--json")
    check("spark-reconcile-plan", json.loads(out))
    assert (status, json.loads(out)["messages"]) == (0, COUNT)


def test_a_time_without_a_zone_is_local_in_commands_and_utc_in_options(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "Asia/Tokyo")
        time.tzset()
        local_ms, late = parse_position("2026-07-01").value, "2026-06-30T15:00:00Z"
        assert moment_ms("--since", late) == local_ms == moment_ms("--since", "2026-07-01", None)
        assert moment_ms("startingTimestamp", "2026-07-01") == local_ms + 9 * 3_600_000
        with pytest.raises(UsageError, match="--since is not before"):
            check_replay(ReplaySettings(source={"topic": "a"}, target="b", run="r", since="2026-07-01", until=late))
    time.tzset()


def test_a_replay_sends_only_with_yes_and_tells_before_what_it_would(
    spark: Any, mq: Any, run: Run, tmp_path: Path
) -> None:
    line = ("replay", "--topic", "desk", "--to", "desk-again", "--run", "one", "--where", "tags = 'a'")
    status, _, err = run(*line)
    assert status == 64 and f"would send {COUNT // 2} messages" in err and "--yes" in err
    assert mq.admin.topics["desk-again"].messages == 0
    report = tmp_path / "r.json"
    status, _, err = run(*line, "--yes", "--plot", str(tmp_path / "r.png"), "--report", str(report))
    assert status == 0 and f"sent {COUNT // 2} messages to desk-again" in err
    assert told("spark-replay", report)["samples"][-1]["messages"] == COUNT // 2
    assert (tmp_path / "r.png").read_bytes().startswith(b"\x89PNG")
    status, out, _ = run(*line, "--dry-run", "--json")
    found = json.loads(out)
    check("spark-replay-plan", found)
    assert (status, found["messages"], found["in_already"]) == (0, 0, COUNT // 2)


def test_a_condition_that_is_none_is_said_in_one_line(spark: Any, run: Run) -> None:
    line = ("replay", "--topic", "desk", "--to", "desk-again", "--run", "two", "--where")
    for condition, word in (("colour = 1", "colour"), ("tags = = 1", "Syntax")):
        status, _, err = run(*line, condition)
        assert status == 64 and word in err and len(err.splitlines()) == 3, err


def test_lag_says_which_queue_is_late(spark: Any, mq: Any, run: Run, tmp_path: Path) -> None:
    with mq.pull_consumer("desk") as consumer:
        consumer.commit("desk-group", offsets={0: COUNT // 2, 1: 3})
    line = ("lag", "--topic", "desk", "--group", "desk-group")
    status, _, err = run(*line, "--max-lag", "10", "--report", str(tmp_path / "lag.json"))
    assert status == 1 and f"queue 1: {COUNT // 2 - 3} messages behind, 10 are allowed" in err, err
    assert len(told("spark-lag", tmp_path / "lag.json")["late"]) == 1
    assert run(*line, "--max-lag", "100")[0] == 0
    status, out, _ = run(*line, "--dry-run", "--json")
    check("spark-lag-plan", json.loads(out))
    assert (status, json.loads(out)["group"]) == (0, "desk-group")


def test_letters_whose_topic_is_gone_are_homeless_until_to_names_one(
    spark: Any, desk: Any, mq: Any, run: Run, tmp_path: Path
) -> None:
    from shmq.errors import Reject
    from tests.spark.jobs.killing import eventually

    mq.admin.create_topic("desk-gone", queues=1)
    for number in range(3):
        mq.send("desk-gone", b"%d" % number)
    with desk.connect() as other:
        listener = other.listener("desk-gone", group="desk-grump", attempts_max=1)

        @listener
        def refuse(message: Any) -> None:
            raise Reject("no")

        other.start()
        eventually(lambda: len(mq.admin.dlq("desk-grump")) == 3, lambda: "letters")
    mq.admin.delete_topic("desk-gone")
    report = tmp_path / "dlq.json"
    line = ("dlq", "--group", "desk-grump", "--redrive", "--report", str(report))
    status, _, err = run(*line, "--dry-run")
    assert status == 0 and "would send 0 messages" in err and "3 of no topic" in err
    assert told("spark-dlq", report)["homeless"] == 3
    status, _, err = run(*line, "--to", "desk-again")
    assert status == 64 and "would send 3 messages to desk-again" in err
    assert "sent 3 messages to desk-again" in run(*line, "--to", "desk-again", "--yes")[2]
    found = told("spark-dlq", report)
    assert (found["redrive"], found["sent"], found["target"]) == (True, 3, "desk-again")
    assert "would send 0 messages to desk-again; 3 were sent before" in run(*line, "--to", "desk-again", "--dry-run")[2]
    assert told("spark-dlq", report)["in_already"] == 3
