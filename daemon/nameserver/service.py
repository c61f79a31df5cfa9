"""The name service of one broker: an embedded name server, or registration with others.

Owns the choice between the two and what each is told about the broker. It does not know requests or sockets.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

from shmq.daemon.bridge.security import Security
from shmq.daemon.broker.requests import Address
from shmq.daemon.broker.tables import Tables
from shmq.daemon.nameserver.embedded import Embedded, TopicSource
from shmq.daemon.nameserver.face import NameServerFace, start_nameserver
from shmq.daemon.nameserver.kv_file import KeyValueFile
from shmq.daemon.options import Options, parse_address
from shmq.errors import ConnectError, UsageError
from shmq.shm.access import access_rights

KV_FILE = Path("config", "namesrv", "kvConfig.json")  # below the store directory

Log = Callable[..., None]


class NameService:
    """What makes the broker known; lives inside the bridge's event loop."""

    def __init__(self, face: NameServerFace) -> None:
        self._face = face

    @property
    def addresses(self) -> dict[str, str]:
        """What tcp.json says about it."""
        return {"nameserver": str(self._face.address)}

    def tick(self) -> None:
        """Do what is due; call it about once a second."""
        self._face.tick()

    def close(self) -> None:
        """Leave."""
        self._face.close()


def start_name_service(
    options: Options,
    tables: Tables,
    log: Log,
    *,
    broker: Address,
    address_before: str = "",
    security: Security | None = None,
) -> NameService:
    """Make the broker that listens at `broker` known, inside the running event loop.

    Args:
        address_before: where the embedded name server listened before this process was started again; the port is
            taken once more where the options leave it open.
        security: what protects the broker's own port.

    Raises:
        ShmqError: the embedded name server cannot start.
    """
    source = TopicSource(
        tables,
        cluster=options.cluster,
        broker_name=options.broker_name,
        default_queues=options.default_queues if options.auto_create else 0,
    )
    embedded = Embedded(source, advertised_address(options, broker.port), broker.port)
    host, port = parse_address(options.nameserver_listen, name="nameserver_listen")
    keeper = KeyValueFile(options.store_path / KV_FILE, access_rights())
    if port == 0 and address_before:
        with contextlib.suppress(ConnectError, UsageError):
            before = parse_address(address_before)[1]
            return NameService(start_nameserver(host, before, log, keeper=keeper, embedded=embedded, security=security))
    return NameService(start_nameserver(host, port, log, keeper=keeper, embedded=embedded, security=security))


def advertised_address(options: Options, port: int) -> str:
    """Return the host:port of --advertise, its port being the broker's own unless it is said; "" without."""
    if not options.advertise:
        return ""
    return str(Address(*parse_address(options.advertise, name="advertise", port=port)))
