"""The console as one ASGI application: guard around pages, errors as pages, the sampler beside them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from shmq.errors import ConnectError, NotFound, PermissionDenied, ShmqError, UsageError
from shmq.tools.console.access import Access
from shmq.tools.console.guard import Guard
from shmq.tools.console.pages.changes import ChangePages
from shmq.tools.console.pages.groups import GroupPages
from shmq.tools.console.pages.letters import LetterPages
from shmq.tools.console.pages.messages import MessagePages
from shmq.tools.console.pages.overview import OverviewPages
from shmq.tools.console.pages.processes import ProcessPages
from shmq.tools.console.pages.topics import TopicPages
from shmq.tools.console.pages.traces import TracePages
from shmq.tools.console.pages.waiting import WaitingPages
from shmq.tools.console.rendering import HERE, Renderer
from shmq.tools.console.source import Source
from shmq.tools.console.trends import Trends


def make_application(source: Source, access: Access) -> ASGIApp:
    """Return the console of a broker, for those who have access; its end closes the source."""
    renderer = Renderer(source.look, read_only=access.read_only, asks_token=access.asks_token)
    trends = Trends(source.look)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        trends.start()
        yield
        trends.close()
        source.close()

    def failed(request: Request, error: Exception) -> Response:
        return _error_page(renderer, request, error)

    def refuse(request: Request, status: int, why: str) -> Response:
        template = "login.html" if status == 401 else "refused.html"
        return renderer.bare(request, template, status, why=why)

    routes: list[BaseRoute] = [
        *OverviewPages(source.look, trends, renderer).routes(),
        *TopicPages(source.look, source.memory, renderer).routes(),
        *GroupPages(source.look, renderer).routes(),
        *MessagePages(source.memory, source.connect, renderer).routes(),
        *ChangePages(source.memory, source.connect, source.forget, renderer).routes(),
        *LetterPages(source.look, source.connect, source.forget, renderer).routes(),
        *WaitingPages(source.control, source.connect, renderer).routes(),
        *ProcessPages(source.look, renderer).routes(),
        *TracePages(source.connect, renderer).routes(),
        Mount("/static", StaticFiles(directory=HERE / "static")),
    ]
    application = Starlette(
        routes=routes, lifespan=lifespan, exception_handlers={ShmqError: failed, HTTPException: failed}
    )
    return Guard(application, access, refuse)


def _error_page(renderer: Renderer, request: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException):
        return renderer.page(request, "error.html", error.status_code, what=error.detail, hint="")
    hint = error.hint if isinstance(error, ShmqError) else ""
    return renderer.page(request, "error.html", status_of(error), what=str(error), hint=hint)


def status_of(error: Exception) -> int:
    """Return the HTTP status that says what kind of error it is."""
    if isinstance(error, NotFound):
        return 404
    if isinstance(error, PermissionDenied):
        return 403
    if isinstance(error, UsageError):
        return 400
    return 503 if isinstance(error, ConnectError) else 409
