"""Replay, reconcile, lag and dead letters in a real Spark, over one broker."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import pytest

from shmq.errors import Reject, UsageError
from shmq.spark.jobs.archive import ArchiveSettings, run_archive
from shmq.spark.jobs.dlq import DlqSettings, run_dlq
from shmq.spark.jobs.lag import LagSettings, run_lag, stored_to_consumed, summary
from shmq.spark.jobs.ledger import ledger_line
from shmq.spark.jobs.plots import draw
from shmq.spark.jobs.reconcile import ReconcileSettings, run_reconcile
from shmq.spark.jobs.replay import ReplaySettings, plan_replay, run_replay
from tests.deadline import eventually
from tests.tools.json_schema import check

COUNT = 400


class Shop:
    """A topic with messages, their ledger, and an archive of them."""

    def __init__(self, broker: Any, folder: Path) -> None:
        self.source = {"store": broker.url, "topics": "shop"}
        self.archive = str(folder / "archive")
        self.ledger = folder / "ledger.jsonl"


@pytest.fixture(scope="module")
def shop(spark: Any, broker: Any, mq: Any, tmp_path_factory: pytest.TempPathFactory) -> Shop:
    made = Shop(broker, tmp_path_factory.mktemp("shop"))
    mq.admin.create_topic("shop", queues=2)
    with made.ledger.open("w") as file:
        for number in range(COUNT):
            body, key = b"body %d" % number, f"k{number % 50}"
            receipt = mq.send(
                "shop", body, queue_id=number % 2, tag="ab"[number % 2], key=key, properties={"n": str(number)}
            )
            file.write(ledger_line(receipt, body, key=f"k{number}"))
    run_archive(spark, ArchiveSettings(made.archive, made.source))
    return made


def bodies(mq: Any, topic: str) -> dict[int, list[bytes]]:
    found: dict[int, list[bytes]] = {}
    for message in sorted(mq.browse(topic, limit=10_000), key=lambda each: each.offset):
        found.setdefault(message.queue_id, []).append(bytes(message.body))
    return found


# ---- replay ----------------------------------------------------------------------------------------------------------


def test_a_replay_keeps_order_and_sends_each_message_once_however_often_it_runs(
    spark: Any, broker: Any, mq: Any, shop: Shop
) -> None:
    mq.admin.create_topic("again", queues=2)
    first = ReplaySettings(shop.source, "again", "one", where="queue_offset < 60")
    assert plan_replay(spark, first)["messages"] == 120
    report = run_replay(spark, first)
    assert (report["sent"], report["in_already"]) == (120, 0)
    check("spark-replay", report)
    # As if the first run had been killed behind offset 59: the same name goes on, from the archive.
    whole = ReplaySettings(shop.source, "again", "one", archive=shop.archive)
    report = run_replay(spark, whole)
    assert (report["sent"], report["in_already"]) == (COUNT - 120, 120)
    assert bodies(mq, "again") == bodies(mq, "shop")
    back = ReplaySettings({"store": broker.url, "topics": "again"}, "shop", "back")
    assert run_replay(spark, back)["loops"] == COUNT
    with pytest.raises(UsageError, match="read and written"):
        run_replay(spark, ReplaySettings(shop.source, "shop", "one"))


# ---- reconcile -------------------------------------------------------------------------------------------------------


def test_what_is_the_same_has_no_difference(spark: Any, shop: Shop, tmp_path: Path) -> None:
    ids = tmp_path / "ids.jsonl"  # a ledger that says which message, but not where
    ids.write_text("".join(sorted('{"message_id"' + line.split('"message_id"')[1] for line in shop.ledger.open())))
    report = run_reconcile(spark, ReconcileSettings(shop.source, shop.archive, (str(ids),), block=64))
    assert report["differences"] == 0, report
    assert [each["check"] for each in report["checks"]] == ["continuity", "archive", "ledger"]
    assert [row["messages"] for row in report["checks"][0]["queues"]] == [COUNT // 2] * 2
    assert report["checks"][2]["acknowledged"] == COUNT
    check("spark-reconcile", {"dry_run": False, **report})
    draw(report, str(tmp_path / "reconcile.png"))
    assert (tmp_path / "reconcile.png").read_bytes().startswith(b"\x89PNG")


def test_every_kind_of_difference_is_found_by_place(spark: Any, shop: Shop, tmp_path: Path) -> None:
    import shutil

    import pyarrow
    import pyarrow.parquet

    archive = tmp_path / "archive"
    shutil.copytree(shop.archive, archive)
    path = min(archive.rglob("*.parquet"))
    table = pyarrow.parquet.ParquetFile(path).read()
    at = table.schema.get_field_index("body")
    changed = table.column("body").to_pylist()
    changed[70] = b"other"
    table = table.set_column(at, table.schema.field(at), pyarrow.array(changed, pyarrow.binary()))
    rows = pyarrow.concat_tables([table.slice(0, 10), table.slice(11), table.slice(20, 1)])
    pyarrow.parquet.write_table(rows, path)
    lines = shop.ledger.read_text().splitlines(keepends=True)
    lost = lines[0].replace('"queue_offset": 0', '"queue_offset": 100000')
    other = lines[1].replace('"crc32": ', '"crc32": 1')
    (tmp_path / "ledger.jsonl").write_text("".join([lost, other, *lines[2:]]))
    report = run_reconcile(
        spark, ReconcileSettings(shop.source, str(archive), (str(tmp_path / "ledger.jsonl"),), block=64)
    )
    checks = {each["check"]: each for each in report["checks"]}
    assert checks["archive"]["kinds"] == {"missing_in_archive": 1, "other_body": 1, "doubled_in_archive": 1}
    places = {(row["queue_offset"], row["kind"]) for row in checks["archive"]["samples"]}
    assert places == {(10, "missing_in_archive"), (20, "doubled_in_archive"), (70, "other_body")}
    assert checks["ledger"]["kinds"] == {"lost": 1, "other_body": 1}
    assert report["differences"] == 5
    check("spark-reconcile", {"dry_run": False, **report})


# ---- lag -------------------------------------------------------------------------------------------------------------


def test_lag_and_latency_are_shown_by_group_and_topic(
    spark: Any, broker: Any, mq: Any, shop: Shop, tmp_path: Path
) -> None:
    with mq.pull_consumer("shop") as consumer:
        consumer.commit("slow", offsets={0: 50, 1: COUNT // 2})
    settings = LagSettings(shop.source, group="slow", run_seconds=1e-9, every_seconds=0.0)  # shorter than one look
    report = run_lag(spark, settings)
    assert len(report["samples"]) == 2 * len(report["groups"])
    groups = {row["queue_id"]: row for row in report["groups"]}
    assert (groups[0]["lag"], groups[1]["lag"]) == (COUNT // 2 - 50, 0)
    assert groups[0]["age_ms"] > 0 and groups[1]["age_ms"] == 0
    (whole,) = (row for row in report["born_to_stored"] if row["from_ms"] is None)
    assert whole["messages"] == COUNT and 0 <= whole["p50_ms"] <= whole["p999_ms"] <= whole["max_ms"]
    check("spark-lag", {"dry_run": False, **report, "late": []})
    draw(report, str(tmp_path / "lag.png"))
    assert (tmp_path / "lag.png").stat().st_size > 1000


def test_a_group_that_does_not_move_while_messages_wait_is_stuck() -> None:
    def look(at_ms: int, committed: int, lag: int) -> dict[str, Any]:
        row = {"group": "g", "topic": "t", "queue_id": 0, "age_ms": 5}
        return {**row, "at_ms": at_ms, "committed": committed, "lag": lag}

    (still,) = summary([look(0, 10, 5), look(2000, 10, 9)])
    assert still["is_stuck"] and still["drained_per_second"] == -2.0 and still["empty_in_seconds"] is None
    (moving,) = summary([look(0, 10, 90), look(2000, 60, 50)])
    assert not moving["is_stuck"] and moving["drained_per_second"] == 20.0 and moving["empty_in_seconds"] == 2.5


# ---- dead letters ----------------------------------------------------------------------------------------------------


def test_dead_letters_are_sorted_and_driven_again_once(spark: Any, broker: Any, mq: Any, tmp_path: Path) -> None:
    mq.admin.create_topic("orders-dead", queues=1)
    for number in range(4):
        mq.send("orders-dead", b"bad %d" % number, queue_id=0, key=f"k{number}")

    def letters() -> int:
        return len(mq.admin.dlq("grump"))

    with broker.connect(trace=True) as traced:
        listener = traced.listener("orders-dead", group="grump", attempts_max=1)

        @listener
        def refuse(message: Any) -> None:
            raise Reject(f"order {message.body.decode()} is no order")

        traced.start()
        eventually(lambda: letters() == 4, "four dead letters")
    steps = stored_to_consumed(spark, LagSettings({"store": broker.url, "topics": "orders-dead"}, "grump"))
    assert [(row["step"], row["messages"]) for row in steps] == [("consumed", 4), ("taken", 4)]
    assert all(row["max_ms"] < 60_000 for row in steps)
    traced = {"job": "lag", "dry_run": False, "groups": [], "samples": [], "born_to_stored": [], "late": []}
    check("spark-lag", {**traced, "stored_to_consumed": steps, "seconds": 0})
    settings = DlqSettings({"store": broker.url}, groups=("grump",))
    report = run_dlq(spark, settings)
    assert report["letters"] == 4 and len(report["groups"]) == 1
    (group,) = report["groups"]
    assert group["origin"] == "orders-dead" and "order bad # is no order" in group["cause"]
    assert len(report["samples"]) == 4 and report["ages"][0]["letters"] == 4
    check("spark-dlq", {"dry_run": False, **report})
    draw(report, str(tmp_path / "dlq.png"))
    mq.admin.create_topic("repaired", queues=1)
    chosen = DlqSettings({"store": broker.url}, ("grump",), where="keys = 'k2'", target="repaired")
    assert run_dlq(spark, chosen, redrive=True)["sent"] == 1
    every = DlqSettings({"store": broker.url}, ("grump",), target="repaired")
    report = run_dlq(spark, every, redrive=True)
    assert (report["sent"], report["in_already"]) == (3, 1)
    check("spark-dlq", {"dry_run": False, **report})
    assert sorted(body for found in bodies(mq, "repaired").values() for body in found) == [
        b"bad %d" % number for number in range(4)
    ]


def test_a_ledger_line_carries_the_checksum_of_the_body(mq: Any) -> None:
    import json

    receipt = mq.send("ledger-line", b"abc")
    assert json.loads(ledger_line(receipt, b"abc"))["crc32"] == zlib.crc32(b"abc")
