"""kvConfig.json: the KV configuration on disk.

    namesrv/kvConfig.json    {"configTable":{"ORDER_TOPIC_CONFIG":{"T":"broker-a:4"}}}       RocketMQ's own form

Rules: (1) it is replaced atomically and the previous one kept as `.bak`; (2) what cannot be read is read from its
`.bak`; when that is unreadable too the name server refuses to start, since an order configuration that is silently gone
breaks the order of messages; (3) a process without a file keeps nothing.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shmq.daemon.nameserver.key_values import Table
from shmq.errors import CorruptionError, StoreError
from shmq.plain_file import read_plain
from shmq.shm.access import Access
from shmq.store.atomic import cure_of, write_atomically
from shmq.store.fastjson import dumps, loads

_TABLE = "configTable"


class KeyValueFile:
    """Keeps a table in one file; `shmq.daemon.nameserver.key_values.Keeper` over a path."""

    def __init__(self, path: Path, access: Access) -> None:
        self._path = path
        self._access = access

    def load(self) -> Table:
        """Return the table; empty when there is no file.

        Raises:
            CorruptionError: the file and its backup are both unreadable.
        """
        reason = ""
        for path in (self._path, self._path.with_name(self._path.name + ".bak")):
            try:
                return _parsed(path)
            except FileNotFoundError:
                continue
            except (OSError, ValueError) as error:
                reason = reason or str(error)
        if reason:
            raise CorruptionError(
                self._path,
                0,
                f"unreadable, and so is its backup: {reason}",
                hint=f"restore {self._path}, or remove it and its .bak to start anew",
            )
        return {}

    def save(self, table: Mapping[str, Mapping[str, str]]) -> None:
        """Replace the file.

        Raises:
            StoreError: the disk refused.
        """
        ordered = {space: dict(sorted(values.items())) for space, values in sorted(table.items())}
        content = dumps({_TABLE: ordered}).encode()
        try:
            self._path.parent.mkdir(mode=self._access.directory_mode, parents=True, exist_ok=True)
            write_atomically(self._path, content, mode=self._access.read_mode, gid=self._access.gid, backup=True)
        except OSError as error:
            raise StoreError(f"the KV configuration cannot be kept: {error.strerror}", hint=cure_of(error)) from error


def _parsed(path: Path) -> Table:
    data: Any = loads(read_plain(path).decode())
    table = data.get(_TABLE, {}) if isinstance(data, dict) else None
    if not isinstance(table, dict):
        raise ValueError(f"{path.name} holds no {_TABLE}")
    found: Table = {}
    for space, values in table.items():
        if not isinstance(values, dict) or not all(isinstance(value, str) for value in values.values()):
            raise ValueError(f"{path.name}: the namespace {space!r} is no map of texts")
        found[space] = dict(values)
    return found
