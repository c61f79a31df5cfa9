"""The I/O thread of one remote connection: its event loop, its channels by address, TLS and signatures.

    any thread ──submit(coroutine)──▶ I/O thread (an event loop of its own) ──▶ channels
                ◀──concurrent future──

Invariants:
    (1) one channel for each address, made at its first use;
    (2) after `stop()` no socket, task or thread is left;
    (3) in a forked child nothing of the loop is touched: it is the parent's.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import socket
import ssl
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from typing import Any, Final, TypeVar

from shmq.addresses import Address
from shmq.client.background import begun, started
from shmq.client.place import RemoteOptions
from shmq.client.wire import LOG
from shmq.client.wire_tcp.channel import Channel
from shmq.client.wire_tcp.tls import refusal, speaks_tls, tls_context
from shmq.errors import BrokerNotRunning, ConnectError, PermissionDenied, RequestTimeout, ShmqError, UsageError
from shmq.protocol.acl import sign
from shmq.protocol.command import Command
from shmq.shm.descriptors import above_standard
from shmq.waits import check_patches, greenlet_library

ResultT = TypeVar("ResultT")
_MARGIN_SECONDS: Final = 1.0
"""More than the work's own deadline, which gives the better error."""
_ROUND_SECONDS: Final = 1.0
"""In which the I/O thread gets to something new, if it is not stuck."""

_abandoned: list[object] = []  # loops of a parent: kept, since collecting one would touch what it shares with us


def _refuse_second_loop() -> None:
    """Make no connection whose event loop could not run beside one that does, where threads are greenlets.

    Raises:
        UsageError: this real thread runs one, that of another connection or the program's own.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    if library := greenlet_library():
        raise UsageError(
            f"{library} has made greenlets of this program's threads, and asyncio runs one event loop in a real "
            "thread: one runs already, that of another connection over TCP or the program's own",
            hint="use one connection for all greenlets, or patch_all(thread=False, queue=False, select=False)",
        )


class Network:
    """Requests to addresses, from any thread."""

    def __init__(
        self,
        options: RemoteOptions,
        *,
        connect_timeout: float,
        on_request: Callable[[Channel, Command], None],
        on_reconnect: Callable[[Address], None],
    ) -> None:
        check_patches("select", "the event loop of a connection over TCP")
        _refuse_second_loop()
        self._options = options
        self._tls = tls_context(options)
        self._connect_timeout = connect_timeout
        self._on_request = on_request
        self._on_reconnect = on_reconnect
        self._pid = os.getpid()
        self._channels: dict[Address, Channel] = {}
        self._dialling: dict[Address, asyncio.Task[Channel]] = {}
        self._known: set[Address] = set()
        self._stopped = False
        self._tasks: set[asyncio.Task[Any]] = set()
        with above_standard:
            # asyncio's own, whatever loops the program's policy makes: their transports may be of other classes.
            self.loop = asyncio.SelectorEventLoop()
        self._thread = threading.Thread(target=self._run, name="shmq-remote", daemon=True)
        try:
            started(self._thread)
        except BaseException:
            self.loop.close()
            raise

    def _run(self) -> None:
        self.loop.run_forever()
        self.loop.run_until_complete(self._finish())
        self.loop.close()

    # -- from any thread
    @property
    def is_own_thread(self) -> bool:
        """Whether the caller is the I/O thread, which must not wait for itself."""
        return threading.current_thread() is self._thread

    def submit(self, work: Coroutine[Any, Any, ResultT]) -> Future[ResultT]:
        """Run a coroutine on the I/O thread.

        Raises:
            UsageError: the connection is closed, or belongs to the parent of this process.
        """
        is_ours = self._pid == os.getpid()
        if is_ours and not self._stopped:
            with contextlib.suppress(RuntimeError):  # closed in this moment
                return asyncio.run_coroutine_threadsafe(work, self.loop)
        work.close()
        whose = "is closed" if is_ours else f"belongs to process {self._pid}, the parent of {os.getpid()}"
        raise UsageError(f"the connection {whose}", hint="connect again with shmq.connect()")

    def call(self, work: Coroutine[Any, Any, ResultT], timeout: float) -> ResultT:
        """Run a coroutine that should end by itself within `timeout` seconds, and return its result.

        Raises:
            RequestTimeout: it did not.
            BrokerNotRunning: the I/O thread does not run.
        """
        future = self.submit(work)
        try:
            return future.result(timeout + _MARGIN_SECONDS)
        except TimeoutError as error:
            if isinstance(error, ShmqError) or future.done():
                raise
            future.cancel()
            raise self._overdue(timeout) from error
        except CancelledError as error:
            raise closed_meanwhile() from error

    def _overdue(self, timeout: float) -> ShmqError:
        """Return the error of work that has not ended in its time: that of the I/O thread, where it is stuck."""
        runs = threading.Event()
        self.soon(runs.set)
        if not runs.wait(_ROUND_SECONDS):
            return BrokerNotRunning("the connection's thread does not run", hint="see where it is stuck")
        late = RequestTimeout(
            f"not all answers came within {timeout:g} s",
            hint="give them more time with timeout=10, or look at the brokers: shmq cluster status",
        )
        late.maybe_stored = True
        return late

    def soon(self, work: Callable[[], None]) -> None:
        """Call something on the I/O thread; nothing happens after the end."""
        if not self._stopped and self._pid == os.getpid():
            with contextlib.suppress(RuntimeError):  # closed in this moment
                self.loop.call_soon_threadsafe(work)

    def stop(self, timeout: float) -> None:
        """End everything; waits at most `timeout` seconds. Twice is harmless."""
        if self._stopped or self._pid != os.getpid():
            return
        self._stopped = True
        self.loop.call_soon_threadsafe(self.loop.stop)
        if not self.is_own_thread:
            self._thread.join(timeout)

    def abandon(self) -> None:
        """In a forked child: let go of the sockets."""
        _abandoned.append(self.loop)
        for channel in list(self._channels.values()):
            channel.drop()
        self._channels = {}

    # -- on the I/O thread
    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a task until it ends or the connection does."""
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            LOG.error("a task of a remote connection failed", exc_info=error)

    def connected(self) -> list[Address]:
        """Return the addresses there is a channel to."""
        return list(self._channels)

    async def request(self, address: Address, command: Command, timeout: float) -> Command:
        """Ask the process at an address, and return the answer, whatever its code is.

        Raises:
            BrokerNotRunning: no process listens there, or the connection ended.
            PermissionDenied: TLS was refused.
            RequestTimeout: no answer in time.
        """
        started = self.loop.time()
        channel = await self.channel(address, timeout)
        end = started + timeout
        try:
            return await channel.request(self._signed(command), max(0.001, end - self.loop.time()))
        except BrokerNotRunning as error:
            is_plain = self._tls is None and channel.ended and not channel.has_heard
            if is_plain and await speaks_tls(address, max(0.001, end - self.loop.time())):
                raise PermissionDenied(f"{address} takes no connection without TLS", hint="tls=true") from error
            raise

    def give_up_held(self, address: Address) -> None:
        """Wait no more for what the process at an address may hold: it may stand still, or be cut off."""
        if (channel := self._channels.get(address)) is not None:
            channel.give_up_held()

    async def notify(self, address: Address, command: Command, timeout: float) -> None:
        """Send a oneway command."""
        channel = await self.channel(address, timeout)
        await channel.notify(self._signed(command), timeout)

    async def channel(self, address: Address, timeout: float) -> Channel:
        """Return the channel to an address, making it if there is none."""
        channel = self._channels.get(address)
        if channel is not None and not channel.ended:
            return channel
        task = self._dialling.get(address)
        if task is None:
            task = self._dialling[address] = self.loop.create_task(self._dial(address))
            task.add_done_callback(lambda _: self._dialling.pop(address, None))
            task.add_done_callback(look_at)
        try:
            async with asyncio.timeout(timeout):
                return await asyncio.shield(task)
        except TimeoutError:
            raise _unreachable(address, f"no connection within {timeout:g} s") from None

    def _signed(self, command: Command) -> Command:
        options = self._options
        if options.access_key:
            command.ext = sign(
                command.ext,
                command.body,
                access_key=options.access_key,
                secret_key=options.secret_key,
                token=options.security_token,
            )
        return command

    async def _dial(self, address: Address) -> Channel:
        connected: socket.socket | None = None
        try:
            async with asyncio.timeout(self._connect_timeout):
                connected = await self._connect(address)
                channel = Channel(address, connected, self._on_request, self._lost)
                await self.loop.create_connection(
                    lambda: channel, sock=connected, ssl=self._tls, server_hostname=address.host if self._tls else None
                )
        except TimeoutError:
            _close(connected)
            raise _unreachable(address, f"no connection within {self._connect_timeout:g} s") from None
        except OSError as error:
            _close(connected)
            is_broken_off = connected is not None and self._tls is not None and isinstance(error, ConnectionError)
            if isinstance(error, ssl.SSLError) or is_broken_off:
                raise await refusal(address, error) from error
            raise _unreachable(address, error.strerror or str(error)) from error
        self._channels[address] = channel
        if address in self._known:
            self._on_reconnect(address)
        self._known.add(address)
        return channel

    async def _connect(self, address: Address) -> socket.socket:
        with above_standard:  # it opens sockets and files
            found = await _found(address)
        failure: OSError | None = None
        for family, kind, protocol, _, target in found:
            with above_standard:
                candidate = socket.socket(family, kind, protocol)
            try:
                candidate.setblocking(False)
                candidate.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                await self.loop.sock_connect(candidate, target)
                return candidate
            except BaseException as error:
                candidate.close()
                if not isinstance(error, OSError):
                    raise
                failure = error
        raise failure or OSError("the name has no address")

    def _lost(self, channel: Channel) -> None:
        if self._channels.get(channel.address) is channel:
            del self._channels[channel.address]

    async def _finish(self) -> None:
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for channel in list(self._channels.values()):
            channel.close()
        while self._channels:  # a closed transport tells its channel in the next rounds of the loop
            await asyncio.sleep(0)
            if all(channel.ended for channel in self._channels.values()):
                break
            await asyncio.sleep(0.001)


async def _found(address: Address) -> list[Any]:
    """Look an address up: a number here, a name on a thread of its own, as a name service may take long."""
    look = functools.partial(socket.getaddrinfo, address.host, address.port, type=socket.SOCK_STREAM)
    with contextlib.suppress(socket.gaierror):
        return look(flags=socket.AI_NUMERICHOST)
    try:
        looking = begun(look, name="shmq-look-up")
    except ConnectError:  # the process ends: nothing else has to go on
        return look()
    return await asyncio.wrap_future(looking)


def _close(connected: socket.socket | None) -> None:
    if connected is not None:
        connected.close()


def _unreachable(address: Address, reason: str) -> BrokerNotRunning:
    return BrokerNotRunning(
        f"{address} cannot be reached: {reason}", hint="is it running, and is this the address clients reach?"
    )


def countdown(loop: asyncio.AbstractEventLoop, seconds: float) -> Callable[[], float]:
    """Return what says how many of some seconds are left, a millisecond at least: for what waits several times."""
    end = loop.time() + seconds
    return lambda: max(0.001, end - loop.time())


def look_at(task: asyncio.Task[Any]) -> None:
    """Keep asyncio from reporting the failure of a shared task that no caller awaits any more."""
    if not task.cancelled():
        task.exception()


def closed_meanwhile() -> BrokerNotRunning:
    """Return the error of a request whose connection another thread has closed; a send may have been stored."""
    error = BrokerNotRunning(
        "the connection was closed before the answer came", hint="shmq.connect() makes another one"
    )
    error.maybe_stored = True
    return error
