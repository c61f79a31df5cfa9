"""The transport: one connection to a broker for each process, and one inbox for each of kombu's connections."""

from __future__ import annotations

import _thread
import contextlib
import os
import socket
import threading
import time
import weakref
from collections.abc import Mapping
from queue import Empty, SimpleQueue
from typing import Any, ClassVar, Final

from kombu.transport import virtual

from shmq import Connection, connect
from shmq.contrib.kombu.channel import Channel, Item
from shmq.contrib.kombu.sources import Place
from shmq.errors import ShmqError, TopicNotFound
from shmq.version import __version__

NAME: Final = "shmq"
NAME_SHOWN: Final = "kombu"
"""What `shmq top` calls the connections."""


class _Shared:
    """One connection for each process and broker, closed when the last transport leaves it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[tuple[int, str | None], tuple[Connection, int]] = {}

    def take(self, url: str | None) -> Connection:
        """Return the connection to a broker."""
        key = os.getpid(), url
        with self._lock:
            known, users = self._open.get(key, (None, 0))
            mq = known or connect(url, name=NAME_SHOWN)
            self._open[key] = mq, users + 1
        return mq

    def leave(self, url: str | None) -> None:
        """Give it up for one transport."""
        key = os.getpid(), url
        with self._lock:
            if key not in self._open:
                return  # a forked child's parent has it
            mq, users = self._open.pop(key)
            if users > 1:
                self._open[key] = mq, users - 1
                return
        mq.close()


_shared = _Shared()


def _left_elsewhere(url: str | None) -> None:
    """A transport was collected, in any thread and at any time: maybe in one that just takes a connection."""
    with contextlib.suppress(RuntimeError):  # the process is about to end
        _thread.start_new_thread(_shared.leave, (url,))


class Transport(virtual.Transport):
    """kombu's view of a shmq broker."""

    Channel = Channel
    driver_type = NAME
    driver_name = NAME
    can_parse_url = True  # so the connection's host name is the whole URL
    connection_errors = (*virtual.Transport.connection_errors, ShmqError)
    channel_errors = (*virtual.Transport.channel_errors, TopicNotFound)
    implements = virtual.Transport.implements.extend(
        asynchronous=False, exchange_type=frozenset(["direct", "topic", "fanout"]), priorities=False
    )
    default_connection_params: ClassVar[Mapping[str, Any]] = {"hostname": f"{NAME}://"}

    def __init__(self, client: Any, **options: Any) -> None:
        super().__init__(client, **options)
        self.inbox: SimpleQueue[Item] = SimpleQueue()
        self.places: dict[str, dict[str, Place]] = {}
        """Of each transient queue of this connection, by the exchanges that it is bound to."""
        self.foreign_count = 0
        """How many messages were set aside because no kombu has written them."""
        self.has_warned_of_priorities = False
        self._url = url_of(client)
        self._mq: Connection | None = None
        self._leave: Any = None

    @property
    def mq(self) -> Connection:
        """The connection to the broker, which the transports of a process share."""
        if self._mq is None:
            self._mq = _shared.take(self._url)
            self._leave = weakref.finalize(self, _left_elsewhere, self._url)
            self._leave.atexit = False  # connections say goodbye by themselves
        return self._mq

    def connected(self) -> Connection:
        """Return a new connection to the broker."""
        return connect(self._url, name=NAME_SHOWN)

    def driver_version(self) -> str:
        """Return shmq's version."""
        return __version__

    def drain_events(self, connection: Any, timeout: float | None = None) -> None:
        """Deliver one message.

        Raises:
            TimeoutError: none came in time.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            left = None if deadline is None else deadline - time.monotonic()
            try:
                item = self.inbox.get_nowait() if left is not None and left <= 0 else self.inbox.get(timeout=left)
            except Empty:
                raise socket.timeout(f"no message within {timeout} s") from None  # noqa: UP041 - kombu's word for it
            if item.channel.deliver(item):
                return

    def close_connection(self, connection: Any) -> None:
        """Close all channels."""
        super().close_connection(connection)
        while self.places:
            for place in self.places.popitem()[1].values():
                place.close()
        if self._leave is not None:
            self._mq = None
            if self._leave.detach() is not None:
                _shared.leave(self._url)


def url_of(client: Any) -> str | None:
    """Return where `shmq.connect` finds the broker that a kombu connection names; None is the default broker."""
    url = client.transport_options.get("url") or client.hostname or ""
    return str(url) if "://" in url and url != f"{NAME}://" else None
