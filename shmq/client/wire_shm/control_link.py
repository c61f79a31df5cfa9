"""One life of the control socket: dialled, spoken over, dead. A new life is a new object.

Every read and write has a deadline.

Invariants:
 1. A frame that was sent in part ends the link: the stream has no place to go on from.
 2. One thread reads; any thread may write, one at a time.
 3. `drop` in a forked child closes the child's copy only: the parent's connection does not notice.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import threading
import time
from struct import Struct
from typing import Final

from shmq.errors import BrokerNotRunning, ConnectError, PermissionDenied, RequestTimeout
from shmq.protocol.command import Command
from shmq.protocol.header import CommandDecoder, encode_command
from shmq.shm.descriptors import above_standard
from shmq.shm.discovery import others_text
from shmq.shm.place import Place
from shmq.waits import is_ready

_RECEIVE_BYTES = 64 << 10
_CREDENTIALS = Struct("iII")  # struct ucred
_BACKLOG_PAUSE = 0.005  # between two tries while the broker's queue of new connections is full


class ControlLink:
    """A connected control socket; times are seconds of the monotonic clock."""

    def __init__(self, connected: socket.socket, place: Place) -> None:
        self._socket = connected
        self._place = place
        self._decoder = CommandDecoder()
        self._writing = threading.Lock()
        _, self.broker_uid, _ = _CREDENTIALS.unpack(
            connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        )
        connected.setblocking(False)

    @classmethod
    def dial(cls, place: Place, deadline: float) -> ControlLink:
        """Connect to a broker's control socket.

        Raises:
            BrokerNotRunning: no process listens there, or none accepted before the deadline.
            PermissionDenied: the socket is not for us.
        """
        with above_standard:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            while True:
                try:
                    connection.connect(os.fspath(place.socket_path))
                    return cls(connection, place)
                except BlockingIOError:
                    if time.monotonic() >= deadline:
                        raise
                    time.sleep(_BACKLOG_PAUSE)
        except OSError as error:
            connection.close()
            raise _dial_error(place, error) from error

    def send(self, command: Command, deadline: float) -> None:
        """Write one command.

        Raises:
            ConnectError: the link is dead.
            RequestTimeout: the broker does not read; the link is dead if a part was written.
        """
        data = memoryview(encode_command(command))
        if not self._writing.acquire(timeout=max(0.0, deadline - time.monotonic())):
            raise self._timeout("another request is still being written")
        try:
            sent = 0
            while sent < len(data):
                try:
                    sent += self._socket.send(data[sent:], socket.MSG_NOSIGNAL)
                except BlockingIOError:
                    if not self._wait(deadline, writes=True):
                        if sent:
                            self.close()
                        raise self._timeout("the broker does not read its socket") from None
        except OSError as error:
            if isinstance(error, (ConnectError, RequestTimeout)):
                raise
            raise self._lost(error.strerror or str(error)) from error
        finally:
            self._writing.release()

    def receive(self, deadline: float | None) -> list[Command]:
        """Return the commands that have come, waiting until there is one; [] when the deadline passed.

        Raises:
            ConnectError: the broker has closed the connection.
            ProtocolError: the broker broke the format.
        """
        while True:
            commands: list[Command] = []
            while (command := self._decoder.take()) is not None:
                commands.append(command)
            if commands:
                return commands
            if not self._wait(deadline):
                return []
            try:
                data = self._socket.recv(_RECEIVE_BYTES)
            except BlockingIOError:
                continue
            except OSError as error:
                raise self._lost(error.strerror or str(error)) from error
            if not data:
                raise self._lost("the broker closed it")
            self._decoder.feed(data)

    def _wait(self, deadline: float | None, *, writes: bool = False) -> bool:
        descriptor = self._socket.fileno()
        if descriptor < 0:
            raise self._lost("it is closed")
        return is_ready(descriptor, None if deadline is None else deadline - time.monotonic(), writes=writes)

    def close(self) -> None:
        """End the connection; a thread that waits in `receive` sees it end."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def finish(self) -> None:
        """End the connection and give up its descriptor; for the thread that reads."""
        self.close()
        with self._writing:  # the descriptor's number may be used again, so a writer ends first; `close` has woken it
            self._socket.close()

    def drop(self) -> None:
        """In a forked child: give up the descriptor only. No lock, the thread that held it does not exist here."""
        with contextlib.suppress(OSError):
            self._socket.close()

    def _lost(self, reason: str) -> ConnectError:
        return BrokerNotRunning(
            f'the connection to broker "{self._place.broker_name}" is gone: {reason}',
            hint="it is made again as soon as the broker is back; see: shmq health",
        )

    def _timeout(self, reason: str) -> RequestTimeout:
        return RequestTimeout(f"a request could not be sent in time: {reason}", hint="see: shmq health")


_ADMISSION: Final = (
    "run as the broker's user or as a member of its group (usermod -aG shmq USER; where there is no such group: "
    "groupadd shmq, the broker's user in it, and start the broker again); or connect over TCP: rocketmq://127.0.0.1:9876"
)


def _dial_error(place: Place, error: OSError) -> ConnectError:
    path, name = place.socket_path, place.broker_name
    if error.errno in (errno.EACCES, errno.EPERM):
        try:
            status = os.stat(path)
            owner = f"it belongs to uid {status.st_uid}, gid {status.st_gid}, mode {status.st_mode & 0o7777:04o}"
        except OSError:
            owner = f"the directory {path.parent} may not be entered"
        return PermissionDenied(
            f'the socket of broker "{name}" at {path} excludes uid {os.geteuid()}: {owner}', hint=_ADMISSION
        )
    reasons = {
        errno.ENOENT: f"{path} does not exist",
        errno.ECONNREFUSED: f"no process listens at {path}",
        errno.EAGAIN: f"no process accepted the connection at {path}",
    }
    reason = reasons.get(error.errno or 0, f"{path}: {error.strerror or error}")
    start = "shmq serve" if name == "default" else f"shmq serve --name {name}"
    return BrokerNotRunning(f'broker "{name}" is not running: {reason}{others_text(place)}', hint=f"start it: {start}")
