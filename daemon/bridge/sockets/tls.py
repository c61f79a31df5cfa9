"""TLS on the ports that plain clients use: which connections are encrypted, and with what.

One port serves both kinds of client: the first byte of a connection says which it is. It is looked at with MSG_PEEK
before a transport is made, so a plain connection pays one system call, and only where TLS is on.

    first byte    disabled    permissive    enforcing
    0x16          closed      TLS           TLS           (a TLS handshake record; no remoting frame begins with it)
    other         plain       plain         closed

No test certificate comes with it: RocketMQ's own made every client accept anything.

A certificate that is not valid now is taken at the start, for clients that do not check; it never replaces another. The
log says both, and when a certificate is about to expire.

Invariant: the byte stays in the socket; the connection's reader gets it again.
"""

import asyncio
import contextlib
import socket
import ssl
import time
from collections.abc import Callable
from pathlib import Path

from shmq.daemon.bridge.sockets.watched_file import WatchedFile
from shmq.errors import UsageError
from shmq.protocol.certificate import Certificate, certificate_of_pem

PERMISSIVE, ENFORCING = "permissive", "enforcing"
HANDSHAKE_BYTE = 0x16


class ServerTls:
    """A certificate, and whether plain connections are taken beside it."""

    def __init__(self, mode: str, *, certificate: Path, key: Path, now: Callable[[], float] = time.time) -> None:
        """Read certificate and key.

        Raises:
            UsageError: a file that cannot be read, that others can read, or that does not fit the other.
        """
        assert mode in (PERMISSIVE, ENFORCING)
        self.mode = mode
        self._certificate = WatchedFile(certificate, is_secret=False)
        self._key = WatchedFile(key)
        self._now = now
        self.context, self.certificate = self._load()

    @property
    def path(self) -> Path:
        """Where the certificate is."""
        return self._certificate.path

    @property
    def notice(self) -> str:
        """What is wrong with the certificate, or will be in days; "" for nothing."""
        return self.certificate.notice(self._now())

    def _load(self) -> tuple[ssl.SSLContext, Certificate]:
        text = self._certificate.read()
        self._key.read()  # for its checks: the context reads the paths itself
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
        try:
            return context, certificate_of_pem(text)
        except ValueError as error:
            raise UsageError(f"the certificate {self.path} cannot be used: {error}", hint="PEM form") from error

    def has_changed(self) -> bool:
        """Say whether one of the files was replaced.

        Raises:
            UsageError: one is gone.
        """
        changes = [file.has_changed() for file in (self._key, self._certificate)]
        return any(changes)

    def reload(self) -> None:
        """Read both files again; connections from now on use them.

        Raises:
            UsageError: as at the start, or one that is not valid now; the old ones stay in use.
        """
        context, certificate = self._load()
        if fault := certificate.fault(self._now()):
            raise UsageError(f"the certificate {self.path} {fault}", hint="put one there that is valid; date -u")
        self.context, self.certificate = context, certificate

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
