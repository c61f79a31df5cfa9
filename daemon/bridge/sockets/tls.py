"""TLS on the ports that plain clients use: which connections are encrypted, and with what.

One port serves both kinds of client: the first byte of a connection says which it is. It is looked at with MSG_PEEK
before a transport is made, so a plain connection pays one system call, and only where TLS is on.

    first byte    disabled    permissive    enforcing
    0x16          closed      TLS           TLS           (a TLS handshake record; no remoting frame begins with it)
    other         plain       plain         closed

There is no certificate to test with: RocketMQ's own made every client accept anything.

Invariant: the byte is looked at, not taken; whoever reads the socket next reads it again.
"""

import asyncio
import contextlib
import socket
import ssl
from pathlib import Path

from shmq.daemon.bridge.sockets.watched_file import WatchedFile
from shmq.errors import UsageError

PERMISSIVE, ENFORCING = "permissive", "enforcing"
HANDSHAKE_BYTE = 0x16


class ServerTls:
    """A certificate, and whether plain connections are taken beside it."""

    def __init__(self, mode: str, *, certificate: Path, key: Path) -> None:
        """Read certificate and key.

        Raises:
            UsageError: a file that cannot be read, that others can read, or that does not fit the other.
        """
        assert mode in (PERMISSIVE, ENFORCING)
        self.mode = mode
        self._certificate = WatchedFile(certificate, is_secret=False)
        self._key = WatchedFile(key)
        self.context = self._load()

    def _load(self) -> ssl.SSLContext:
        for file in (self._certificate, self._key):
            file.read()  # for its checks: the context reads the paths itself
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
        try:
            # Without a callback OpenSSL would ask for the password of an encrypted key on the terminal.
            context.load_cert_chain(self._certificate.path, self._key.path, password=_no_password)
        except (OSError, ValueError) as error:
            reason = (
                error.strerror if isinstance(error, OSError) and not isinstance(error, ssl.SSLError) else str(error)
            )
            raise UsageError(
                f"the certificate {self._certificate.path} with the key {self._key.path} cannot be used: {reason}",
                hint="both in PEM form, the key without a password and belonging to the certificate",
            ) from error
        return context

    def reload_if_changed(self) -> bool:
        """Read both files again when one was replaced; connections from now on use them.

        Raises:
            UsageError: as at the start; the old ones stay in use.
        """
        if not self._key.has_changed() and not self._certificate.has_changed():
            return False
        self.context = self._load()
        return True

    async def context_for(self, accepted: socket.socket) -> ssl.SSLContext | None:
        """Wait for the first byte; return the context to encrypt with, or None for a plain connection.

        Raises:
            ConnectionError: the peer left, or is not taken without TLS.
        """
        first = await _first_byte(accepted)
        if first == HANDSHAKE_BYTE:
            return self.context
        if self.mode == ENFORCING:
            raise ConnectionError("a plain connection where TLS is enforced")
        return None


async def _first_byte(accepted: socket.socket) -> int:
    loop = asyncio.get_running_loop()
    while True:
        with contextlib.suppress(BlockingIOError, InterruptedError):
            data = accepted.recv(1, socket.MSG_PEEK)
            if not data:
                raise ConnectionError("")
            return data[0]
        readable: asyncio.Future[None] = loop.create_future()
        loop.add_reader(accepted, _set, readable)
        try:
            await readable
        finally:
            loop.remove_reader(accepted)


def _set(readable: asyncio.Future[None]) -> None:
    if not readable.done():
        readable.set_result(None)


def _no_password() -> str:
    raise ValueError("the key is protected by a password")
