"""Copies of damaged records: what is kept, counted and refused."""

import json
from pathlib import Path

import pytest

from shmq.shm.access import Access
from shmq.store import quarantine
from shmq.store.layout import StoreLayout
from shmq.store.quarantine import Quarantine, count_quarantined


@pytest.fixture
def layout(tmp_path: Path) -> StoreLayout:
    return StoreLayout(tmp_path, Access(-1))


def test_a_copy_has_the_bytes_and_says_what_they_were(layout: StoreLayout) -> None:
    assert count_quarantined(layout.root) == 0
    assert Quarantine(layout).add(4096, b"bytes", {"topic": "orders", "queue_offset": 7})
    assert (layout.quarantine / f"{4096:020d}.record").read_bytes() == b"bytes"
    assert json.loads((layout.quarantine / f"{4096:020d}.json").read_text()) == {"topic": "orders", "queue_offset": 7}
    assert count_quarantined(layout.root) == 1
    assert (layout.quarantine / f"{4096:020d}.record").stat().st_mode & 0o777 == layout.access.read_mode


def test_a_record_is_kept_once(layout: StoreLayout) -> None:
    kept = Quarantine(layout)
    assert kept.add(1, b"first", {})
    assert not kept.add(1, b"second", {})
    assert not Quarantine(layout).add(1, b"third", {})
    assert (layout.quarantine / f"{1:020d}.record").read_bytes() == b"first"


def test_copies_are_bounded_in_number_and_in_bytes(layout: StoreLayout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quarantine, "RECORDS_MAX", 3)
    monkeypatch.setattr(quarantine, "BYTES_MAX", 10)
    kept = Quarantine(layout)
    assert kept.add(1, b"12345678", {})
    assert not kept.add(2, b"123", {})
    assert kept.add(3, b"1", {}) and kept.add(4, b"1", {})
    assert not kept.add(5, b"", {})
    (layout.quarantine / f"{1:020d}.record").unlink()
    assert kept.add(5, b"12345", {})
    assert count_quarantined(layout.root) == 3


def test_a_copy_counts_as_the_messages_that_lay_there(layout: StoreLayout) -> None:
    kept = Quarantine(layout)
    assert kept.add(1, b"a range", {"messages": 42}) and kept.add(2, b"a record", {"messages": 1})
    (layout.quarantine / f"{3:020d}.record").touch()  # its facts were removed
    assert count_quarantined(layout.root) == 44
