"""Files of broadcasting members: one each, the lowest that is free, and nothing read from one that is damaged."""

import os
from pathlib import Path

import pytest

from shmq.client.consumers.kept_offsets import KeptOffsets, offsets_directory, open_kept_offsets
from tests.tables.rows import every_row


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SHMQ_OFFSETS_DIR", str(tmp_path))
    return tmp_path


def opened(group: str = "g", topic: str = "t") -> KeptOffsets:
    found = open_kept_offsets("shmq:///b", group, topic)
    assert found is not None
    return found


def test_the_next_member_goes_on_where_the_last_one_was() -> None:
    first = opened()
    assert first.get("0") is None, "it was never here"
    first.save({"0": 5})
    first.save({"1": 7})
    first.close()
    second = opened()
    assert (second.get("0"), second.get("1")) == (5, 7)
    assert second.get("2") == 0, "a queue that is new since then is read from its first message"
    second.close()


def test_the_offset_of_a_deleted_topic_says_nothing_of_the_next_one_of_the_name() -> None:
    first = opened()
    first.save({"0": 5, "1": 7})  # as older releases wrote it
    assert (first.get("0@0"), first.get("1@0")) == (5, 7)
    first.save({"0@0": 6})
    assert (first.get("0@0"), first.get("0@4096"), first.get("1@0")) == (6, 0, 7)
    first.save({"0@4096": 2, "b@1/0": 3})
    assert (first.get("0@4096"), first.get("0@0"), first.get("0"), first.get("b@1/0")) == (2, 0, 0, 3)
    first.close()


def test_living_members_have_files_of_their_own() -> None:
    one, two = opened(), opened()
    assert one.path != two.path
    one.save({"0": 1})
    one.close()
    three = opened()
    assert three.path == one.path and three.get("0") == 1
    two.close()
    three.close()


@every_row("text", ["", "{", "[]", '{"0": -1}', '{"0": "5"}', '{"0": true}', '{"0": 1e99}', "\xff"])
def test_a_damaged_file_counts_as_none(text: str) -> None:
    first = opened()
    first.path.write_bytes(text.encode("latin-1"))
    first.close()
    second = opened()
    assert second.get("0") is None
    second.save({"0": 3})
    second.close()


def test_where_nothing_can_be_kept_reading_goes_on(
    place: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    blocked = place / "file"
    blocked.write_text("")
    monkeypatch.setenv("SHMQ_OFFSETS_DIR", str(blocked))
    assert open_kept_offsets("shmq:///b", "g", "t") is None
    assert "cannot be kept" in caplog.text


def test_without_a_home_reading_goes_on(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("SHMQ_OFFSETS_DIR", "XDG_STATE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 4_000_000)  # no passwd has it
    assert open_kept_offsets("shmq:///b", "g", "t") is None
    assert "SHMQ_OFFSETS_DIR" in caplog.text


def test_the_directory_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("SHMQ_OFFSETS_DIR")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert offsets_directory() == tmp_path / "shmq" / "offsets"
