"""The parts of a Store: each works as long as its Store, and one that changes the segments wants them writable."""

from __future__ import annotations

import pytest

from shmq.bindings import _core
from tests.bindings.live_store import LiveStore, raises_status
from tests.tables.rows import every_row

READING = (_core.ColumnReader, _core.StoreFigures)
CHANGING = (_core.KeeperStore, _core.BrokerTables, _core.BrokerLog, _core.ReplicaStore)


def use(part: object) -> None:
    """One call of each part."""
    match part:
        case _core.ColumnReader():
            part.columns(0, 0, 0, 0, bytes(1), "orders", "b")
        case _core.StoreFigures():
            part.stats()
        case _core.KeeperStore():
            part.keeper_beat()
        case _core.BrokerTables():
            part.group_put("billing")
        case _core.ReplicaStore():
            part.replicate(b"", 0, b"", 1.0)
        case _core.BrokerLog():
            part.scan(0, 0, 1)


@every_row("kind", [*READING, *CHANGING])
def test_a_part_is_closed_when_its_store_is(kind: type) -> None:
    with LiveStore() as live:
        live.topic()
        store = live.attach(writable=True)
        part = kind(store)
        use(part)
        store.close()
        with raises_status(_core.BAD_ARGUMENT, "the connection to the store is closed"):
            use(part)
        with raises_status(_core.BAD_ARGUMENT, "the connection to the store is closed"):
            kind(store)


@every_row("kind", [*READING, *CHANGING])
def test_a_part_keeps_the_segments_mapped(kind: type) -> None:
    with LiveStore() as live:
        live.topic()
        part = kind(_core.Store(*live.descriptors, writable=True))  # only the part holds this one
        use(part)


@pytest.mark.parametrize("kind", READING)
def test_a_part_that_only_reads_is_made_of_a_store_that_is_observed(kind: type) -> None:
    with LiveStore() as live:
        live.topic()
        use(kind(live.attach(writable=False, observing=True)))


@every_row("kind", CHANGING)
@every_row("observing", [False, True])
def test_a_part_that_changes_the_segments_refuses_a_store_that_is_mapped_read_only(kind: type, observing: bool) -> None:
    with LiveStore() as live, raises_status(_core.READ_ONLY, "mapped the store read-only"):
        kind(live.attach(writable=False, observing=observing))


@every_row("kind", [*READING, *CHANGING])
def test_a_part_is_made_of_a_store_and_nothing_else(kind: type) -> None:
    for wrong in ((), (None,), (object(),)):
        with pytest.raises(TypeError):
            kind(*wrong)
