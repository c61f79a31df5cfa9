"""The identity of a store, and the role that a switch by hand gave its broker.

    shmq.identity    {"store", "log", "inSyncMin"}    `store` is this directory's alone, `log` that of all copies of one
                                                      log: the first master makes it up, a slave with an empty log
                                                      takes its master's; on how many disks a message has to be before
                                                      that log's masters acknowledge it, 0: they wait for no slave
    shmq.role        {"configured", "role", "master", "masterHa", "epoch", "inSyncMin"}

A broker is started with a role. A switch changes it while the broker runs, and has to outlive a restart with the same
command line: so the switch notes which role the broker was configured with, and the note counts as long as it still
is. Another command line is a newer decision, and the note goes.

Rules: (1) a note of a promotion has its epoch, and is written before the epoch is: the process that finds it finishes
the promotion; (2) both files are sealed (seal.py), and one that cannot be believed is an error, never a default.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from shmq.errors import CorruptionError, StoreError
from shmq.plain_file import read_plain
from shmq.store.atomic import sync_directory, write_atomically
from shmq.store.layout import StoreLayout
from shmq.store.seal import sealed, unsealed

_ID = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True)
class Identity:
    """Of a store directory and of its log; "" is not known."""

    store: str = ""
    log: str = ""
    inSyncMin: int = 0


@dataclass(frozen=True)
class Role:
    """The role that the last switch gave a broker.

    Attributes:
        configured: what it was started with, as `configured_text` says it.
        role: "master", "sync-master" or "slave".
        epoch: of a master, its own.
        inSyncMin: of a "sync-master".
    """

    configured: str
    role: str
    master: str = ""
    masterHa: str = ""
    epoch: int = 0
    inSyncMin: int = 0


def configured_text(role: str, master: str, master_ha: str) -> str:
    """Return what a command line says of the role, to be compared."""
    return " ".join((role, master, master_ha)).strip()


def load_identity(layout: StoreLayout) -> Identity:
    """Return the store's ids; empty when it has none yet. Raises ShmqError."""
    found = _load(layout.identity)
    if found is None:
        return Identity()
    identity = Identity(str(found.get("store", "")), str(found.get("log", "")), found.get("inSyncMin", 0))
    if identity.inSyncMin not in (0, 1, 2):
        raise CorruptionError(layout.identity, 0, f"{identity.inSyncMin!r} is no number of disks")
    if not all(_ID.fullmatch(text) for text in (identity.store, identity.log) if text):
        raise CorruptionError(layout.identity, 0, "its ids are none")
    return identity


def own_identity(layout: StoreLayout, *, makes_log: bool, in_sync_min: int | None = None) -> Identity:
    """Return the store's ids, and make those it lacks.

    Args:
        makes_log: a log without an id gets one: it is a master's.
        in_sync_min: what its master says of the log; None of a slave.
    """
    known = load_identity(layout)
    made = Identity(
        known.store or os.urandom(16).hex(),
        known.log or (os.urandom(16).hex() if makes_log else ""),
        known.inSyncMin if in_sync_min is None else in_sync_min,
    )
    if made != known:
        store_identity(layout, made)
    return made


def store_identity(layout: StoreLayout, identity: Identity) -> None:
    """Write the store's ids. Raises StoreError."""
    _store(layout, layout.identity, asdict(identity))


def load_role(layout: StoreLayout, configured: str) -> Role | None:
    """Return what the last switch made of a broker that is started with this role; None: nothing that counts.

    Raises:
        CorruptionError: there is a note that cannot be believed.
        StoreError: it cannot be read.
    """
    found = _load(layout.role)
    if found is None:
        return None
    try:
        role = Role(**found)
    except TypeError as error:
        raise CorruptionError(layout.role, 0, "it is no note of a switch", hint=f"rm {layout.role}") from error
    return role if role.configured == configured else None


def store_role(layout: StoreLayout, role: Role) -> None:
    """Note what a switch makes of the broker. Raises StoreError."""
    _store(layout, layout.role, asdict(role))


def forget_role(layout: StoreLayout) -> None:
    """Let the command line count again. Raises StoreError."""
    try:
        layout.role.unlink(missing_ok=True)
        sync_directory(layout.root)
    except OSError as error:
        raise StoreError(f"{layout.role} cannot be removed: {error.strerror}") from error


def _load(path: Path) -> dict[str, Any] | None:
    try:
        return unsealed(read_plain(path))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise CorruptionError(
            path, 0, str(error), hint=f"rm {path}, and start the broker with the role it has"
        ) from error


def _store(layout: StoreLayout, path: Path, values: dict[str, Any]) -> None:
    try:
        write_atomically(path, sealed(json.dumps(values).encode()), mode=layout.access.mode, gid=layout.access.gid)
    except OSError as error:
        raise StoreError(f"{path} cannot be written: {error.strerror}") from error
