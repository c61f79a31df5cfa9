"""What a connection over TCP does by itself, on the I/O thread: heartbeats, new routes, offsets, locks.

    route refresh   30 s     heartbeat   30 s, and at once after a new route or a reconnection
    offsets          5 s     locks       20 s

Invariant: a failure is forgotten, the next round tries again; nothing here ends the connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from shmq.client.wire_tcp.name_service import REFRESH
from shmq.client.wire_tcp.registration import HEARTBEAT_INTERVAL, Registration
from shmq.client.wire_tcp.share import LOCK_RENEWAL, TcpShare
from shmq.errors import ShmqError

if TYPE_CHECKING:
    from shmq.client.wire_tcp.group_reader import GroupReader
    from shmq.client.wire_tcp.process_queue import ProcessQueue
    from shmq.client.wire_tcp.wire import TcpWire

COMMIT_INTERVAL: Final = 5.0
MISSING_INTERVAL: Final = 1.0


class Upkeep:
    """The periodic work of one session."""

    def __init__(
        self,
        wire: TcpWire,
        registration: Registration,
        readers: Callable[[], list[GroupReader]],
        shares: Callable[[], list[TcpShare]],
    ) -> None:
        self._wire = wire
        self._registration = registration
        self._readers = readers
        self._shares = shares
        self._beat = asyncio.Event()
        self.is_running = False

    def start(self) -> None:
        """Begin; ends with the I/O thread."""
        self.is_running = True
        network = self._wire.network
        network.spawn(self._heartbeats())
        network.spawn(self._every(REFRESH, self._refresh_routes))
        network.spawn(self._every(MISSING_INTERVAL, self._look_for_missing))
        network.spawn(self._every(COMMIT_INTERVAL, self._commit))
        network.spawn(self._every(LOCK_RENEWAL, self._keep_locks))

    def beat_soon(self) -> None:
        """Send a heartbeat now; on the I/O thread."""
        self._beat.set()

    async def _heartbeats(self) -> None:
        while True:
            try:
                async with asyncio.timeout(HEARTBEAT_INTERVAL):
                    await self._beat.wait()
            except TimeoutError:
                pass
            self._beat.clear()
            await _quietly(self._registration.beat())

    async def _every(self, seconds: float, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            await asyncio.sleep(seconds)
            await _quietly(work())

    async def _refresh_routes(self) -> None:
        names = self._wire.names
        for topic in names.routes.stale(self._wire.network.loop.time()):
            await names.refresh(topic)

    async def _look_for_missing(self) -> None:
        names = self._wire.names
        for topic in self._registration.topics():
            if names.routes.old(topic) is None:
                await names.refresh(topic)

    async def _commit(self) -> None:
        for reader in self._readers():
            if not reader.commits:
                continue
            assert reader.spec.group is not None
            for queue, offset in reader.progress():
                if offset != queue.stored_offset:
                    await _quietly(self._commit_one(reader.spec.group, queue, offset))

    async def _commit_one(self, group: str, queue: ProcessQueue, offset: int) -> None:
        wire = self._wire
        await wire.questions.commit(group, queue.queue, offset, wire.timeout, oneway=True)
        queue.stored_offset = offset

    async def _keep_locks(self) -> None:
        for share in self._shares():
            await _quietly(share.keep_locks())


async def _quietly(work: Awaitable[None]) -> None:
    try:
        await work
    except ShmqError as error:
        import logging

        logging.getLogger("shmq").debug("a round of upkeep failed and is repeated: %s", error)
    except Exception:
        import logging

        # A fault of ours in one round: the next ones matter more, as offsets and heartbeats depend on them.
        logging.getLogger("shmq").exception("a round of upkeep failed and is repeated")
