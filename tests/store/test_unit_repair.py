"""Whatever happens to the unit files, every message stays readable and no queue offset is given out twice."""

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shmq.delay_levels import DelayLevels
from shmq.shm.core import KeeperStore
from shmq.store.dispatch import Dispatch
from shmq.store.unit_repair import UnitFault, UnitRepair

OpenSession = Callable[..., Any]
MESSAGES = 1000


@pytest.fixture
def filled(open_session: OpenSession, root: Path) -> Path:
    """A store with 1,000 messages in a queue, others between them, stopped in order."""
    session = open_session()
    for number in range(MESSAGES):
        session.send("orders", b"%d" % number)
        session.send("others", b"-", queue_id=number % 2)
    session.save()
    session.end()
    (root / "abort").unlink()
    return root


def unit_file(root: Path, topic: str = "orders", queue_id: int = 0) -> Path:
    return next((root / "consumequeue" / topic / str(queue_id)).iterdir())


def changed(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def zeroed_page(root: Path) -> None:
    changed(unit_file(root), 8192, bytes(4096))


def zeroed_first_page(root: Path) -> None:
    changed(unit_file(root), 0, bytes(4096))


def zeroed_last_page(root: Path) -> None:
    changed(unit_file(root), 16384, bytes(4096))


def older_page(root: Path) -> None:
    changed(unit_file(root), MESSAGES * 20 - 500, bytes(500))


def missing_file(root: Path) -> None:
    unit_file(root).unlink()


def missing_queue(root: Path) -> None:
    shutil.rmtree(root / "consumequeue" / "orders" / "0")


def missing_topic(root: Path) -> None:
    shutil.rmtree(root / "consumequeue" / "orders")


def missing_directory(root: Path) -> None:
    shutil.rmtree(root / "consumequeue")


def missing_sums(root: Path) -> None:
    (root / "shmq.units").unlink()


def missing_queue_and_sums(root: Path) -> None:
    missing_queue(root)
    missing_sums(root)


def zeroed_page_and_sums(root: Path) -> None:
    zeroed_page(root)
    changed(root / "shmq.units", 40, bytes(20))


def flipped_bytes(root: Path) -> None:
    choice = random.Random(7)
    data = bytearray(unit_file(root).read_bytes()[: MESSAGES * 20])
    for _ in range(240):
        data[choice.randrange(len(data))] ^= 1 << choice.randrange(8)
    changed(unit_file(root), 0, bytes(data))


def garbage(root: Path) -> None:
    changed(unit_file(root), 0, random.Random(8).randbytes(MESSAGES * 20))


def swapped_units(root: Path) -> None:
    data = unit_file(root).read_bytes()
    changed(unit_file(root), 100, data[120:140] + data[100:120])


def units_of_another_queue(root: Path) -> None:
    shutil.copy(unit_file(root, "others", 1), unit_file(root))


def truncated_file(root: Path) -> None:
    os.truncate(unit_file(root), 10_000)


def empty_file(root: Path) -> None:
    os.truncate(unit_file(root), 0)


DAMAGES = [
    zeroed_page,
    zeroed_first_page,
    zeroed_last_page,
    older_page,
    missing_file,
    missing_queue,
    missing_topic,
    missing_directory,
    missing_sums,
    missing_queue_and_sums,
    zeroed_page_and_sums,
    flipped_bytes,
    garbage,
    swapped_units,
    units_of_another_queue,
    truncated_file,
    empty_file,
]


@pytest.mark.parametrize("is_clean", [True, False], ids=["clean", "crashed"])
@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: str(damage.__name__))
def test_every_message_stays_readable_and_the_next_offset_is_right(
    open_session: OpenSession, filled: Path, damage: Callable[[Path], None], is_clean: bool
) -> None:
    before = unit_file(filled).read_bytes()
    if not is_clean:
        (filled / "abort").touch()
    damage(filled)
    session = open_session()
    assert session.queue("orders", 0) == (0, MESSAGES)
    assert session.read("orders") == [b"%d" % number for number in range(MESSAGES)]
    assert unit_file(filled).read_bytes() == before
    assert session.send("orders", b"next").offset == MESSAGES
    assert (session.queue("others", 0), session.queue("others", 1)) == ((0, 500), (0, 500))
    assert session.report.damages == []
    session = open_session()
    assert session.events.named("recovery.units_wrong") == []
    assert session.read("orders") == [b"%d" % number for number in range(MESSAGES)] + [b"next"]


def test_records_that_cannot_be_read_have_units_that_point_at_the_damage(
    open_session: OpenSession, filled: Path
) -> None:
    zeroed_page(filled)
    session = open_session()
    position = session.store.message_at(0).log_position
    units = session.files.consumequeue.read(("orders", 0), 500, 1)
    session.end()
    position = int.from_bytes(units[:8])
    changed(filled / "commitlog" / f"{position - position % 65536:020d}", position % 65536 + 90, b"\xff")
    changed(unit_file(filled), 8192, bytes(4096))
    session = open_session()
    assert session.files.consumequeue.read(("orders", 0), 500, 1)[:8] == units[:8]
    assert session.queue("orders", 0) == (0, MESSAGES)
    assert session.send("orders", b"next").offset == MESSAGES


@pytest.mark.parametrize("is_sound", [True, False], ids=["sums", "damaged sums"])
def test_offsets_are_not_reused_when_retention_took_the_records_and_the_units_are_lost(
    open_session: OpenSession, root: Path, is_sound: bool
) -> None:
    session = open_session()
    for number in range(50):
        session.send("orders", b"%d" % number)
    while session.store.log_end < 3 << 16:
        session.send("others", bytes(4000))
    session.save()
    session.end()
    (root / "commitlog" / f"{0:020d}").unlink()
    shutil.rmtree(root / "consumequeue" / "orders")
    if not is_sound:
        (root / "shmq.durable").unlink()
    session = open_session(accept_loss="0-65536" if is_sound else "")
    assert session.queue("orders", 0) == (50, 50)
    assert session.send("orders", b"next").offset == 50
    session = open_session()
    assert session.queue("orders", 0) == (50, 51)


def test_units_can_be_built_again_while_the_store_is_in_use(open_session: OpenSession, filled: Path) -> None:
    session = open_session()
    path = unit_file(filled)
    before = path.read_bytes()
    changed(path, 4000, random.Random(9).randbytes(3000))
    dispatch = Dispatch(born={}, deleted={}, levels=DelayLevels(), log=session.events)
    repair = UnitRepair(
        KeeperStore(session.store),
        session.files.commitlog,
        session.files.consumequeue,
        dispatch,
        log_end=session.store.log_end,
    )
    assert repair.run([UnitFault(("orders", 0), 200, 350)]) == 150
    assert path.read_bytes() == before


def test_a_repair_writes_only_the_blocks_that_are_wrong(open_session: OpenSession, filled: Path) -> None:
    zeroed_page(filled)
    session = open_session()
    assert (session.report.units_repaired, session.report.records) == (400, 0)
