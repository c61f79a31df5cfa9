"""The walk of a verification finds the same, whether the core goes over many records at once or each is looked at."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shmq.record import BLANK_MAGIC, HOLE_TOPIC, LENGTH_AND_MAGIC
from shmq.shm.core import record_encode
from shmq.store.layout import file_name
from shmq.store.verify import LogFiles, RecordWalk, Verification

FILE_BYTES = 8192

bodies = st.lists(st.tuples(st.integers(0, 1500), st.booleans()), min_size=1, max_size=30)
damage = st.lists(st.tuples(st.floats(0, 1), st.integers(1, 255), st.integers(1, 200)), max_size=4)


def write_log(directory: Path, rows: list[tuple[int, bool]]) -> int:
    """Records and holes with blanks at the ends of files; returns where the log ends."""
    files = [bytearray()]
    for number, (size, is_hole) in enumerate(rows):
        base = (len(files) - 1) * FILE_BYTES

        def record(at: int, size: int = size, is_hole: bool = is_hole, number: int = number) -> bytearray:
            topic = HOLE_TOPIC if is_hole else b"orders"
            made = bytearray(
                record_encode(
                    body=b"x" * size,
                    topic=topic,
                    log_position=at,
                    queue_offset=number,
                    sys_flag=12 if is_hole else 0,
                )
            )
            if is_hole and size:
                made[88] ^= 1  # its owner did not settle it
            return made

        made = record(base + len(files[-1]))
        if len(files[-1]) + len(made) + LENGTH_AND_MAGIC.size > FILE_BYTES:
            files[-1] += LENGTH_AND_MAGIC.pack(FILE_BYTES - len(files[-1]), BLANK_MAGIC)
            files.append(bytearray())
            made = record(base + FILE_BYTES)
        files[-1] += made
    for number, content in enumerate(files):
        (directory / file_name(number * FILE_BYTES)).write_bytes(content.ljust(FILE_BYTES, b"\0"))
    return (len(files) - 1) * FILE_BYTES + len(files[-1])


def hurt(directory: Path, end: int, places: list[tuple[float, int, int]]) -> None:
    for share, bits, size in places:
        at = int(share * (end - 1))
        path = directory / file_name(at - at % FILE_BYTES)
        content = bytearray(path.read_bytes())
        for index in range(at % FILE_BYTES, min(at % FILE_BYTES + size, FILE_BYTES)):
            content[index] ^= bits
        path.write_bytes(content)


def found(directory: Path, durable_end: int | None, bytes_max: int | None, *, at_once: bool) -> tuple[Any, ...]:
    log = LogFiles(directory)
    result = Verification(durable_end=durable_end, log_begin=log.begin, log_end=log.begin)
    records: list[tuple[int, int]] = []
    damages: list[tuple[int, int, str]] = []
    units: list[int] = []

    def on_batch(batch: Any, read: Any) -> None:
        places = [(position, size) for position, size in batch.watched]
        units.extend(batch.records for _ in batch.runs)
        assert all(len(read(position, size)) == size for position, size in places)
        records.extend(places)

    walk = RecordWalk(
        log,
        result,
        on_record=lambda position, record: records.append((position, len(record))),
        on_batch=on_batch if at_once else None,
        watched=(b"orders", HOLE_TOPIC),
        on_damage=lambda *values: damages.append(values),
    )
    walk.run(bytes_max)
    return vars(result) | {"faults": [vars(fault) for fault in result.faults]}, records, damages


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(bodies, damage, st.one_of(st.none(), st.floats(0, 1)), st.one_of(st.none(), st.integers(0, 40_000)))
def test_both_ways_find_the_same(
    tmp_path_factory: Any,
    rows: list[tuple[int, bool]],
    places: list[tuple[float, int, int]],
    marked: float | None,
    bytes_max: int | None,
) -> None:
    directory = tmp_path_factory.mktemp("log")
    end = write_log(directory, rows)
    hurt(directory, end, places)
    durable_end = None if marked is None else int(marked * end)
    one = found(directory, durable_end, bytes_max, at_once=False)
    assert found(directory, durable_end, bytes_max, at_once=True) == one
    for path in directory.iterdir():
        path.unlink()
