"""tcp.json: where a broker and its name server listen, for all that read the runtime directory.

    {"broker": "127.0.0.1:10911", "nameserver": "127.0.0.1:9876"}
    {"broker": "10.0.0.5:10911", "registered ns.example:9876": "10.0.0.5:10911"}     name servers elsewhere, and the
                                                                                    address registered with each

Rule: it is replaced as a whole, and removed by the process that wrote it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shmq.plain_file import read_plain

HA_ADDRESS = "ha"  # in a file of its own: where slaves get the log
_REGISTERED = "registered "
FILE_BYTES_MAX = 1 << 20


def read_addresses(path: Path) -> dict[str, str]:
    """Return what tcp.json says, {} when it is not there or says nothing usable."""
    try:
        data: Any = json.loads(read_plain(path, FILE_BYTES_MAX))
    except (OSError, ValueError):
        return {}
    if not isinstance(data, dict):
        return {}
    return {name: value for name, value in data.items() if isinstance(name, str) and isinstance(value, str)}


def registered_with(addresses: Mapping[str, str]) -> dict[str, str]:
    """Return the name servers elsewhere that knew the broker when it began to serve, with the address registered."""
    return {name.removeprefix(_REGISTERED): told for name, told in addresses.items() if name.startswith(_REGISTERED)}


def as_registered(servers: Mapping[str, str]) -> dict[str, str]:
    """Return what tcp.json says of name servers elsewhere."""
    return {f"{_REGISTERED}{name}": told for name, told in servers.items()}


def write_addresses(path: Path, addresses: Mapping[str, str], *, mode: int, gid: int) -> None:
    """Replace tcp.json at once; raises StoreError."""
    from shmq.shm.replacing import replace_text  # not needed for reading

    replace_text(path, json.dumps(dict(addresses)), mode=mode, gid=gid)
