"""The log of a slave's host: it is given up for a cut only where that can be done."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from shmq.daemon.ha.slave.own_log import OwnLog
from shmq.errors import StoreError
from shmq.shm.access import Access
from shmq.store.layout import StoreLayout
from tests.bindings.live_store import LiveStore
from tests.keeper.conftest import Events


@pytest.fixture
def slave() -> Iterator[LiveStore]:
    with LiveStore() as live:
        live.topic()
        live.producer().append("orders", b"ours", b"", queue_id=0)
        yield live


def test_a_log_whose_tail_has_no_room_stays_as_it_is_and_served(
    slave: LiveStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout, events = StoreLayout(tmp_path, Access(-1)), Events()
    layout.prepare()
    own = OwnLog(slave.store, layout, events)  # type: ignore[arg-type]
    with monkeypatch.context() as full:
        usage = shutil.disk_usage(tmp_path)
        full.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
        with pytest.raises(StoreError, match="and less are free") as caught:
            own.cut_at(0, 1, "10.0.0.5:10912")
    assert caught.value.hint == f"free disk space there (df {tmp_path}); it is tried again every second"
    assert not slave.store.retired and not layout.cut.exists() and not events.lines
    own.cut_at(0, 1, "10.0.0.5:10912")
    assert slave.store.retired and layout.cut.exists()
