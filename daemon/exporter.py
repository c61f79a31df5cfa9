"""The exporter: a broker's metrics over HTTP, for Prometheus and whatever else reads OpenMetrics.

It gives one answer a connection, takes small requests only and drops slow ones. It is a process of its own and only
reads shared memory, so a scrape costs the bridge and the keeper nothing, and what it says about them stays true when
they are stopped or dead.

    GET /metrics      200  OpenMetrics text        503  no broker: the reason
    anything else     404, 405, 400, 431

Rules: (1) loopback, unless the broker was started with --insecure: metrics have no accounts;
(2) a request has at most 8 KiB and 5 s, there are at most 16 at a time, and nothing is gathered more often than each
quarter of a second;
(3) a port the kernel chose is taken again by the next exporter.
"""

import asyncio
import contextlib
import os
import time
from collections.abc import Callable

from shmq.addresses import parse_address
from shmq.daemon.bridge.event_loop import run_loop, stop_event
from shmq.daemon.bridge.sockets.security import is_loopback
from shmq.daemon.bridge.sockets.tcp_listener import TcpListener
from shmq.daemon.event_log import EventLog
from shmq.daemon.tether import Tether
from shmq.errors import ShmqError, UsageError
from shmq.exit_code import ExitCode
from shmq.metrics.exposition import CONTENT_TYPE
from shmq.metrics.report import MetricsReport
from shmq.options.broker import Options
from shmq.shm.access import UMASK, access_rights
from shmq.shm.addresses import read_addresses, write_addresses
from shmq.shm.place import Place

METRICS = "metrics"  # the name of our address

_REQUEST_BYTES_MAX = 8192
_REQUEST_SECONDS = 5.0
_CONNECTIONS_MAX = 16
_FRESH_SECONDS = 0.25
_REASONS = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    431: "Request Header Fields Too Large",
    503: "Service Unavailable",
}


class Exporter:
    """Answers scrapes; lives inside one event loop."""

    def __init__(self, text: Callable[[], str], log: EventLog) -> None:
        """
        Args:
            text: gathers; raises ShmqError when there is nothing to be had.
        """
        self._text = text
        self._log = log
        self._connections = 0
        self._fresh: tuple[float, int, bytes] | None = None

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one connection."""
        if self._connections >= _CONNECTIONS_MAX:
            writer.transport.abort()
            return
        self._connections += 1
        try:
            async with asyncio.timeout(_REQUEST_SECONDS):
                writer.write(_response(*await self._answer(reader)))
                await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError):
            writer.transport.abort()
        finally:
            self._connections -= 1
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader) -> tuple[int, bytes, bool]:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            return 431, b"the request is too long\n", False
        method, _, rest = head.partition(b"\r\n")[0].partition(b" ")
        target, _, version = rest.partition(b" ")
        if not version.startswith(b"HTTP/1."):
            return 400, b"this is not HTTP/1\n", False
        if method not in (b"GET", b"HEAD"):
            return 405, b"GET /metrics\n", False
        if target.partition(b"?")[0] != b"/metrics":
            return 404, b"GET /metrics\n", method == b"HEAD"
        status, body = self._metrics()
        return status, body, method == b"HEAD"

    def _metrics(self) -> tuple[int, bytes]:
        now = time.monotonic()
        if self._fresh is None or now - self._fresh[0] > _FRESH_SECONDS:
            try:
                self._fresh = now, 200, self._text().encode()
            except ShmqError as error:
                self._fresh = now, 503, f"{error}\n".encode()
        return self._fresh[1:]


def _response(status: int, body: bytes, is_head: bool) -> bytes:
    kind = CONTENT_TYPE if status == 200 else "text/plain; charset=utf-8"
    head = (
        f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
        "Connection: close\r\n\r\n"
    )
    return head.encode() + (b"" if is_head else body)


def check_metrics_exposure(options: Options) -> None:
    """Refuse an address that others reach, unless that is wanted.

    Raises:
        UsageError: it is not.
    """
    host, _ = parse_address(options.metrics, name=METRICS)
    if not is_loopback(host) and not options.insecure:
        raise UsageError(
            f"metrics on {host} without accounts: any client that reaches it could read the names of topics and groups",
            hint="--metrics PORT listens on loopback; or --insecure where the network is trusted",
        )


def metrics_path_before(place: Place) -> str:
    """Return where the last exporter of this broker listened, "" when there was none."""
    return read_addresses(place.metrics_path).get(METRICS, "")


def run_exporter(place: Place, options: Options, *, tether: Tether, log: EventLog) -> int:
    """Serve scrapes until SIGTERM; return the exit status."""
    os.umask(UMASK)
    try:
        check_metrics_exposure(options)
        listener = _listener(options, metrics_path_before(place))
    except ShmqError as error:
        return tether.failed(error, log, "exporter.failed")
    with contextlib.closing(listener), contextlib.closing(MetricsReport(place)) as report:
        return run_loop(_serve(place, listener, Exporter(report.text, log), tether, log), log)


def _listener(options: Options, address_before: str) -> TcpListener:
    host, port = parse_address(options.metrics, name=METRICS)
    if port == 0 and address_before:
        with contextlib.suppress(ShmqError):
            return TcpListener(host, parse_address(address_before)[1])
    return TcpListener(host, port)


async def _serve(place: Place, listener: TcpListener, exporter: Exporter, tether: Tether, log: EventLog) -> int:
    stop = stop_event(tether.stopping)
    access = access_rights()
    server = await asyncio.start_server(exporter.serve, sock=listener.socket, limit=_REQUEST_BYTES_MAX)
    write_addresses(place.metrics_path, {METRICS: str(listener.address)}, mode=access.read_mode, gid=access.gid)
    log("exporter.listens", metrics=str(listener.address))
    tether.ready(metrics=str(listener.address))
    try:
        await stop.wait()
    finally:
        server.close()
    return ExitCode.DONE
