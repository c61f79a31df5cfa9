"""Epochs: the file's text, its two generations, and where two logs part."""

from __future__ import annotations

import contextlib
import errno
import os
import shlex
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shmq.errors import CorruptionError, StoreError
from shmq.plain_file import read_plain
from shmq.shm.access import Access
from shmq.store.layout import StoreLayout
from shmq.store.lineage.epochs import (
    EPOCHS_MAX,
    FIRST,
    Epoch,
    common_end,
    cut_epochs,
    epochs_text,
    load_epochs,
    parse_epochs,
    store_epochs,
    with_epoch,
)
from tests.keeper.conftest import Events
from tests.tables.rows import every_row

SWITCHED = (Epoch(0, 0), Epoch(1, 4096), Epoch(4, 9000))


@pytest.fixture
def layout(tmp_path: Path) -> StoreLayout:
    return StoreLayout(tmp_path, Access(-1))


def test_a_log_that_was_never_switched_has_one_epoch_and_no_file(layout: StoreLayout) -> None:
    assert load_epochs(layout) == FIRST
    assert not layout.epochs.exists()


def test_the_text_is_rocketmqs() -> None:
    text = epochs_text(SWITCHED)
    assert text.splitlines()[2:] == ["0-0", "1-4096", "4-9000"]
    assert parse_epochs(text.encode()) == SWITCHED
    assert parse_epochs(b"2\n0-0\n1-4096\n") == SWITCHED[:2]  # RocketMQ 5.0
    assert parse_epochs(b"2\n0\n0-0\n1-4096\n") == SWITCHED[:2]  # a later one, set not to check


def backup_of(layout: StoreLayout) -> Path:
    return layout.epochs.with_name(layout.epochs.name + ".bak")


def test_a_damaged_file_is_read_from_its_backup_which_lacks_no_epoch(layout: StoreLayout) -> None:
    store_epochs(layout, SWITCHED[:2])
    store_epochs(layout, SWITCHED)
    assert not layout.epochs.samefile(backup_of(layout)), "what damages the bytes of one would damage both"
    layout.epochs.write_bytes(layout.epochs.read_bytes().replace(b"9000", b"9001"))
    assert load_epochs(layout) == SWITCHED
    backup_of(layout).write_bytes(b"")
    with pytest.raises(CorruptionError, match="checksum"):
        load_epochs(layout)
    layout.epochs.unlink()
    with pytest.raises(CorruptionError):
        load_epochs(layout)


@every_row("how", ["damaged", "missing", "unreadable"])
def test_what_was_read_from_the_backup_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    layout, events = StoreLayout(tmp_path / f"a {how} store", Access(-1)), Events()
    layout.root.mkdir()
    store_epochs(layout, SWITCHED)
    assert load_epochs(layout, events) == SWITCHED and not events.lines
    with monkeypatch.context() as broken:
        if how == "damaged":
            layout.epochs.write_bytes(b"3\n")
        elif how == "missing":
            layout.epochs.unlink()
        else:
            refused(broken, layout.epochs)
        assert load_epochs(layout, events) == SWITCHED
    [told] = events.named("epochs.from_backup")
    assert told["file"] == str(layout.epochs) and told["epoch"] == 4 and told["reason"]
    assert shlex.split(told["hint"]) == ["cp", "-p", str(backup_of(layout)), str(layout.epochs)]


def refused(monkeypatch: pytest.MonkeyPatch, *paths: Path) -> None:
    """Let the disk not give some files."""

    def given(path: Path) -> bytes:
        if path in paths:
            raise OSError(errno.EIO, os.strerror(errno.EIO), os.fspath(path))
        return read_plain(path)

    monkeypatch.setattr("shmq.store.lineage.epochs.read_plain", given)


def test_epochs_of_which_the_disk_gives_no_copy_are_an_error(
    layout: StoreLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    store_epochs(layout, SWITCHED)
    refused(monkeypatch, layout.epochs, backup_of(layout))
    with pytest.raises(StoreError, match=f"{layout.epochs} cannot be read: Input/output error") as caught:
        load_epochs(layout)
    assert "smartctl" in str(caught.value.hint)


@every_row("how", ["older", "damaged", "missing"])
def test_a_start_gives_the_backup_the_epochs_that_it_lacks(layout: StoreLayout, how: str) -> None:
    events = Events()
    store_epochs(layout, SWITCHED)
    if how == "missing":
        backup_of(layout).unlink()
    else:
        backup_of(layout).write_bytes(epochs_text(SWITCHED[:2]).encode() if how == "older" else b"")
    assert load_epochs(layout) == SWITCHED
    assert load_epochs(layout, events) == SWITCHED and not events.lines
    assert parse_epochs(backup_of(layout).read_bytes()) == SWITCHED


def test_a_backup_that_the_disk_does_not_take_keeps_no_broker_from_starting(layout: StoreLayout) -> None:
    events = Events()
    store_epochs(layout, SWITCHED)
    backup_of(layout).unlink()
    backup_of(layout).mkdir()
    assert load_epochs(layout, events) == SWITCHED
    [told] = events.named("epochs.not_copied")
    assert told["file"] == str(backup_of(layout)) and told["reason"]


@every_row(
    "text",
    [b"", b"1\n", b"x\n0-0\n", b"2\n0\n0-0\n", b"2\n0\n1-0\n0-4\n", b"2\n0\n0-9\n1-4\n", b"1\n0\n0-0", b"0\n0\n"],
)
def test_what_is_no_list_of_epochs_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError):
        parse_epochs(text)


@every_row(
    ("epochs", "is_possible"),
    [
        ((Epoch((1 << 53) - 1, 9),), True),
        ((Epoch(0, 0), Epoch((1 << 53) - 1, 9)), True),
        ((Epoch(0, 0), Epoch(1 << 53, 9)), False),
        ((Epoch(1 << 53, 0),), False),
        ((Epoch(0, 0), Epoch(10**19, 9)), False),
    ],
)
def test_an_epoch_is_taken_only_if_its_file_can_be_read_back(
    layout: StoreLayout, epochs: tuple[Epoch, ...], is_possible: bool
) -> None:
    before = load_epochs(layout)
    with contextlib.nullcontext() if is_possible else pytest.raises(ValueError, match="epoch"):
        store_epochs(layout, epochs)
    assert load_epochs(layout) == (epochs if is_possible else before)


@every_row(
    ("mine", "my_end", "theirs", "their_end", "found"),
    [
        (SWITCHED, 9500, SWITCHED, 9200, (SWITCHED[2], 9200)),
        # The old master went on in epoch 1 when epoch 4 began.
        (SWITCHED[:2], 9500, SWITCHED, 9200, (SWITCHED[1], 9000)),
        # Two were promoted behind epoch 1: what they stored since is not the other's.
        ((*SWITCHED[:2], Epoch(2, 8000)), 9500, SWITCHED, 9200, (SWITCHED[1], 8000)),
        # The same number from another place is another master's.
        ((Epoch(0, 0), Epoch(1, 5000)), 9500, SWITCHED[:2], 9200, (SWITCHED[0], 4096)),
        ((Epoch(7, 0),), 10, SWITCHED, 10, None),
        (FIRST, 0, SWITCHED, 9200, (SWITCHED[0], 0)),
    ],
)
def test_logs_part_where_their_newest_common_epoch_ends(
    mine: tuple[Epoch, ...], my_end: int, theirs: tuple[Epoch, ...], their_end: int, found: tuple[Epoch, int] | None
) -> None:
    assert common_end(mine, my_end, theirs, their_end) == found
    assert common_end(theirs, their_end, mine, my_end) == found


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 50)), max_size=6), st.integers(0, 60), st.integers(0, 60))
def test_no_byte_that_differs_is_called_common(steps: list[tuple[int, int]], cut: int, grown: int) -> None:
    """One log, a copy of it that stops somewhere, and each goes on with an epoch of its own."""
    epochs: tuple[Epoch, ...] = FIRST
    end = 0
    for newer, more in steps:
        end += more
        epochs = with_epoch(epochs, Epoch(epochs[-1].number + newer, end))
    common = min(cut, end)
    copy = with_epoch(cut_epochs(epochs, common), Epoch(epochs[-1].number + 100, common))
    parts = common_end(copy, common + grown, epochs, end)
    assert parts is not None
    assert parts[1] <= common


def test_a_log_that_was_switched_without_end_keeps_its_newest_epochs() -> None:
    epochs: tuple[Epoch, ...] = FIRST
    before: tuple[Epoch, ...] = FIRST
    for number in range(1, EPOCHS_MAX + 10):
        before, epochs = epochs, with_epoch(epochs, Epoch(number, 100 * number))
    assert len(epochs) == EPOCHS_MAX and epochs[-1] == Epoch(EPOCHS_MAX + 9, 100 * (EPOCHS_MAX + 9))
    assert common_end(before, 10**9, epochs, 10**9) == (before[-1], epochs[-1].start)
    assert parse_epochs(epochs_text(epochs).encode()) == epochs


def test_an_epoch_that_is_none_newer_is_refused() -> None:
    with pytest.raises(ValueError, match="follows"):
        with_epoch(SWITCHED, Epoch(3, 9500))
    assert with_epoch(SWITCHED, SWITCHED[2]) == SWITCHED
    assert with_epoch(SWITCHED, Epoch(5, 9000)) == (*SWITCHED[:2], Epoch(5, 9000))
