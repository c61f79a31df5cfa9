"""An archive that is a Delta table, through delta-rs (`pip install 'shmq[delta]'`), without a jar.

    files are written under names of their own ─▶ one commit of the table's log: add actions, and transaction marks
        mark of a queue     "topic/broker/queue@born"   its version is the first offset that is not in
        mark of a query     Spark's id                  its version is the newest batch that is in

Rules: (1) marks and files get in together, and Delta keeps marks for ever, whatever else is
done to the table; (2) Delta refuses two commits of one mark at a time, so two jobs cannot both put a message in;
(3) files of no commit are rubbish that VACUUM removes; (4) the table exists before the first file is written, so that
files of a killed job are never all there is; (5) files are on the disk before a commit names them, and the commit
before Spark's checkpoint counts the batch; delta-rs itself syncs nothing.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

import pyarrow

from shmq.errors import CorruptionError, StoreError, UsageError
from shmq.plain_file import open_plain
from shmq.shm.descriptors import above_standard
from shmq.spark.jobs.table.entry import Entry, QueueKey, in_order
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
_ENTRIES: Final = "shmq.entries"  # in the commit's own metadata, for audits
_LOG: Final = "_delta_log"
_PLAIN: Final = "_manifests"  # of archives before they were Delta tables


class DeltaArchive:
    """A Delta table as an archive; `create` or the first commit makes it."""

    def __init__(self, root: Path, columns: Sequence[str], partition_by: Sequence[str]) -> None:
        self._root = root
        self._partition_by = list(partition_by)
        kinds = column_kinds("messages")
        derived = [(name, _DERIVED[name]) for name in partition_by if name in _DERIVED]
        plain = [(name, _ARROW[kinds[name]]) for name in columns]
        extra = [(name, _ARROW[kinds[name]]) for name in partition_by if name in kinds and name not in columns]
        self._schema = pyarrow.schema([*plain, *extra, *derived])
        self._table = table_at(root)
        if self._table is None and _is_occupied(root):
            raise refused(f"{root} is neither empty nor a Delta table", "take an empty directory")

    def create(self) -> DeltaTable:
        """Return the table, which is made if there is none; its newest version is on the disk then.

        Raises:
            StoreError: the archive cannot be made.
        """
        from deltalake import DeltaTable

        with _stored(self._root):
            if self._table is None:
                self._root.mkdir(parents=True, exist_ok=True)
                _sync([self._root.parent])
                self._table = DeltaTable.create(
                    self._root, self._schema, mode="error", partition_by=self._partition_by, name="shmq archive"
                )
            _sync_log(self._root, [self._table.version()])
        return self._table

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
            StoreError: another job writes, or the disk does not take it.
        """
        from deltalake import CommitProperties, Transaction

        ends = {each.key: each.end for each in in_order(commit.add)}
        marks = [Transaction(str(key), end) for key, end in sorted(ends.items())]
        files = [each for each in commit.add if each.path]
        told = json.dumps([each.to_json() for each in files])
        properties = CommitProperties(
            custom_metadata={_ENTRIES: told, "shmq.gaps": json.dumps([asdict(gap) for gap in commit.gaps])},
            app_transactions=[*marks, Transaction(commit.query, commit.batch)],
            max_commit_retries=3,
        )
        table = self.create() if self._table is None else self._table
        before = table.version()
        with _stored(self._root):
            _sync(
                {
                    folder
                    for each in files
                    for folder in (self._root / each.path).parents
                    if folder.is_relative_to(self._root)
                }
            )
            table.create_write_transaction(
                [_action(each) for each in files],
                "append",
                self._schema,
                self._partition_by,
                commit_properties=properties,
            )
            table.update_incremental()
            _sync_log(self._root, range(before + 1, table.version() + 1))


def table_at(root: Path) -> DeltaTable | None:
    """Return the table of an archive, None where there is none.

    Raises:
        UsageError: delta-rs is not installed or cannot take the path, or the archive is one of plain Parquet files.
        CorruptionError: the table's log cannot be read.
    """
    if (root / _PLAIN).is_dir() and not (root / _LOG).is_dir():
        raise refused(
            f"{root} is an archive of plain Parquet files, and archives are Delta tables now",
            f"read it with spark.read.parquet({str(root)!r}), and start a Delta table beside it: --to {root}-delta",
        )
    try:
        from deltalake import DeltaTable
    except ImportError:
        raise UsageError("an archive is a Delta table, and needs delta-rs", hint="pip install 'shmq[delta]'") from None
    if unquote(str(root)) != str(root):
        raise refused(f"delta-rs takes %XX in a path for one character: {root}", "take a directory without it")
    from deltalake.exceptions import DeltaError

    try:
        return DeltaTable(root) if root.is_dir() and DeltaTable.is_deltatable(str(root)) else None
    except DeltaError as error:
        raise CorruptionError(root / _LOG, 0, f"delta-rs cannot read it: {error}") from error


def _is_occupied(root: Path) -> bool:
    if not root.is_dir():
        return root.exists()
    return any(not each.name.startswith("_checkpoint") for each in root.iterdir())


@contextmanager
def _stored(root: Path) -> Iterator[None]:
    """Say what keeps a table from being written."""
    from deltalake.exceptions import DeltaError

    try:
        yield
    except DeltaError as error:
        raise StoreError(
            f"the Delta table {root} did not take the batch: {error}", hint="run one archive job at a time"
        ) from error
    except OSError as error:
        raise StoreError(f"the Delta table {root} cannot be written: {error.strerror or error}") from error


@above_standard
def _sync(paths: Iterable[Path]) -> None:
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY) if path.is_dir() else open_plain(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _sync_log(root: Path, versions: Iterable[int]) -> None:
    """Bring commits to the disk, and the checkpoints that delta-rs makes with some of them."""
    log = root / _LOG
    names = [f"{version:020d}.{kind}" for version in versions for kind in ("json", "checkpoint.parquet")]
    _sync([*(log / name for name in [*names, "_last_checkpoint"] if (log / name).exists()), log, root])


def _action(entry: Entry) -> Any:
    from deltalake.transaction import AddAction

    stats = {
        "numRecords": entry.rows,
        "minValues": {"queue_offset": entry.start, "store_timestamp": _moment(entry.stored_min_ms)},
        "maxValues": {"queue_offset": entry.end - 1, "store_timestamp": _moment(entry.stored_max_ms + 1)},
        "nullCount": {"queue_offset": 0, "store_timestamp": 0},
    }
    return AddAction(
        path=entry.path,  # delta-rs escapes it for the log
        size=entry.file_bytes,
        partition_values=dict(entry.partition),
        modification_time=time.time_ns() // 1_000_000,
        data_change=True,
        stats=json.dumps(stats),
    )


def _moment(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
