"""Taking over the store directory of a stock RocketMQ broker: what can be taken, and the copy.

    taken as it is     commitlog/  config/  consumequeue/  index/  checkpoint  abort
    left behind        consumequeue_ext/  timerwheel  timerlog  lock: derived from the log, or of no use to shmq
    refused            a log of DLedger, tables in RocksDB, topics of batch queues: their bytes mean something else

`consumequeue_ext` holds tag hashes and the Bloom filters' bits of SQL filters; units that point there are written again
with the tag's hash, and shmq computes filters from the records.

Rules: (1) the source is only read, under its lock; (2) the copy has its name only when it is complete and on disk; (3)
blocks that were never written stay holes, but in the log.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from shmq.errors import StoreError, UsageError
from shmq.plain_file import allocated_bytes, open_plain
from shmq.shm.access import Access, access_rights
from shmq.store.atomic import sync_directory
from shmq.store.layout import StoreLayout
from shmq.store.proof.findings import Findings
from shmq.store.proof.progress import read_tables

_TAKEN_DIRECTORIES = ("commitlog", "config", "consumequeue", "index")
_TAKEN_FILES = ("checkpoint", "abort")
_COPY_BYTES = 1 << 24
_ROCKSDB_SIGN = "CURRENT"  # every RocksDB directory has this file


def check_takeable(root: Path) -> None:
    """Refuse a store whose files mean something else than ours.

    Raises:
        UsageError: it is one, with what to do about it.
    """
    for entry in sorted(root.iterdir()):
        if entry.name.startswith("dledger"):
            raise UsageError(f"{entry} is a log of DLedger, which no other broker reads", hint="replay it over TCP")
    for sign in sorted((root / "config").glob(f"**/{_ROCKSDB_SIGN}")) if (root / "config").is_dir() else []:
        raise UsageError(
            f"the tables are in RocksDB ({sign.parent})",
            hint="mqadmin rocksDBConfigToJson writes them as JSON; move the RocksDB directories away then",
        )
    tables = read_tables(StoreLayout(root, Access(-1)), None, Findings())
    batches = [
        name
        for name, topic in tables.topics.items()
        if "BatchCQ" in str((topic.raw.get("attributes") or {}).get("queue.type", ""))
    ]
    if batches:
        raise UsageError(
            f"{', '.join(batches[:5])} {'has' if len(batches) == 1 else 'have'} batch queues, which shmq does not read",
            hint="delete these topics in the stock broker, or replay them over TCP",
        )


def copy_store(source: Path, target: Path) -> int:
    """Copy a store; returns the bytes that were copied.

    Raises:
        StoreError: there is something at the target, or the disk refused.
    """
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise StoreError(f"{target} exists and is not empty", hint="--to a directory that is not there yet")
    pairs = list(_pairs(source))
    needed = sum(allocated_bytes(path.stat()) for path in pairs)
    parent = target.absolute().parent
    draft = parent / f".{target.name}.{secrets.token_hex(4)}.part"
    try:
        free = shutil.disk_usage(parent).free
        if needed > free:
            raise StoreError(
                f"{source} takes {needed} bytes, {parent} has {free} free", hint="free disk space, or --in-place"
            )
        layout = StoreLayout(draft, access_rights())
        layout.prepare()
        copied = sum(_copy(layout, path, draft / path.relative_to(source)) for path in pairs)
        for directory, _, _ in os.walk(draft):
            sync_directory(Path(directory))
        if target.is_dir():
            target.rmdir()
        os.rename(draft, target)
        sync_directory(parent)
    except OSError as error:
        raise StoreError(
            f"{error.filename or target}: {error.strerror}", hint="begin again; nothing was changed"
        ) from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return copied


def _pairs(source: Path) -> Iterator[Path]:
    """Every file that is taken; none is followed out of the store by a symbolic link."""
    for name in _TAKEN_DIRECTORIES:
        for directory, _, names in os.walk(source / name):
            yield from (path for path in (Path(directory) / each for each in sorted(names)) if not path.is_symlink())
    yield from (source / name for name in _TAKEN_FILES if (source / name).is_file())


def _copy(layout: StoreLayout, source: Path, target: Path) -> int:
    layout.make_directory(target.parent)
    mode = layout.access.mode if target.parent == layout.commitlog else layout.access.read_mode
    copied = 0
    reader = open_plain(source, os.O_RDONLY)
    try:
        size = os.fstat(reader).st_size
        with layout.new_file(target, mode) as writer:
            os.ftruncate(writer, size)
            at = 0
            while at < size:
                try:
                    at = os.lseek(reader, at, os.SEEK_DATA)
                except OSError:  # only unwritten blocks are left
                    break
                end = os.lseek(reader, at, os.SEEK_HOLE)
                while at < end and (data := os.pread(reader, min(_COPY_BYTES, end - at), at)):
                    written = os.pwrite(writer, data, at)
                    at, copied = at + written, copied + written
    finally:
        os.close(reader)
    return copied
