"""What a store knows of itself: its ids, and the role that a switch gave its broker."""

from __future__ import annotations

from pathlib import Path

import pytest

from shmq.errors import CorruptionError
from shmq.shm.access import Access
from shmq.store.layout import StoreLayout
from shmq.store.lineage.standing import (
    Identity,
    Role,
    configured_text,
    forget_role,
    load_identity,
    load_role,
    own_identity,
    store_identity,
    store_role,
)

SLAVE = configured_text("slave", "10.0.0.4:10911", "")


@pytest.fixture
def layout(tmp_path: Path) -> StoreLayout:
    return StoreLayout(tmp_path, Access(-1))


def test_a_store_decides_once_who_it_is(layout: StoreLayout) -> None:
    assert load_identity(layout) == Identity()
    copy = own_identity(layout, makes_log=False)
    assert copy.store and not copy.log
    master = own_identity(layout, makes_log=True)
    assert master.store == copy.store and len(master.log) == 32
    assert own_identity(layout, makes_log=True) == master == load_identity(layout)


def test_an_id_that_is_none_is_refused(layout: StoreLayout) -> None:
    store_identity(layout, Identity("x", ""))
    with pytest.raises(CorruptionError):
        load_identity(layout)


def test_a_switch_counts_until_the_command_line_is_another(layout: StoreLayout) -> None:
    assert load_role(layout, SLAVE) is None
    role = Role(SLAVE, "master", epoch=3)
    store_role(layout, role)
    assert load_role(layout, SLAVE) == role
    assert load_role(layout, configured_text("slave", "10.0.0.9:10911", "")) is None
    forget_role(layout)
    forget_role(layout)
    assert load_role(layout, SLAVE) is None


def test_a_note_that_was_damaged_is_no_note_that_is_missing(layout: StoreLayout) -> None:
    store_role(layout, Role(SLAVE, "master", epoch=3))
    layout.role.write_bytes(layout.role.read_bytes().replace(b"3", b"4"))
    with pytest.raises(CorruptionError):
        load_role(layout, SLAVE)
