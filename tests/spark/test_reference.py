"""docs/reference/spark.md names every option and every column of the source and the sink, and no others."""

from __future__ import annotations

import re
from pathlib import Path

from shmq.spark import options
from shmq.spark.schema import VIEWS
from shmq.spark.sink import options as sink_options
from shmq.spark.sink.columns import COLUMNS, SECOND_NAMES

PAGE = (Path(__file__).resolve().parents[2] / "docs/reference/spark.md").read_text()


def tables(header: str) -> list[list[list[str]]]:
    """The cells of every table with this header, without the header."""
    found = []
    for block in re.findall(re.escape(header) + r"\n\|[-|]+\|\n((?:\|.*\|\n)+)", PAGE):
        found.append([[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in block.splitlines()])
    return found


def names(rows: list[list[str]]) -> list[str]:
    return [name for row in rows for name in re.findall(r"`(\w+)`", row[0])]


def test_the_option_tables_are_those_of_the_code() -> None:
    source, sink = tables("| option | default | meaning |")
    assert sorted(names(source)) == sorted(options.NAMES)
    assert sorted(names(sink)) == sorted(sink_options.NAMES)


def test_the_defaults_are_those_of_the_code() -> None:
    rows = {name: row[1] for row in tables("| option | default | meaning |")[1] for name in names([row])}
    default = sink_options.SinkOptions()
    assert rows["guarantee"] == f"`{default.guarantee}`" and rows["compression"] == f"`{default.compression}`"
    assert (rows["timeoutMs"], rows["sendThreads"]) == (str(default.timeout_ms), str(default.send_threads))
    assert (rows["batchBytes"], default.batch_bytes) == ("`1m`", 1 << 20)


def test_the_columns_and_guarantees_and_views_are_those_of_the_code() -> None:
    (columns,) = tables("| column | type | meaning |")
    assert set(names(columns)) == {*COLUMNS, *SECOND_NAMES}
    assert {names([row])[0]: tuple(row[1].split(", ")) for row in columns} == COLUMNS
    (guarantees,) = tables("| guarantee | a row is there | for it |")
    assert names(guarantees) == list(sink_options.GUARANTEES)
    (views,) = tables("| view | rows |")
    assert set(names(views)) == set(VIEWS)
