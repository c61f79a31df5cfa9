"""Finds the store of a command: the one that was named, or that of the broker of this call."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from shmq.errors import CorruptionError, UsageError
from shmq.shm.access import Access
from shmq.store.layout import StoreLayout
from shmq.store.proof.store import is_store
from shmq.tools.broker.memory import find_instance
from shmq.tools.command import Call

STORE: Final = click.Path(path_type=Path, file_okay=False)
store_argument = click.argument("store", type=STORE, required=False)


def store_root(call: Call, store: Path | None, *, with_faults: bool = False) -> Path:
    """Return the directory of the store.

    Args:
        with_faults: the caller tells itself which names are no plain files.

    Raises:
        CorruptionError: a name is none where one has to be, or may not be read.
        UsageError: it is none.
        BrokerNotRunning: none was named, and there is no broker.
    """
    root = Path(find_instance(call.url)[1].store_path) if store is None else store
    if not is_store(root):
        raise UsageError(
            f"{root} is no store: it has no commitlog/", hint=f"ls {root}; a store is what serve --store names"
        )
    for fault in () if with_faults else StoreLayout(root, Access(-1)).faults(writable=False):
        raise CorruptionError(fault.path, 0, fault.reason, hint=fault.cure)
    return root
