"""tcp.json: where a broker and its name server listen, for whoever finds the runtime directory.

    {"broker": "127.0.0.1:10911", "nameserver": "127.0.0.1:9876"}

Rule: it is replaced as a whole, and removed by the process that wrote it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shmq.shm.replacing import replace_text


def read_addresses(path: Path) -> dict[str, str]:
    """Return what tcp.json says, {} when it is not there or says nothing usable."""
    try:
        data: Any = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    if not isinstance(data, dict):
        return {}
    return {name: value for name, value in data.items() if isinstance(name, str) and isinstance(value, str)}


def write_addresses(path: Path, addresses: Mapping[str, str], *, mode: int, gid: int) -> None:
    """Replace tcp.json at once; raises OSError."""
    replace_text(path, json.dumps(dict(addresses)), mode=mode, gid=gid)
