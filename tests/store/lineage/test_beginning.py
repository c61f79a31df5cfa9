"""The log of a new slave begins where its master's does, wherever the change was broken off; no record is moved."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shmq.shm.access import Access
from shmq.store.commitlog import CommitLogFiles
from shmq.store.durable import DurableMark
from shmq.store.layout import StoreLayout
from shmq.store.lineage.beginning import begin_as_wished, wish_beginning
from shmq.store.lineage.loss import missing_ranges

FILE_BYTES = 64 << 10


@pytest.fixture
def layout(tmp_path: Path) -> StoreLayout:
    layout = StoreLayout(tmp_path / "store", Access(-1))
    layout.prepare()
    return layout


def files_of(layout: StoreLayout, *positions: int) -> CommitLogFiles:
    files = CommitLogFiles(layout, FILE_BYTES)
    files.load()
    if positions:
        files.create_next(positions[0])
        for _ in positions[1:]:
            files.create_next()
    return files


def positions_of(layout: StoreLayout) -> list[int]:
    return sorted(int(name) for name in os.listdir(layout.commitlog))


def test_without_a_wish_nothing_is_changed(layout: StoreLayout) -> None:
    assert begin_as_wished(layout, files_of(layout, 0), DurableMark(layout)) is None
    assert positions_of(layout) == [0]


@pytest.mark.parametrize("positions", [(), (0,), (0, FILE_BYTES), (7 * FILE_BYTES,)], ids=str)
def test_an_empty_log_begins_at_a_given_position(layout: StoreLayout, positions: tuple[int, ...]) -> None:
    files = files_of(layout, *positions)
    wish_beginning(layout, 7 * FILE_BYTES)
    assert begin_as_wished(layout, files, DurableMark(layout)) == files.begin == 7 * FILE_BYTES
    assert positions_of(layout) == [7 * FILE_BYTES]
    assert not layout.beginning.exists()
    assert begin_as_wished(layout, files, DurableMark(layout)) is None
    said = DurableMark(layout).load()
    assert said is not None
    assert (said.log_begin, said.durable_end) == (7 * FILE_BYTES, 7 * FILE_BYTES)


@pytest.mark.parametrize("begin, wished", [(3, 7), (7, 3)])
@pytest.mark.parametrize("last", ["remove_all", "create_next"])
def test_no_moment_of_a_new_begin_calls_blank_files_missing(
    layout: StoreLayout, monkeypatch: pytest.MonkeyPatch, begin: int, wished: int, last: str
) -> None:
    mark = DurableMark(layout)
    mark.begin_at(begin * FILE_BYTES)
    files = files_of(layout, begin * FILE_BYTES)
    wish_beginning(layout, wished * FILE_BYTES)
    real: Callable[..., Any] = getattr(CommitLogFiles, last)

    def stopped(*args: Any) -> None:
        real(*args)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(CommitLogFiles, last, stopped)
        begin_as_wished(layout, files, mark)
    mark.close()
    again = files_of(layout)
    assert missing_ranges(again, DurableMark(layout).load()) == []
    assert begin_as_wished(layout, again, DurableMark(layout)) == wished * FILE_BYTES
    assert missing_ranges(again, DurableMark(layout).load()) == []


@pytest.mark.parametrize("name, done", [("unlink", 0), ("unlink", 1), ("unlink", 2), ("unlink", 3), ("rename", 0)])
def test_what_was_broken_off_is_done_again(
    layout: StoreLayout, monkeypatch: pytest.MonkeyPatch, name: str, done: int
) -> None:
    files_of(layout, 0, FILE_BYTES)
    wish_beginning(layout, 7 * FILE_BYTES)
    real: Callable[..., None] = getattr(os, name)
    calls: list[object] = []

    def gone(*args: Any, **kwargs: Any) -> None:
        calls.append(args)
        if len(calls) > done:
            raise KeyboardInterrupt
        real(*args, **kwargs)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(os, name, gone)
        begin_as_wished(layout, files_of(layout), DurableMark(layout))
    assert begin_as_wished(layout, files_of(layout), DurableMark(layout)) == 7 * FILE_BYTES
    assert positions_of(layout) == [7 * FILE_BYTES]


@pytest.mark.parametrize("at", [0, 1, FILE_BYTES - 1, FILE_BYTES + 5])
def test_a_log_with_a_byte_in_it_stays(layout: StoreLayout, at: int) -> None:
    files = files_of(layout, 0, FILE_BYTES)
    with files.path(at).open("r+b") as file:
        file.seek(at % FILE_BYTES)
        file.write(b"\1")
    wish_beginning(layout, 7 * FILE_BYTES)
    assert begin_as_wished(layout, files, DurableMark(layout)) is None
    assert positions_of(layout) == [0, FILE_BYTES]
    assert files.path(at).read_bytes()[at % FILE_BYTES] == 1


@pytest.mark.parametrize("text", [b"", b"7", b"x" * 20, b"0" * 19 + b"5"])
def test_a_wish_that_is_no_begin_of_a_file_is_forgotten(layout: StoreLayout, text: bytes) -> None:
    layout.beginning.write_bytes(text)
    assert begin_as_wished(layout, files_of(layout, 0), DurableMark(layout)) is None
    assert positions_of(layout) == [0]
    assert not layout.beginning.exists()
