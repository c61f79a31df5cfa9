"""Listening TCP sockets: a main port, and the VIP port two below it.

It binds the sockets, and sets the options that every accepted socket gets.

RocketMQ's clients can be configured for a "VIP channel": sends and offsets then go to the main port minus two. A slave
always fetches its topics there. Pulls are not served on it, as in RocketMQ.

Invariants:
 1. A port that another process listens on is an error that names the port; nothing is bound beside it.
 2. A port that was chosen by the kernel has no VIP port.
"""

import contextlib
import errno
import socket

from shmq.addresses import Address
from shmq.errors import ConnectError, PermissionDenied, UsageError

VIP_DISTANCE = 2
_BACKLOG = 1024


class TcpListener:
    """One listening socket; `address` is where it was bound, the port as the kernel gave it."""

    def __init__(self, host: str, port: int, *, is_shared: bool = False) -> None:
        """Listen.

        Args:
            is_shared: other processes of this user may listen at the same port; the kernel divides connections.

        Raises:
            ConnectError: the port is taken.
            PermissionDenied: the port is not for us.
            UsageError: the host names no address of this machine.
        """
        self.socket, self.address = _bind(host, port, is_shared)

    def close(self) -> None:
        """Stop listening."""
        self.socket.close()


def listen_with_vip(host: str, port: int, *, is_shared: bool = False) -> list[TcpListener]:
    """Return the main listener, and behind it the VIP one if the port has room for it. Raises as TcpListener."""
    main = TcpListener(host, port, is_shared=is_shared)
    if port <= VIP_DISTANCE:
        return [main]
    try:
        return [main, TcpListener(host, port - VIP_DISTANCE, is_shared=is_shared)]
    except BaseException:
        main.close()
        raise


def prepare_accepted(accepted: socket.socket) -> None:
    """Set an accepted TCP connection up: replies are small and must not wait for each other."""
    accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def address_of(name: object) -> Address:
    """Return host and port of a socket name; an IPv4 address that came over an IPv6 socket as itself."""
    if not isinstance(name, tuple) or len(name) < 2:
        return Address("", 0)
    return Address(str(name[0]).removeprefix("::ffff:"), int(name[1]))


def _bind(host: str, port: int, is_shared: bool) -> tuple[socket.socket, Address]:
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except OSError as error:
        raise UsageError(
            f"cannot listen at {host!r}: {error.strerror}", hint="give an address of this host: --listen 127.0.0.1:PORT"
        ) from error
    listener = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if is_shared:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            with contextlib.suppress(OSError):
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.bind(address)
        listener.listen(_BACKLOG)
        return listener, address_of(listener.getsockname())
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise ConnectError(
                f"port {port} of {host} is in use",
                hint=f"see who has it: ss -ltnp 'sport = :{port}'; "
                "or choose others: --listen HOST:PORT, --nameserver-listen HOST:PORT, or --no-tcp",
            ) from error
        if error.errno == errno.EACCES:
            raise PermissionDenied(f"port {port} of {host} may not be used", hint="choose a port above 1023") from error
        raise UsageError(
            f"cannot listen at {host} port {port}: {error.strerror}",
            hint="give an address of this host: --listen 127.0.0.1:PORT",
        ) from error
