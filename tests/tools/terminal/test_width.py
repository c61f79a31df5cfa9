"""Columns stand below each other whatever letters their cells have."""

import pytest

from shmq.tools.terminal.output import Column, Style, Terminal
from shmq.tools.terminal.width import cut, padded, width_of
from shmq.tools.top.table import Column as TopColumn
from shmq.tools.top.table import Row, layout


def test_a_chinese_letter_takes_two_cells_and_a_combining_mark_none() -> None:
    assert [width_of(text) for text in ("orders", "订单", "e\u0301", "")] == [6, 4, 1, 0]
    assert (padded("订单", 6), padded("订单", 6, right=True), padded("订单", 2)) == ("订单  ", "  订单", "订单")
    assert (cut("订单主题", 8), cut("订单主题", 6), cut("orders", 4)) == ("订单主题", "订单…", "ord…")


def test_tables_are_aligned_by_cells(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    columns = [Column("key"), Column("lag", right=True)]
    Terminal(Style()).table(columns, [("订单", "5"), ("orders", "12")])
    lines = capsysbinary.readouterr().out.decode().splitlines()
    assert {width_of(line) for line in lines} == {11}, lines


def test_the_tables_of_top_are_cut_by_cells() -> None:
    columns = [TopColumn("topic", right=False, flexible=True), TopColumn("lag")]
    rows = [Row(("订单主题订单主题", "5")), Row(("orders", "12"))]
    lines = [line.plain for line in layout(columns, rows, width=15, height=5)]
    assert [width_of(line) for line in lines] == [15, 15, 15], lines
