"""Requests to the broker over a control socket that comes back by itself: attaching, answers, and a background thread.

    connected --- socket dies --> away --- 20 ms, 40 ms ... 1 s between tries --> attached again --> the watcher
        |                          |
        +-- request --> answer     +-- request waits for the link, until its deadline

One background thread reads the socket, makes new links and calls the callbacks. A callback may ask the broker: the
thread then reads on until the answer is there, and other callbacks wait.

Invariants:
 1. Every wait but the background thread's own has a deadline.
 2. A request whose link broke is sent again over the next one: it may be served twice, it is never lost silently. What
    is refused then says in `maybe_stored` that the earlier try may have been served.
 3. In a forked child every method refuses, and nothing of the parent's connection is touched.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

import msgspec

from shmq.client.background import started
from shmq.client.wire import UNWATCHED, guarded
from shmq.client.wire_shm.control_link import ControlLink
from shmq.delay_levels import DEFAULT_DELAY_LEVELS
from shmq.errors import BrokerNotRunning, ConnectError, ProtocolError, RequestTimeout, ShmqError, UsageError
from shmq.protocol.body import decode_body
from shmq.protocol.codes import Request
from shmq.protocol.command import Command
from shmq.protocol.failure import reply_of
from shmq.shm.core import ABI
from shmq.shm.discovery import is_served
from shmq.shm.instance import Instance
from shmq.shm.liveness import own_mark, pid_namespace
from shmq.shm.place import Place
from shmq.timing import MAX_DELAY_SECONDS
from shmq.version import __version__
from shmq.waits import check_patches, greenlet_library

_RECONNECT_PAUSE_MIN = 0.02
_RECONNECT_PAUSE_MAX = 1.0
_CLOSE_TIMEOUT = 1.0
_OPAQUE_END = 1 << 31


@dataclass(frozen=True)
class Attachment:
    """The broker's answer to ATTACH. `client_slot` is -1 for a client without a role."""

    instance: Instance
    client_slot: int
    slot_generation: int  # in which of its lives the slot is ours
    auto_create: bool
    default_queues: int
    wait_durable: bool
    delay_levels: str  # RocketMQ's messageDelayLevel
    timer_max_delay_seconds: int
    broker_uid: int  # whose segments they must be
    cluster: str


class _AttachBody(msgspec.Struct):
    instance: dict[str, Any]
    clientSlot: int
    slotGeneration: int
    autoCreate: bool
    defaultQueues: int
    waitDurable: bool
    cluster: str = "DefaultCluster"
    messageDelayLevel: str = DEFAULT_DELAY_LEVELS
    timerMaxDelaySec: int = MAX_DELAY_SECONDS


def attachment_of(reply: Command, broker_uid: int) -> Attachment:
    """Read the answer to ATTACH.

    Raises:
        ProtocolError: it is none.
    """
    body = decode_body(reply.body, _AttachBody)
    return Attachment(
        instance=Instance.from_object(body.instance),
        client_slot=body.clientSlot,
        slot_generation=body.slotGeneration,
        auto_create=body.autoCreate,
        default_queues=body.defaultQueues,
        wait_durable=body.waitDurable,
        delay_levels=body.messageDelayLevel,
        timer_max_delay_seconds=body.timerMaxDelaySec,
        broker_uid=broker_uid,
        cluster=body.cluster,
    )


class _Waiter:
    """One request that waits for its answer; `then` gets it where no thread waits."""

    __slots__ = ("done", "link", "reply", "then")

    def __init__(self, link: ControlLink, then: Callable[[Command | None], None] | None = None) -> None:
        self.link = link
        self.then = then
        self.reply: Command | None = None  # None after `done`: the link broke
        self.done = threading.Event()

    def end(self, reply: Command | None) -> None:
        """Hand over the answer, or that there will be none."""
        if reply is not None:
            self.reply = reply
        self.done.set()
        if self.then is not None:
            guarded(self.then, reply)


_clients: weakref.WeakSet[ControlChannel] = weakref.WeakSet()


def _in_child() -> None:
    for client in list(_clients):
        client.abandon()


os.register_at_fork(after_in_child=_in_child)


class ControlChannel:
    """Requests, answers and notices of one client; made by `connect`, usable from any thread."""

    def __init__(self, place: Place, *, client_id: str, role: int, timeout: float) -> None:
        self.place = place
        self.client_id = client_id
        self.role = role
        self.watcher = UNWATCHED
        self.on_check: Callable[[Command], None] | None = None  # a broker asks how a transaction ended; must not wait
        self.last_error: ShmqError | None = None  # why the last try to reconnect failed
        self.attachment: Attachment
        self._timeout = timeout
        self._pid = os.getpid()
        self._changed = threading.Condition()  # guards everything below
        self._link: ControlLink | None = None
        self._waiters: dict[int, _Waiter] = {}
        self._opaque = 0
        self._closing = threading.Event()
        self._notices: deque[str] = deque()
        self._thread: threading.Thread | None = None

    @classmethod
    def connect(cls, place: Place, *, client_id: str, role: int, timeout: float) -> Self:
        """Attach to a broker; `timeout` in seconds also bounds each later try to reconnect, and each request.

        Raises:
            BrokerNotRunning, PermissionDenied: no usable socket there; while the broker's supervisor lives, its server
                is only being started again, which is waited for.
            VersionMismatch, ForeignNamespace: this process may not map the broker's segments.
            ConnectError: the client id is in use.
            RequestTimeout: the broker accepted, but did not answer.
            UsageError: threads are greenlets, and our own would let none of them run.
        """
        if greenlet_library():
            check_patches("select", "a connection")
        client = cls(place, client_id=client_id, role=role, timeout=timeout)
        deadline = time.monotonic() + timeout
        while True:
            try:
                client._link, client.attachment = client._attach(deadline)
                break
            except ConnectError as error:
                # The holder of our id may have died a moment ago, and the broker not have looked yet; or the broker
                # starts its server again just now.
                may_pass = type(error) is ConnectError or (type(error) is BrokerNotRunning and is_served(place))
                if not may_pass or time.monotonic() + _RECONNECT_PAUSE_MIN >= deadline:
                    raise
                time.sleep(_RECONNECT_PAUSE_MIN)
        _clients.add(client)
        client._thread = threading.Thread(target=client._run, name="shmq-control", daemon=True)
        try:
            started(client._thread)
        except BaseException:
            client._link.finish()
            raise
        return client

    @property
    def alive(self) -> bool:
        """Whether the broker is connected right now."""
        return self._link is not None and not self._closing.is_set() and self._pid == os.getpid()

    def is_attached_anew(self, before: Attachment, seconds: float) -> bool:
        """Wait until the broker has answered another attachment than one; False where it does not in time."""
        if self._is_reader:
            return False  # the thread that would do it
        with self._changed:
            self._changed.wait_for(lambda: self.attachment is not before or self._closing.is_set(), seconds)
        return self.attachment is not before

    # -- requests

    def request(
        self, code: int, ext: Mapping[str, str] | None = None, body: bytes = b"", timeout: float | None = None
    ) -> Command:
        """Ask the broker and return its answer. While the broker is away the request waits for it.

        Without `timeout` it has as long as `connect` had.

        Raises:
            BrokerNotRunning: it did not come back in time.
            RequestTimeout: it did not answer in time.
            ShmqError: it refused; the type says why.
        """
        deadline = time.monotonic() + (self._timeout if timeout is None else timeout)
        is_repeated = False
        while True:
            link = self._usable_link(deadline)
            try:
                reply = self._exchange(link, Command(code=code, ext=dict(ext or {}), body=body), deadline)
            except BrokerNotRunning:
                if self._is_reader or self._closing.is_set() or time.monotonic() >= deadline:
                    raise
                self._lose(link)
                is_repeated = True
                continue
            try:
                return reply_of(reply)
            except ShmqError as error:
                error.maybe_stored |= is_repeated
                raise

    def begin(
        self, code: int, ext: Mapping[str, str], body: bytes = b"", *, then: Callable[[Command | None], None]
    ) -> None:
        """Ask the broker without waiting; `then` gets the answer, None when the link broke, on a thread that reads on.

        Raises:
            BrokerNotRunning: it is away now.
            RequestTimeout: it does not read.
        """
        deadline = time.monotonic() + self._timeout
        link = self._usable_link(0.0)
        waiter = _Waiter(link, then)
        command = Command(code=code, ext=dict(ext), body=body)
        self._enter(command, waiter)
        try:
            link.send(command, deadline)
        except (ConnectError, RequestTimeout):
            with self._changed:
                is_open = self._waiters.pop(command.opaque, None) is not None
            if is_open:  # else `then` knows already that the link broke
                raise

    def _enter(self, command: Command, waiter: _Waiter) -> None:
        with self._changed:
            command.opaque = self._opaque = (self._opaque + 1) % _OPAQUE_END
            self._waiters[command.opaque] = waiter

    @property
    def _is_reader(self) -> bool:
        return threading.current_thread() is self._thread

    def _check_usable(self) -> None:
        if self._pid != os.getpid():
            raise UsageError(
                f"this control connection belongs to process {self._pid}, not to its forked child {os.getpid()}",
                hint="connect again in the child",
            )
        if self._closing.is_set():
            raise UsageError("the control connection is closed", hint="connect again")

    def _usable_link(self, deadline: float) -> ControlLink:
        self._check_usable()
        with self._changed:
            # The background thread itself makes the links: it must not wait for one.
            while self._link is None and not self._is_reader and not self._closing.is_set():
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    break
                self._changed.wait(remaining)
            link = self._link
        if link is None:
            self._check_usable()
            reason = f": {self.last_error}" if self.last_error else ""
            raise BrokerNotRunning(
                f'broker "{self.place.broker_name}" is away{reason}',
                hint=(self.last_error.hint if self.last_error else "") or "see: shmq health",
            )
        return link

    def _exchange(self, link: ControlLink, command: Command, deadline: float) -> Command:
        waiter = _Waiter(link)
        self._enter(command, waiter)
        try:
            link.send(command, deadline)
            if self._is_reader:
                self._read_until(waiter, deadline)
            else:
                waiter.done.wait(max(0.0, deadline - time.monotonic()))
        finally:
            with self._changed:
                del self._waiters[command.opaque]
        if waiter.reply is not None:
            return waiter.reply
        if waiter.done.is_set():
            raise BrokerNotRunning("the connection broke before the answer came", hint="see: shmq health")
        raise RequestTimeout(
            f'broker "{self.place.broker_name}" did not answer request {command.code} in time', hint="see: shmq health"
        )

    def _read_until(self, waiter: _Waiter, deadline: float) -> None:
        """The background thread asks, so it has to read the answer itself."""
        while not waiter.done.is_set():
            commands = waiter.link.receive(deadline)
            if not commands:
                return
            self._dispatch(commands)

    # -- the background thread

    def _run(self) -> None:
        while not self._closing.is_set():
            link = self._link
            if link is None:
                self._reconnect()
                continue
            try:
                self._dispatch(link.receive(None))
                self._call_back()
            except (ConnectError, ProtocolError):
                self._lose(link)
                link.finish()
        link = self._link
        if link is not None:
            self._lose(link)
            link.finish()

    def _dispatch(self, commands: Iterable[Command]) -> None:
        for command in commands:
            if command.is_reply:
                with self._changed:
                    waiter = self._waiters.get(command.opaque)
                    if waiter is not None and waiter.then is not None:
                        del self._waiters[command.opaque]
                if waiter is not None:  # else its asker has given up
                    waiter.end(command)
            elif command.code == Request.NOTIFY_CONSUMER_IDS_CHANGED:
                group = command.ext.get("consumerGroup", "")
                if group and group not in self._notices:
                    self._notices.append(group)
            elif command.code == Request.CHECK_TRANSACTION_STATE and self.on_check is not None:
                guarded(self.on_check, command)

    def _call_back(self) -> None:
        while self._notices:
            guarded(self.watcher.members_changed, self._notices.popleft())

    def _lose(self, link: ControlLink) -> None:
        link.close()  # first: what is sent over it from now on fails, and waits for no answer
        with self._changed:
            if self._link is not link:
                return
            self._link = None
            ended = {opaque: waiter for opaque, waiter in self._waiters.items() if waiter.link is link}
            for opaque, waiter in ended.items():
                if waiter.then is not None:
                    del self._waiters[opaque]
        for waiter in ended.values():
            waiter.end(None)

    def _reconnect(self) -> None:
        pause = _RECONNECT_PAUSE_MIN
        while not self._closing.wait(pause):
            try:
                link, attachment = self._attach(time.monotonic() + self._timeout)
            except (ShmqError, OSError) as error:
                self.last_error = error if isinstance(error, ShmqError) else ConnectError(str(error))
                pause = min(2 * pause, _RECONNECT_PAUSE_MAX)
                continue
            self.last_error = None
            with self._changed:
                self.attachment = attachment
                self._link = link
            refused = self._register_again()
            with self._changed:
                self._changed.notify_all()
            if refused is not None:
                guarded(self.watcher.refused, refused)
            guarded(self.watcher.reconnected)
            return

    def _register_again(self) -> ShmqError | None:
        """Tell the broker, over a new link, what it has to know about us; return why it refused."""
        return None

    def _attach(self, deadline: float) -> tuple[ControlLink, Attachment]:
        """Dial and say who we are; no other thread uses the link yet."""
        link = ControlLink.dial(self.place, deadline)
        try:
            link.send(Command(code=Request.ATTACH, ext=self._identity()), deadline)
            attachment = attachment_of(reply_of(_first_reply(link, deadline)), link.broker_uid)
        except BaseException:
            link.finish()
            raise
        return link, attachment

    def _identity(self) -> dict[str, str]:
        ext = {
            "clientId": self.client_id,
            "role": str(int(self.role)),
            "version": __version__,
            "abi": str(ABI),
            "pidNamespace": str(pid_namespace()),
            "processStart": str(own_mark().start),
        }
        held = getattr(self, "attachment", None)
        if held is not None and held.client_slot >= 0:
            # The bridge may have been restarted: then the slot we wait on is still ours.
            ext |= {
                "clientSlot": str(held.client_slot),
                "slotGeneration": str(held.slot_generation),
                "generation": f"{held.instance.generation:016x}",
            }
        return ext

    # -- the end

    def close(self) -> None:
        """Leave the broker, which tells our groups; waits a second at most. Twice is harmless."""
        if self._pid != os.getpid() or self._closing.is_set():
            return
        with self._changed:
            self._closing.set()
            link = self._link
            self._changed.notify_all()
        if link is not None:
            link.close()
        if self._thread is not None and not self._is_reader:
            self._thread.join(_CLOSE_TIMEOUT)
        _clients.discard(self)

    def abandon(self) -> None:
        """In a forked child: let go of everything without telling the broker, it all belongs to the parent."""
        if self._pid != os.getpid():
            # No lock: the thread that held it at the time of the fork does not exist here.
            link, self._link = self._link, None
            if link is not None:
                link.drop()


def _first_reply(link: ControlLink, deadline: float) -> Command:
    while True:
        commands = link.receive(deadline)
        if not commands:
            raise RequestTimeout("the broker accepted the connection, but did not answer", hint="see: shmq health")
        for command in commands:
            if command.is_reply:
                return command
