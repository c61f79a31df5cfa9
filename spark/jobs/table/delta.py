"""An archive that is a Delta table, through delta-rs (`pip install 'shmq[delta]'`), without a jar.

    files are written under names of their own ─▶ one commit of the table's log: add actions, and transaction marks
        mark of a queue     "topic/broker/queue@born"   its version is the first offset that is not in
        mark of a query     Spark's id                  its version is the newest batch that is in

Rules: (1) marks and files get in together, and Delta keeps marks for ever, whatever else is
done to the table; (2) Delta refuses two commits of one mark at a time, so two jobs cannot both put a message in;
(3) files of no commit are rubbish that VACUUM removes.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, unquote

import pyarrow

from shmq.errors import ShmqError, StoreError, UsageError
from shmq.spark.jobs.table.entry import Entry, QueueKey, entry_of, in_order
from shmq.spark.jobs.table.table import Commit
from shmq.spark.schema import column_kinds, refused

if TYPE_CHECKING:
    from deltalake import DeltaTable

_ARROW: Final = {
    "string": pyarrow.string(),
    "int": pyarrow.int32(),
    "bigint": pyarrow.int64(),
    "binary": pyarrow.binary(),
    "timestamp": pyarrow.timestamp("us", tz="UTC"),
    "map<string,string>": pyarrow.map_(pyarrow.string(), pyarrow.string()),
}
_DERIVED: Final = {"date": pyarrow.date32(), "hour": pyarrow.string()}
_ENTRIES: Final = "shmq.entries"  # in the commit's own metadata, for whoever audits


class DeltaArchive:
    """A Delta table, open for writing; it is made with the first commit."""

    staged = False

    def __init__(self, root: Path, columns: Sequence[str], partition_by: Sequence[str]) -> None:
        self._root = root
        self._partition_by = list(partition_by)
        kinds = column_kinds("messages")
        derived = [(name, _DERIVED[name]) for name in partition_by if name in _DERIVED]
        plain = [(name, _ARROW[kinds[name]]) for name in columns]
        extra = [(name, _ARROW[kinds[name]]) for name in partition_by if name in kinds and name not in columns]
        self._schema = pyarrow.schema([*plain, *extra, *derived])
        self._table = _opened(root)

    def end_of(self, key: QueueKey) -> int | None:
        """Return the first offset of a queue that is not in, None when the archive does not know the queue."""
        return None if self._table is None else self._table.transaction_version(str(key))

    def holds(self, query: str, batch: int) -> bool:
        """Whether a batch is in."""
        newest = None if self._table is None else self._table.transaction_version(query)
        return newest is not None and newest >= batch

    def commit(self, commit: Commit) -> None:
        """Put a batch in.

        Raises:
            StoreError: somebody else writes, or the disk does not take it.
        """
        from deltalake import CommitProperties, DeltaTable, Transaction
        from deltalake.exceptions import DeltaError

        ends = {each.key: each.end for each in in_order(commit.add)}
        marks = [Transaction(str(key), end) for key, end in sorted(ends.items())]
        told = json.dumps([each.to_json() for each in commit.add if each.path])
        properties = CommitProperties(
            custom_metadata={_ENTRIES: told, "shmq.gaps": json.dumps([asdict(gap) for gap in commit.gaps])},
            app_transactions=[*marks, Transaction(commit.query, commit.batch)],
            max_commit_retries=3,
        )
        try:
            if self._table is None:
                self._table = DeltaTable.create(
                    self._root, self._schema, mode="error", partition_by=self._partition_by, name="shmq archive"
                )
            actions: list[Any] = [_action(self._root, each) for each in commit.add if each.path]
            self._table.create_write_transaction(
                actions, "append", self._schema, self._partition_by, commit_properties=properties
            )
            self._table.update_incremental()
        except DeltaError as error:
            raise StoreError(
                f"the Delta table {self._root} did not take the batch: {error}", hint="run one archive job at a time"
            ) from error

    def entries(self) -> list[Entry]:
        """Return what was put in by archive jobs, as far back as the table's log goes.

        Raises:
            ShmqError: the files were rewritten since (OPTIMIZE), so they are no longer of one queue each.
        """
        if self._table is None:
            return []
        found: dict[str, Entry] = {}
        for commit in self._table.history():
            for data in json.loads(commit.get(_ENTRIES, "[]")):
                entry = entry_of(data)
                found[entry.path] = entry
        there = {unquote(path) for path in pyarrow.table(self._table.get_add_actions())["path"].to_pylist()}
        strangers = there - found.keys()
        if strangers:
            raise ShmqError(
                f"{self._root} holds {len(strangers)} files that no archive job wrote or whose commit is forgotten",
                hint="read it as a Delta table",
            )
        return in_order(entry for path, entry in found.items() if path in there)


def _opened(root: Path) -> DeltaTable | None:
    try:
        from deltalake import DeltaTable
    except ImportError:
        raise UsageError("a Delta archive needs delta-rs", hint="pip install 'shmq[delta]'") from None
    if DeltaTable.is_deltatable(str(root)):
        return DeltaTable(root)
    if root.exists() and any(not each.name.startswith("_checkpoint") for each in root.iterdir()):
        raise refused(f"{root} is neither empty nor a Delta table", "take an empty directory")
    return None


def _action(root: Path, entry: Entry) -> Any:
    from deltalake.transaction import AddAction

    stats = {
        "numRecords": entry.rows,
        "minValues": {"queue_offset": entry.start, "store_timestamp": _moment(entry.stored_min_ms)},
        "maxValues": {"queue_offset": entry.end - 1, "store_timestamp": _moment(entry.stored_max_ms + 1)},
        "nullCount": {"queue_offset": 0, "store_timestamp": 0},
    }
    return AddAction(
        path=quote(entry.path, safe="/="),
        size=entry.file_bytes,
        partition_values=dict(entry.partition),
        modification_time=time.time_ns() // 1_000_000,
        data_change=True,
        stats=json.dumps(stats),
    )


def _moment(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
