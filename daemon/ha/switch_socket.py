"""Takes the switches of `shmq cluster`: a Unix socket of the replication process, for the broker's own user alone.

    -> one line, JSON: a Request      <- one line, JSON: {"done": …} or {"error", "kind", "hint"}

One request is dealt with after the other, beside the event loop.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from typing import Any, Protocol

from shmq.daemon.bridge.sockets.peer import peer_of
from shmq.daemon.bridge.sockets.unix_listener import Listener
from shmq.daemon.ha.switching import Request
from shmq.errors import ShmqError
from shmq.shm.place import Place
from shmq.typed_json import decode_json

_LINE_BYTES_MAX = 4096
_OWNER_ONLY = 0o600


class Switch(Protocol):
    """Carries out what is asked for."""

    def answer(self, request: Request) -> dict[str, Any]:
        """Do it, or raise ShmqError."""


class SwitchSocket:
    """Listens until it is closed; lives inside one event loop."""

    def __init__(self, place: Place, switching: Switch) -> None:
        self._listener = Listener(place.switch_path, mode=_OWNER_ONLY, gid=-1)
        self._switching = switching
        self._turn = asyncio.Lock()
        self._server: asyncio.Server | None = None

    async def open(self) -> None:
        """Begin to accept."""
        self._server = await asyncio.start_unix_server(self._serve, sock=self._listener.socket, limit=_LINE_BYTES_MAX)

    async def look(self, log: Callable[..., None]) -> None:
        """Listen anew where the path is gone."""
        if self._listener.look(log) is not None:
            before = self._server
            await self.open()
            if before is not None:
                before.close()

    async def close(self) -> None:
        """Let a client that was answered read it, and leave."""
        self._listener.close()
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if peer_of(writer.get_extra_info("socket")).uid not in (0, os.geteuid()):
                return
            line = await reader.readline()
            async with self._turn:
                reply = await asyncio.to_thread(self._answer, line)
            writer.write(json.dumps(reply).encode() + b"\n")
            await writer.drain()
        except (OSError, ValueError):
            pass  # the client has gone, or sent too much
        finally:
            writer.close()

    def _answer(self, line: bytes) -> dict[str, Any]:
        try:
            return {"done": self._switching.answer(decode_json(line, Request))}
        except ShmqError as error:
            return {"error": str(error), "kind": type(error).__name__, "hint": error.hint}
        except (ValueError, RecursionError) as error:
            return {"error": f"no request: {error}", "kind": "UsageError", "hint": ""}
