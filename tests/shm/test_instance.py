"""The description of a generation of segments: every field is checked when it is read."""

import json
import os
import stat
from pathlib import Path

import pytest

from shmq.errors import SegmentError
from shmq.shm.instance import Instance, read_instance, segment_names, write_instance
from shmq.shm.liveness import own_mark
from tests.tables.rows import every_row

INSTANCE = Instance(
    broker_name="a",
    generation=0x00C0FFEE00C0FFEE,
    kind="posix",
    segments=segment_names("a", 0x00C0FFEE00C0FFEE),
    segment_bytes=(4096, 8192, 4096),
    presence_key=12,
    store_path="/var/lib/shmq/a",
    uid=0,
    mode=0o600,
    boot_id="x",
    pid_namespace=1,
)


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    instance = INSTANCE.with_processes(keeper=own_mark(), bridge=None)
    write_instance(tmp_path / "instance.json", instance, mode=0o640, gid=-1)
    assert read_instance(tmp_path / "instance.json") == instance
    assert stat.S_IMODE((tmp_path / "instance.json").stat().st_mode) == 0o640
    assert os.listdir(tmp_path) == ["instance.json"]


def test_a_missing_file_is_no_instance(tmp_path: Path) -> None:
    assert read_instance(tmp_path / "instance.json") is None


def test_sysv_segments_are_numbers() -> None:
    instance = INSTANCE._replace(kind="sysv", segments=(4, 5, 6))
    assert Instance.from_json(instance.to_json()) == instance


@every_row(
    ("field", "value"),
    [
        ("kind", "memfd"),
        ("segments", ["/etc/passwd", "/b", "/c"]),
        ("segments", ["/shmq.a.00c0ffee00c0ffee.control"]),
        ("generation", "xyz"),
        ("segment_bytes", [1, 2]),
        ("segment_bytes", [1, 2, -3]),
        ("presence_key", "12"),
        ("presence_key", True),
        ("uid", None),
        ("processes", {"keeper": [1]}),
        ("store_path", 5),
    ],
)
def test_a_field_that_cannot_be_right_is_refused(field: str, value: object) -> None:
    data = INSTANCE.to_object()
    data[field] = value
    with pytest.raises(SegmentError):
        Instance.from_json(json.dumps(data))


@every_row("field", sorted(INSTANCE.to_object().keys() - {"processes", "settings", "recovery"}))
def test_a_missing_field_is_refused(field: str) -> None:
    data = INSTANCE.to_object()
    del data[field]
    with pytest.raises(SegmentError):
        Instance.from_object(data)


@every_row("text", ["", "{", "[]", "null", '{"a": ' * 5000, "x" * 100_000])
def test_text_that_is_no_instance_is_refused(text: str) -> None:
    with pytest.raises(SegmentError):
        Instance.from_json(text)


def test_settings_and_recovery_are_whole_numbers() -> None:
    data = INSTANCE.to_object()
    for field in ("settings", "recovery"):
        for value in ({"at_ms": -1}, {"at_ms": "1"}, {"at_ms": 1.5}, {"at_ms": True}, 3):
            with pytest.raises(SegmentError):
                Instance.from_object(data | {field: value})
        assert getattr(Instance.from_object(data | {field: {"at_ms": 7}}), field) == {"at_ms": 7}
