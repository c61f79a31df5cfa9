"""Two files of one name: records that lie in one of them only come together, and nothing else does."""

from pathlib import Path

from shmq.shm.core import record_encode
from shmq.store.merging import take_missing
from tests.tables.rows import every_row

BASE, FILE_BYTES = 1 << 20, 64 << 10


def records() -> list[tuple[int, bytes]]:
    """Offset and bytes of some records, and the blank behind them."""
    found, at = [], 0
    for number in range(5):
        record = record_encode(body=bytes(number * 10), topic=b"t", log_position=BASE + at, born_ms=1, store_ms=1)
        found.append((at, record))
        at += len(record)
    return [*found, (at, (FILE_BYTES - at).to_bytes(4) + (0xCBD43194).to_bytes(4))]


def file_with(path: Path, *numbers: int, shift: int = 0) -> Path:
    """A log file that has only these of the records."""
    content = bytearray(FILE_BYTES)
    for at, record in (records()[number] for number in numbers):
        content[at + shift : at + shift + len(record)] = record
    path.write_bytes(content)
    return path


@every_row(
    ("ours", "theirs", "merged"),
    [
        ((0, 1, 3, 5), (0, 2, 4), (0, 1, 2, 3, 4, 5)),
        ((0, 1, 2), (0, 1, 2, 3, 4, 5), (0, 1, 2, 3, 4, 5)),
        ((), (0, 1), (0, 1)),
        ((0, 1, 2, 3, 4, 5), (), (0, 1, 2, 3, 4, 5)),
        ((0, 2), (0, 3), (0, 2)),  # neither has the second one: what follows is for recovery
    ],
)
def test_every_record_that_one_of_the_files_has_is_in_the_first_one(
    ours: tuple[int, ...], theirs: tuple[int, ...], merged: tuple[int, ...], tmp_path: Path
) -> None:
    first, second = file_with(tmp_path / "ours", *ours), file_with(tmp_path / "theirs", *theirs)
    taken = take_missing(str(first), str(second), base=BASE, end=BASE + FILE_BYTES)
    assert first.read_bytes() == file_with(tmp_path / "merged", *merged).read_bytes()
    assert taken == len(merged) - len(ours)


def test_nothing_is_taken_from_a_file_that_is_no_copy_or_behind_the_end_of_the_log(tmp_path: Path) -> None:
    first = file_with(tmp_path / "ours", 0, 1)
    before = first.read_bytes()
    foreign = [b"\x5a" * FILE_BYTES, b"", file_with(tmp_path / "other", 0, 1, 2, shift=8).read_bytes()]
    for content in foreign:
        (tmp_path / "theirs").write_bytes(content)
        assert take_missing(str(first), str(tmp_path / "theirs"), base=BASE, end=BASE + FILE_BYTES) == 0
    second = file_with(tmp_path / "whole", 0, 1, 2)
    assert take_missing(str(first), str(second), base=BASE, end=BASE + records()[2][0]) == 0
    assert first.read_bytes() == before
