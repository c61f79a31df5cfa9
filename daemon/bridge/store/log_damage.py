"""Finds where the log goes on behind a damaged record, for a part of the broker that walks the log itself.

Parts that read queues need none of this: units lead them over damage.
"""

from pathlib import Path

from shmq.shm.access import Access
from shmq.shm.core import KeeperStore, Store
from shmq.store.commitlog import CommitLogFiles
from shmq.store.damage import LogWalk
from shmq.store.layout import StoreLayout

_UNUSED = Access(-1)  # nothing is made here


def position_behind(store: Store, damaged: int) -> int | None:
    """Return the next whole record behind a position that holds none; None: there is none up to the end of the log."""
    files = CommitLogFiles(StoreLayout(Path(store.head["store_path"]), _UNUSED), store.head["file_bytes"])
    walk = LogWalk(
        KeeperStore(store), files, durable_end=None, log_end=store.log_end, on_records=None, on_damage=lambda _: None
    )
    return walk.next_record(damaged)
