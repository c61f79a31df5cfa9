"""`shmq store inspect`: the layout, one record by each way of naming it, and what its checksums say."""

from pathlib import Path

import pytest

from tests.tools.shell import Shell
from tests.tools.store.conftest import FILE_BYTES
from tests.tools.store.test_verify_command import a_flipped_body, records


def test_the_layout_says_what_there_is(store: Path, shell: Shell) -> None:
    layout = shell.json("store-inspect", "store", "inspect", str(store))["layout"]
    assert (layout["log_file_bytes"], layout["stopped_in_order"], layout["quarantined"]) == (FILE_BYTES, True, [])
    assert layout["durable_mark"]["durable_end"] == layout["index_mark"]["indexed"] > 0
    assert "consumerOffset.json" in layout["tables"] and len(layout["index_files"]) == 1


def test_a_record_is_the_same_by_position_and_by_queue_offset_and_the_last_one_is_the_tail(
    store: Path, shell: Shell
) -> None:
    wanted, _ = records(store)[30]
    by_position = shell.json("store-inspect", "store", "inspect", str(store), "--position", str(wanted.position))
    place = ("--topic", "orders", "--queue", "0", "--offset", str(wanted.queue_offset))
    by_offset = shell.json("store-inspect", "store", "inspect", str(store), *place)
    record = by_position["record"]
    assert record == by_offset["record"]
    assert (record["body_crc"], record["record_crc"]) == ("right", "right")
    assert record["properties"]["KEYS"] == wanted.properties["KEYS"]
    offsets = [unit["offset"] for unit in by_offset["units"]]
    assert offsets == [wanted.queue_offset + distance for distance in range(-3, 4)]
    tail = shell.json("store-inspect", "store", "inspect", str(store), "--tail", "--body")["record"]
    assert tail["position"] == records(store)[-1][0].position and tail["body_base64"]
    assert b"record_crc" in shell.ok("store", "inspect", str(store), "--tail")


def test_a_damaged_record_is_shown_with_its_verdicts(store: Path, shell: Shell) -> None:
    damaged, _ = records(store)[20]
    a_flipped_body(store)
    asked = ("store", "inspect", str(store), "--position", str(damaged.position))
    record = shell.json("store-inspect", *asked, status=1)["record"]
    assert (record["body_crc"], record["record_crc"]) == ("wrong", "wrong")
    nowhere = shell.json("store-inspect", "store", "inspect", str(store), "--position", "7", status=1)
    assert "no record begins here" in nowhere["record"]["reason"]


@pytest.mark.parametrize(
    "words",
    [("--position", "1", "--tail"), ("--topic", "orders"), ("--offset", "1"), ("--topic", "../x", "--offset", "1")],
)
def test_words_that_name_no_one_record_are_refused(store: Path, shell: Shell, words: tuple[str, ...]) -> None:
    assert shell.fails(64, "store", "inspect", str(store), *words)["hint"]
