"""Pages of the broker and its clients: processes, segments, recovery, checks, replication."""

from __future__ import annotations

from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from shmq.shm.core import READ_ONLY_FOLLOWER
from shmq.tools.console.listing import listing_of
from shmq.tools.console.rendering import Renderer
from shmq.tools.console.source import Look
from shmq.tools.top.rates import ProcessRow

_COLUMNS: dict[str, Callable[[ProcessRow], object]] = {
    "pid": lambda row: row.pid,
    "role": lambda row: row.role,
    "cpu": lambda row: row.cpu_percent,
    "memory": lambda row: row.rss_bytes,
    "in": lambda row: row.in_rate,
    "out": lambda row: row.out_rate,
    "lag": lambda row: row.lag,
    "idle": lambda row: row.idle,
}


class ProcessPages:
    """Processes, and the broker itself."""

    def __init__(self, look: Callable[[], Look], renderer: Renderer) -> None:
        self._look = look
        self._renderer = renderer

    def routes(self) -> list[Route]:
        """Return where they are."""
        return [Route("/processes", self.processes), Route("/broker", self.broker)]

    def processes(self, request: Request) -> Response:
        """List the broker's processes and its clients."""
        look = self._look()
        listing = listing_of(request, look.picture.processes, _COLUMNS, name=lambda row: f"{row.role} {row.name}")
        return self._renderer.page(request, "processes.html", listing=listing)

    def broker(self, request: Request) -> Response:
        """Show what the broker says about itself."""
        snapshot = self._look().snapshot
        own = [segment for segment in snapshot.segments if segment.state == "own"]
        daemons = [process for process in snapshot.processes if process.role != "client"]
        return self._renderer.page(
            request,
            "broker.html",
            snapshot=snapshot,
            own=own,
            daemons=daemons,
            is_slave=snapshot.broker.read_only == READ_ONLY_FOLLOWER,
        )
