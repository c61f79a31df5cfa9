"""Owns what a client calls itself. It does not know who reads it.

host@pid#serial-clock      unique on the host, also beside the parent of a forked process
"""

from __future__ import annotations

import itertools
import os
import socket
import time

_serial = itertools.count(1)


def new_client_id() -> str:
    """Return RocketMQ's form of a client id; no two connections of a host have the same."""
    return f"{socket.gethostname()}@{os.getpid()}#{next(_serial)}-{time.monotonic_ns():x}"
