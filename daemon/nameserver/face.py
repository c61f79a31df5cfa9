"""A name server at a socket: the pure logic, hosted by the same code as the broker's.

It listens, and bounds what a connection of a name server may cost.
"""

from collections.abc import Callable

from shmq.addresses import Address
from shmq.daemon.bridge.bridge import Bridge
from shmq.daemon.bridge.limits import BridgeLimits
from shmq.daemon.bridge.sockets.security import Security
from shmq.daemon.bridge.sockets.tcp_listener import TcpListener
from shmq.daemon.nameserver.embedded_broker import Embedded
from shmq.daemon.nameserver.key_values import Keeper
from shmq.daemon.nameserver.nameserver import NameServer
from shmq.daemon.nameserver.settings import NameServerSettings

Log = Callable[..., None]


class NameServerFace:
    """One name server; lives inside one event loop."""

    def __init__(
        self, listener: TcpListener, server: NameServer, log: Log, limits: BridgeLimits, security: Security
    ) -> None:
        self._listener = listener
        self._bridge = Bridge(server, log, limits=limits, security=security)
        self._bridge.listen(listener.socket)

    @property
    def address(self) -> Address:
        """Where it listens."""
        return self._listener.address

    def tick(self) -> None:
        """Look at the clock; call it about once a second."""
        self._bridge.tick()

    def close(self) -> None:
        """Cut every connection and stop listening."""
        self._bridge.close()
        self._listener.close()


def start_nameserver(
    host: str,
    port: int,
    log: Log,
    *,
    keeper: Keeper | None = None,
    embedded: Embedded | None = None,
    settings: NameServerSettings | None = None,
    limits: BridgeLimits | None = None,
    security: Security | None = None,
) -> NameServerFace:
    """Start a name server in the running event loop; port 0 takes any free one.

    Args:
        embedded: the broker of this process.
        security: accounts and certificate; without it everything is open and plain.

    Raises:
        CorruptionError: what the keeper kept is unreadable.
        ConnectError: the port is in use.
        PermissionDenied: the port is not for us.
        UsageError: the host names no address of this machine.
    """
    security = security or Security()
    server = NameServer(settings, keeper, embedded, admission=security.admission)
    return NameServerFace(TcpListener(host, port), server, log, limits or BridgeLimits(), security)
