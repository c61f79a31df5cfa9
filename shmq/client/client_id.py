"""Client ids in RocketMQ's form, which operators read in every list of consumers and of connections.

    host @ pid # serial - chance @ name       ours; the serial tells the connections of one process apart
    host @ pid # clock  @ unit                a Java client's; the unit is left out unless the program sets it

Invariants: (1) no two connections have the same id, whatever their names are: containers may share the name of their
host and number their processes alike, and tests stop the clock; (2) the name stands last, so that it changes neither
the order of a group's members nor where others find the process id.
"""

from __future__ import annotations

import itertools
import os
import socket
import sys

from shmq.message import CONNECTION_NAME_BYTES_MAX

_ALPHABET = frozenset("_-0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
_CHANCE_BYTES = 6
_serial = itertools.count(1)


def new_client_id(name: str | None = None) -> str:
    """Return an id that no other connection has; None puts the program's name into it."""
    named = program_name() if name is None else name
    unique = f"{socket.gethostname()}@{os.getpid()}#{next(_serial)}-{os.urandom(_CHANCE_BYTES).hex()}"
    return f"{unique}@{named}" if named else unique


def program_name() -> str:
    """Return what this process was started as: a script's or a package's name; "" for `python -c` and at a prompt."""
    started: object = next(iter(getattr(sys, "argv", ())), "")
    if not isinstance(started, str) or started.startswith("-"):
        return ""
    folder, name = os.path.split(started.rstrip("/"))
    if name == "__main__.py":  # python -m PACKAGE
        name = os.path.basename(folder)
    shown = "".join(letter if letter in _ALPHABET else "-" for letter in name.removesuffix(".py"))
    return shown.strip("-")[:CONNECTION_NAME_BYTES_MAX]


def pid_of(client_id: str) -> int:
    """Return the process id inside a client id `host@pid#…`; 0 when there is none."""
    digits = client_id.partition("@")[2].partition("@")[0].partition("#")[0]
    return int(digits) if digits.isdecimal() else 0


def name_of(client_id: str) -> str:
    """Return the name at the end of a client id, RocketMQ's unit; "" when there is none."""
    return client_id.partition("@")[2].partition("@")[2]
