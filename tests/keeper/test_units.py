"""Units in the files of queues, through deaths of the keeper."""

import errno
import shutil
from collections.abc import Callable
from typing import Any

import pytest

from shmq.shm.core import UNIT_BYTES
from shmq.store.consumequeue import UnitRange
from tests.keeper.conftest import StartKeeper


def test_a_new_keeper_keeps_the_units_of_a_topic_whose_birth_was_not_saved(
    start_keeper: StartKeeper, eventually: Callable[..., Any]
) -> None:
    keeper = start_keeper()
    keeper.send_batch("orders", [b"%d" % number for number in range(300)])
    index = keeper.queue_index("orders")
    eventually(lambda: keeper.store.queue(index)[2] == 300)
    keeper.abandon()
    shutil.rmtree(keeper.root / "config")  # as it is before the first save
    (keeper.root / "config").mkdir()
    keeper = start_keeper()
    keeper.send("orders", b"300")
    eventually(lambda: keeper.store.queue(index)[2] == 301)
    units = keeper.attached.files.consumequeue.read(("orders", 0), 0, 301)
    assert len(units) == 301 * UNIT_BYTES
    assert all(units[at : at + UNIT_BYTES].strip(b"\0") for at in range(0, len(units), UNIT_BYTES))
    assert keeper.store.queue(index)[0] == 0
    end = keeper.store.log_end
    eventually(lambda: keeper.attached.files.mark.current.dispatched == end)
    keeper.end()
    keeper = start_keeper()
    assert keeper.store.queue(keeper.queue_index("orders"))[:2] == (0, 301)


def test_what_a_failed_sync_covered_is_logged_once_while_it_cannot_be_written_again(
    start_keeper: StartKeeper, eventually: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    running = start_keeper()
    running.send("orders", b"x")
    eventually(lambda: running.store.queue(running.queue_index("orders")).persisted == 1)
    running.halt()
    files, units = running.attached.files.consumequeue, running.keeper._units
    path = files._path(("orders", 0), 0)

    def refused(*_: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system", path)

    for times in (1, 2):
        files._lost[path] = UnitRange(("orders", 0), 0, 1)
        with monkeypatch.context() as patch:
            patch.setattr(files, "rewrite", refused)
            for _ in range(5):
                units.round()
                assert units.write_all() and not units.rewrite_lost()
        assert len(running.events.named("units.not_rewritten")) == times
        assert units.rewrite_lost() and not files.lost
        assert len(running.events.named("units.rewritten")) == times
