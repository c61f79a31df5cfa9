"""`shmq console`: a broker of this host in a browser, until Ctrl-C or SIGTERM."""

from __future__ import annotations

import secrets
import sys
from typing import TYPE_CHECKING

import click

from shmq.errors import UsageError
from shmq.tools.command import Call, Command, pass_call
from shmq.tools.console.access import Access, Listen, parse_listen

if TYPE_CHECKING:
    import socket

    from starlette.types import ASGIApp

    from shmq.tools.console.source import Source


@click.command(cls=Command)
@click.argument("name", metavar="[NAME]", required=False)
@click.option(
    "--listen", default="127.0.0.1:8080", show_default=True, metavar="HOST:PORT", help="Where browsers connect."
)
@click.option(
    "--token",
    metavar="TOKEN",
    envvar="SHMQ_CONSOLE_TOKEN",
    help="What visitors have to know; without it a new one is made and printed.  [$SHMQ_CONSOLE_TOKEN]",
)
@click.option("--no-token", is_flag=True, help="Let every user of this host in; on loopback only.")
@click.option("--read-only", is_flag=True, help="Show everything, change nothing.")
@click.option(
    "--allow-host", "names", multiple=True, metavar="HOST", help="A name of a proxy in front; may be repeated."
)
@pass_call
def console(
    call: Call,
    name: str | None,
    listen: str,
    token: str | None,
    no_token: bool,
    read_only: bool,
    names: tuple[str, ...],
) -> None:
    """Show broker NAME in a browser: health, topics, groups, messages; and change it.

    Beyond loopback it needs --token, and a proxy that speaks TLS in front of it.
    """
    if token is not None and no_token:
        raise UsageError("--token and --no-token contradict each other", hint="leave one out")
    _need_libraries()
    place = parse_listen(listen)
    made = None if token is not None or no_token or not place.is_loopback else secrets.token_urlsafe(16)
    from shmq.tools.console.application import make_application
    from shmq.tools.console.source import Source

    source = Source(f"shmq://{name}" if name is not None else call.url)
    listener = _bound(place)
    at = place._replace(port=listener.getsockname()[1])
    access = Access(at, token or made, read_only=read_only, names=names)
    _tell(call, source, at, made, read_only=read_only)
    _run(make_application(source, access), listener)


def _need_libraries() -> None:
    try:
        import jinja2  # noqa: F401
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise UsageError(
            f"the console needs {error.name}, which is not installed", hint="pip install 'shmq[console]'"
        ) from error


def _bound(place: Listen) -> socket.socket:
    import socket

    try:
        return socket.create_server(
            (place.host, place.port), family=socket.AF_INET6 if ":" in place.host else socket.AF_INET
        )
    except (OSError, OverflowError) as error:
        raise UsageError(
            f"{place.host}:{place.port} cannot be listened on: {error}", hint="another port: --listen 127.0.0.1:0"
        ) from error


def _tell(call: Call, source: Source, at: Listen, made: str | None, *, read_only: bool) -> None:
    url = at.url + (f"?token={made}" if made else "")
    if call.terminal.structured:
        call.terminal.document({"url": url, "broker": source.url, "read_only": read_only})
    else:
        what = "read only" if read_only else "can change it"
        call.terminal.line(f"console of {source.url} ({what}), Ctrl-C ends it:")
        call.terminal.line(f"  {url}")
    sys.stdout.flush()


def _run(application: ASGIApp, listener: socket.socket) -> None:
    import gc

    import uvicorn

    # A look makes and drops tens of thousands of tuples that nothing refers back to; to search among them for circles
    # would be a tenth of each page.
    gc.freeze()
    gc.set_threshold(200_000, 10, 10)
    config = uvicorn.Config(
        application,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        ws="none",
        lifespan="on",
        timeout_graceful_shutdown=3,
    )
    uvicorn.Server(config).run(sockets=[listener])
