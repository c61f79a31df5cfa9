"""Keeps a worker bridge's copy of subscriptions and settings: asked of the primary bridge, then updated by it.

The link is opened again, after a pause, whenever it breaks.

Invariant: while there is no link, what was said last stays in force; a new link begins with all groups and settings.
"""

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path

from shmq.daemon.broker.administration.config import take_tunables
from shmq.daemon.broker.clients.relays import RelayedGroups
from shmq.daemon.broker.settings import BrokerSettings
from shmq.errors import ShmqError
from shmq.protocol.codes import Request, Response
from shmq.protocol.command import Command
from shmq.protocol.header import CommandDecoder, encode_command

_PAUSE_SECONDS = 0.1
_READ_BYTES = 1 << 16


class GroupLink:
    """Keeps groups and settings as the primary bridge has them; `linked` is set once they are there.

    Args:
        renewed: called whenever they have come, also from a primary bridge that was started again.
    """

    def __init__(
        self, control_socket: Path, groups: RelayedGroups, settings: BrokerSettings, *, renewed: Callable[[], None]
    ) -> None:
        self._path = control_socket
        self._groups = groups
        self._settings = settings
        self._renewed = renewed
        self.linked = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._run())

    def close(self) -> None:
        """End the link."""
        self._task.cancel()

    async def _run(self) -> None:
        while True:
            with contextlib.suppress(OSError, ShmqError):
                await self._follow()
            await asyncio.sleep(_PAUSE_SECONDS)

    async def _follow(self) -> None:
        reader, writer = await asyncio.open_unix_connection(str(self._path))
        try:
            writer.write(encode_command(Command(code=Request.WATCH_GROUPS)))
            decoder = CommandDecoder()
            while data := await reader.read(_READ_BYTES):
                decoder.feed(data)
                while (command := decoder.take()) is not None:
                    self._take(command)
        finally:
            writer.close()

    def _take(self, command: Command) -> None:
        if command.code == Request.GROUP_CHANGED and not command.is_reply:
            self._groups.update(command.body)
        elif command.code == Request.SETTINGS_CHANGED and not command.is_reply:
            take_tunables(self._settings, command.ext)
        elif command.is_reply and command.code == Response.SUCCESS:
            self._groups.replace(command.body)
            take_tunables(self._settings, command.ext)
            self.linked.set()
            self._renewed()
