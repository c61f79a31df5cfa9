"""Asking a broker of this host to switch: one line to its socket, one line back."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from typing import Any

from shmq import errors
from shmq.errors import BrokerNotRunning, PermissionDenied, RequestTimeout, ShmqError
from shmq.shm.discovery import find_place
from shmq.shm.links import LEADS, read_links
from shmq.shm.place import Place
from shmq.tools.command import Call

_SECONDS = 30.0
_LOOK_SECONDS = 0.02
_REPLY_BYTES_MAX = 1 << 16


def switch(call: Call, broker: str | None, request: dict[str, Any]) -> tuple[Place, dict[str, Any]]:
    """Have a broker do what a request says; return where it is and what it answers.

    Raises:
        UsageError: the broker is on another host, or refuses and says why.
        BrokerNotRunning: nothing there can be switched.
        PermissionDenied: it is another user's.
    """
    if broker is None:
        call.refuse_remote("a broker is switched on its own host", hint="log in there, or name a broker of this host")
    place = find_place(call.url if broker is None else broker if "://" in broker else f"shmq://{broker}")
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(_SECONDS if call.timeout is None else call.timeout)
            connection.connect(str(place.switch_path))
            connection.sendall(json.dumps(request).encode() + b"\n")
            reply = _line(connection)
    except (FileNotFoundError, ConnectionRefusedError, ConnectionResetError) as error:
        raise BrokerNotRunning(
            f'no process of broker "{place.broker_name}" can switch it: none listens at {place.switch_path}',
            hint="it has to run, and with --ha-listen or as a slave: shmq health",
        ) from error
    except PermissionError as error:
        raise PermissionDenied(
            f"{place.switch_path} is another user's", hint="run it as the user that the broker runs as"
        ) from error
    except TimeoutError as error:
        raise RequestTimeout("the broker has not answered in time", hint="its log says what it does") from error
    if "error" in reply:
        kind = getattr(errors, str(reply.get("kind")), ShmqError)
        is_known = isinstance(kind, type) and issubclass(kind, ShmqError)
        made: ShmqError = (kind if is_known else ShmqError)(str(reply["error"]), hint=str(reply.get("hint", "")))
        raise made
    return place, dict(reply.get("done", {}))


def wait_until_served(place: Place, epoch: int) -> bool:
    """Wait until the broker serves new attachments and TCP clients, and says that it leads in an epoch.

    Its bridges and its replication process start again with the new role.
    """
    until = time.monotonic() + _SECONDS
    while time.monotonic() < until:
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.connect(str(place.socket_path))
            links = read_links(place.links_path)
            if links is not None and links.standing == LEADS and links.role != "slave" and links.epoch >= epoch:
                return True
        time.sleep(_LOOK_SECONDS)
    return False


def _line(connection: socket.socket) -> dict[str, Any]:
    data = b""
    while not data.endswith(b"\n") and len(data) < _REPLY_BYTES_MAX:
        part = connection.recv(_REPLY_BYTES_MAX)
        if not part:
            raise ConnectionResetError("the broker closed the connection")
        data += part
    reply = json.loads(data)
    return reply if isinstance(reply, dict) else {}
