"""Units in the files of queues, through deaths of the keeper."""

import shutil
from collections.abc import Callable
from typing import Any

from shmq.shm.core import UNIT_BYTES
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
