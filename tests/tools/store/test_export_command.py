"""`shmq store export`: every message that was asked for, in the log's order, whole; a file is never overwritten."""

import base64
import json
from pathlib import Path

import pytest

from shmq.store.layout import file_name
from tests.tools.shell import Shell
from tests.tools.store.conftest import FILE_BYTES, change
from tests.tools.store.test_verify_command import a_flipped_body, records


def test_lines_hold_what_the_log_holds(store: Path, tmp_path: Path, shell: Shell) -> None:
    file = tmp_path / "orders.jsonl"
    words = ("store", "export", str(store), "--topic", "orders", "--from-offset", "10", "--to-offset", "60")
    document = shell.json("store-export", *words, "--output", str(file))
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    wanted = [one for one, _ in records(store) if one.topic == "orders" and 10 <= one.queue_offset < 60]
    assert [base64.b64decode(line["body_base64"]) for line in lines] == [one.fields["body"] for one in wanted]
    assert [line["position"] for line in lines] == [one.position for one in wanted]
    assert document["messages"] == len(lines) == 50 and document["damages"] == []


def test_raw_records_are_the_bytes_of_the_log(store: Path, tmp_path: Path, shell: Shell) -> None:
    file = tmp_path / "all.records"
    shell.ok("store", "export", str(store), "--raw", "--output", str(file))
    assert file.read_bytes() == b"".join(data for _, data in records(store))


def test_a_damaged_record_costs_only_itself_and_is_said(store: Path, tmp_path: Path, shell: Shell) -> None:
    count = len(records(store))
    a_flipped_body(store)
    document = shell.json(
        "store-export", "store", "export", str(store), "--output", str(tmp_path / "all.jsonl"), status=1
    )
    assert (document["messages"], len(document["damages"])) == (count - 1, 1)


def test_a_file_that_is_there_stays_as_it_is(store: Path, tmp_path: Path, shell: Shell) -> None:
    file = tmp_path / "mine"
    file.write_text("mine")
    assert "there already" in shell.fails(73, "store", "export", str(store), "--output", str(file))["error"]
    assert file.read_text() == "mine" and list(tmp_path.glob(".*.part")) == []


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("--topic", "orders", "--topic", "%DLQ%none"),
        ("--queue", "0"),
        ("--topic", "orders", "--queue", "0", "--from-offset", "3", "--to-offset", "21"),
        ("--topic", "RMQ_SYS_TRANS_HALF_TOPIC"),
        ("--from-offset", "40"),
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("damaged", [False, True], ids=["whole", "damaged"])
def test_what_is_asked_for_is_found_among_many_records(
    store: Path, tmp_path: Path, shell: Shell, words: tuple[str, ...], damaged: bool
) -> None:
    if damaged:
        a_flipped_body(store)
    named = [words[at + 1] for at, word in enumerate(words) if word == "--topic"]
    number = {word: int(words[at + 1]) for at, word in enumerate(words) if word.startswith("--") and word != "--topic"}
    wanted = [
        data
        for one, data in records(store)
        if (not named or one.topic in named)
        and one.queue_id == number.get("--queue", one.queue_id)
        and number.get("--from-offset", 0) <= one.queue_offset < number.get("--to-offset", 1 << 62)
    ]
    file = tmp_path / "some.records"
    document = shell.json(
        "store-export", "store", "export", str(store), *words, "--raw", "--output", str(file), status=int(damaged)
    )
    assert file.read_bytes() == b"".join(wanted) and document["messages"] == len(wanted)
    assert wanted or "%DLQ%none" in named


def test_a_missing_log_file_is_said_and_a_false_name_is_refused_by_every_command(
    store: Path, tmp_path: Path, shell: Shell
) -> None:
    first, output = store / "commitlog" / file_name(0), ("--output", str(tmp_path / "all.jsonl"))
    kept = first.rename(tmp_path / "kept")
    document = shell.json("store-export", "store", "export", str(store), *output, status=1)
    assert "1 log file is missing" in document["damages"][0]["reason"]
    layout = shell.json("store-inspect", "store", "inspect", str(store))["layout"]
    assert layout["log_problems"] == [document["damages"][0]["reason"]]
    first.symlink_to(kept)
    for verb, *words in (
        ("export", *output),
        ("inspect",),
        ("repair",),
        ("repair", "--dry-run"),
        ("import", "--in-place"),
    ):
        result = shell.run("store", verb, str(store), *words)
        assert result.status not in (0, 1) and str(first) in result.err and f"mv {kept} {first}" in result.err, result
    verified = shell.json("store-verify", "store", "verify", str(store), status=1)
    assert [(each["where"], each["type"].split(";")[0]) for each in verified["disagreements"]] == [
        (f"commitlog/{first.name}", f"mv {kept} {first}")
    ]


@pytest.mark.parametrize("marked", [True, False], ids=["with a mark", "without one"])
def test_damage_at_the_end_of_a_file_costs_only_itself(store: Path, tmp_path: Path, shell: Shell, marked: bool) -> None:
    if not marked:
        (store / "shmq.durable").unlink()
    found = records(store)
    last, data = max((each for each in found if each[0].position < FILE_BYTES), key=lambda each: each[0].position)
    change(store / "commitlog" / file_name(0), last.position + len(data) - 5, b"\xff" * 5)
    file = tmp_path / "all.records"
    document = shell.json("store-export", "store", "export", str(store), "--raw", "--output", str(file), status=1)
    assert file.read_bytes() == b"".join(each for one, each in found if one.position != last.position)
    assert [each["position"] for each in document["damages"]] == [last.position]


def test_a_log_whose_every_file_is_gone_is_missing(store: Path, tmp_path: Path, shell: Shell) -> None:
    for path in (store / "commitlog").iterdir():
        path.unlink()
    words = ("store", "export", str(store), "--output", str(tmp_path / "all.jsonl"))
    [damage] = shell.json("store-export", *words, status=1)["damages"]
    assert "all log files are missing" in damage["reason"]
    verified = shell.json("store-verify", "store", "verify", str(store), status=1)
    assert any("all log files are missing" in each["reason"] for each in verified["disagreements"])
