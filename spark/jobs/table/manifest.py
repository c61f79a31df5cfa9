"""The manifests of a plain Parquet archive: which files are in, in what order they came, and how far queues are.

    _manifests/00000000000000000007.json   version, query, batch, add, remove, gaps, ends of all queues
    _manifests/lock                        held by the one job that writes

    files are staged (dotted names) ─▶ manifest appears, complete ─▶ files get their names
                                       ^ in, from here on            ^ done again at the next start, if killed

Rules: (1) a manifest appears by one link that fails if it exists: whole or not at all, and never over another; (2)
whoever lists the directory instead of the manifests sees a file late, but never twice and never one that is not in; (3)
only the newest manifest can have files without their names, because the next one is written after them; (4) staged
files of no manifest are rubbish of killed tasks and removed at the start.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final, Self

from shmq.errors import CorruptionError, StoreError, StoreLocked
from shmq.shm.descriptors import above_standard
from shmq.spark.jobs.table.entry import Entry, QueueKey, entry_of, in_order, parse_key
from shmq.spark.jobs.table.table import Commit
from shmq.spark.schema import refused

FOLDER: Final = "_manifests"
FORMAT: Final = 1
_DIGITS: Final = 20
_LOCK_SECONDS: Final = 10.0  # a killed driver's process may take a moment to die


class Manifest:
    """A plain Parquet archive, open for writing."""

    staged = True

    def __init__(self, root: Path) -> None:
        self._root = root
        self._folder = root / FOLDER
        self._lock: IO[bytes] | None = None
        self._version = 0
        self._last: dict[str, Any] = {}
        self._ends: dict[QueueKey, int] = {}

    def __enter__(self) -> Self:
        refuse_strangers(self._root)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"the archive {self._root} cannot be made: {error.strerror}") from error
        self._lock = _locked(self._folder / "lock")
        try:
            names = versions(self._root)
            if names:
                self._version = int(names[-1].stem)
                self._last = read_manifest(names[-1])
                self._ends = {parse_key(text): end for text, end in self._last["ends"].items()}
                self._publish(self._last)
            self._remove_rubbish()
        except BaseException:
            self._lock.close()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        if self._lock is not None:
            self._lock.close()

    def end_of(self, key: QueueKey) -> int | None:
        """Return the first offset of a queue that is not in, None when the archive does not know the queue."""
        return self._ends.get(key)

    def holds(self, query: str, batch: int) -> bool:
        """Whether a batch is in."""
        return bool(self._last) and self._last["batches"].get(query, -1) >= batch

    def commit(self, commit: Commit) -> None:
        """Put a batch in.

        Raises:
            StoreError: somebody else writes, or the disk does not take it.
        """
        ends = {**self._ends, **{each.key: each.end for each in in_order(commit.add)}}
        gaps = [{"queue": str(gap.key), "start": gap.start, "end": gap.end} for gap in commit.gaps]
        batches = {
            commit.query: commit.batch
        }  # one query has one checkpoint; another one begins where the archive ends
        self._append({"batches": batches, "gaps": gaps, "add": _json(commit.add), "remove": []}, ends)

    def replace(self, added: Sequence[Entry], removed: Sequence[Entry]) -> None:
        """Put files in the place of others that hold the same messages.

        Raises:
            StoreError: as for `commit`.
        """
        kept = {"batches": self._last.get("batches", {}), "gaps": []}
        self._append({**kept, "add": _json(added), "remove": [each.path for each in removed]}, self._ends)

    def entries(self) -> list[Entry]:
        """Return what is in, by queue and offset."""
        return entries_in(self._root)

    def _append(self, fields: dict[str, Any], ends: Mapping[QueueKey, int]) -> None:
        version = self._version + 1
        document = {
            "format": FORMAT,
            "version": version,
            "written_ms": time.time_ns() // 1_000_000,
            **fields,
            "ends": {str(key): end for key, end in sorted(ends.items())},
        }
        _sync_folders(self._root, {str(Path(each["staged"]).parent) for each in fields["add"] if each["staged"]})
        _write_once(self._folder / f"{version:0{_DIGITS}d}.json", json.dumps(document, indent=1).encode())
        self._version, self._last, self._ends = version, document, dict(ends)
        self._publish(document)

    def _publish(self, document: Mapping[str, Any]) -> None:
        """Take what is removed out of sight, then give the files their names. Done twice, it is the same."""
        for path in document["remove"]:
            (self._root / path).unlink(missing_ok=True)
        folders = set()
        for entry in map(entry_of, document["add"]):
            if not entry.path:
                continue
            try:
                (self._root / entry.staged).rename(self._root / entry.path)
            except FileNotFoundError:
                if not (self._root / entry.path).exists():
                    raise CorruptionError(
                        self._root / entry.path, 0, "the manifest names it, it is not there"
                    ) from None
            folders.add(str(Path(entry.path).parent))
        _sync_folders(self._root, folders)

    def _remove_rubbish(self) -> None:
        for path in self._root.rglob(".*.parquet"):
            with contextlib.suppress(OSError):
                path.unlink()


def versions(root: Path) -> list[Path]:
    """Return the paths of all manifests, the oldest first."""
    try:
        names = os.listdir(root / FOLDER)
    except FileNotFoundError:
        return []
    found = [name for name in names if name.endswith(".json") and name[:-5].isdecimal() and len(name) == _DIGITS + 5]
    return [root / FOLDER / name for name in sorted(found)]


def read_manifest(path: Path) -> dict[str, Any]:
    """Read one manifest.

    Raises:
        CorruptionError: it is damaged, or of another version of shmq.
    """
    try:
        document = json.loads(path.read_bytes())
        if document["format"] != FORMAT:
            raise CorruptionError(path, 0, f"its format is {document['format']}, this shmq reads {FORMAT}")
        if not all(isinstance(document[name], kind) for name, kind in _SHAPE.items()):
            raise TypeError
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptionError(path, 0, f"it is no manifest: {error!r}") from error
    return dict(document)


_SHAPE: Final = {"version": int, "batches": dict, "add": list, "remove": list, "ends": dict, "gaps": list}


def entries_in(root: Path, paths: Sequence[Path] | None = None) -> list[Entry]:
    """Return what an archive holds, or some of its manifests say, by queue and offset, without opening it for writing.

    Raises:
        CorruptionError: a manifest is damaged.
    """
    found: dict[str, Entry] = {}
    for path in versions(root) if paths is None else paths:
        document = read_manifest(path)
        for removed in document["remove"]:
            found.pop(removed, None)
        found |= {entry.path: entry for entry in map(entry_of, document["add"]) if entry.path}
    return in_order(found.values())


def ends_in(root: Path) -> dict[QueueKey, int]:
    """Return the first offset of each queue that is not in, without opening the archive for writing.

    Raises:
        UsageError: the directory holds something else.
        CorruptionError: the newest manifest is damaged.
    """
    refuse_strangers(root)
    paths = versions(root)
    return {parse_key(text): end for text, end in read_manifest(paths[-1])["ends"].items()} if paths else {}


def refuse_strangers(root: Path) -> None:
    """Refuse a directory that is no archive and not empty.

    Raises:
        UsageError: it is one.
    """
    if (root / "_delta_log").exists():
        raise refused(f"{root} is a Delta table", "add --format delta, or take another directory")
    found = root.exists() and not (root / FOLDER).exists() and _stranger(root)
    if found:
        raise refused(f"{root} holds {found}, and no archive", "take an empty directory")


def _json(entries: Sequence[Entry]) -> list[dict[str, Any]]:
    return [entry.to_json() for entry in entries]


def _stranger(root: Path) -> str | None:
    names = (entry.name for entry in os.scandir(root))
    return next((name for name in sorted(names) if not name.startswith(("_", "."))), None)


def _locked(path: Path) -> IO[bytes]:
    with above_standard:
        file = open(path, "ab")  # noqa: SIM115 - it is held as long as the archive is open
    until = time.monotonic() + _LOCK_SECONDS
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return file
        except OSError:
            if time.monotonic() > until:
                file.close()
                raise StoreLocked(
                    f"another job writes the archive {path.parent.parent}", hint="wait for it, or end it"
                ) from None
            time.sleep(0.1)


@above_standard
def _write_once(path: Path, data: bytes) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.link(temporary, path)
    except FileExistsError:
        raise StoreError(f"{path} was written by somebody else", hint="run one archive job on it at a time") from None
    except OSError as error:
        raise StoreError(f"{path} cannot be written: {error.strerror}") from error
    finally:
        temporary.unlink(missing_ok=True)
    _sync_folders(path.parent, {"."})


@above_standard
def _sync_folders(root: Path, folders: set[str]) -> None:
    for folder in folders:
        descriptor = os.open(root / folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
