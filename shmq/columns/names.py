"""The names of the columns: all, those read by default, and the errors for others.

    topic broker queue_id queue_offset commitlog_offset store_size msg_id uniq_key keys tags tags_code body body_crc
    properties flag sys_flag born_timestamp store_timestamp born_host store_host reconsume_times prepared_txn_offset

The core has the table (bindings/core/columns/columns.c); docs/reference/spark.md says what each means.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from shmq.errors import UsageError
from shmq.message import nearest
from shmq.shm.core import columns_names

DEARER: Final = frozenset(("msg_id", "properties", "born_host", "store_host"))
"""Columns that cost more than the others together: read only when they are named."""


def default_columns() -> tuple[str, ...]:
    """Return the columns that are read by default, in their order."""
    return tuple(name for name in columns_names() if name not in DEARER)


def check_columns(wanted: Sequence[str] | None) -> tuple[str, ...]:
    """Return the columns wanted, in the order they were named; None takes the default.

    Raises:
        UsageError: there is no such column, it is named twice, or there is none at all.
    """
    if wanted is None:
        return default_columns()
    known = columns_names()
    names = (wanted,) if isinstance(wanted, str) else tuple(wanted)
    for name in names:
        if name not in known:
            near = nearest(str(name), known)
            meant = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(known)}"
            raise UsageError(f"there is no column {name!r}", hint=meant)
    if not names or len(set(names)) != len(names):
        problem = "a column is named twice" if names else "no column is named"
        raise UsageError(f"columns={wanted!r}: {problem}", hint='columns=["queue_id", "queue_offset", "body"]')
    return names
