"""The name service of one broker: a name server in its process, registration with name servers, or both.

--nameserver is not given              a name server that has the broker's own tables
--nameserver names others              registration with them
... and --nameserver-listen as well    a name server like theirs, with which this broker registers as with the others:
                                       hosts that are all given the same list need no other host for their names
"""

import contextlib
import os
import ssl
from collections.abc import Callable
from functools import partial
from pathlib import Path

from shmq.addresses import Address, parse_address
from shmq.daemon.bridge.limits import BridgeLimits
from shmq.daemon.bridge.sockets.security import Security, is_loopback
from shmq.daemon.broker.tables import Tables
from shmq.daemon.nameserver.embedded_broker import Embedded, TopicSource
from shmq.daemon.nameserver.face import NameServerFace, start_nameserver
from shmq.daemon.nameserver.kv_file import KeyValueFile
from shmq.daemon.nameserver.registrar import RegisteredBroker, Registrar
from shmq.daemon.nameserver.registrar_links import RegistrarLinks
from shmq.daemon.nameserver.settings import with_room_for
from shmq.errors import ConnectError, UsageError
from shmq.options.broker import Options
from shmq.protocol.acl import ACCESS_KEY_VARIABLE, SECRET_KEY_VARIABLE, KeyPair, key_pair_of
from shmq.shm.access import access_rights
from shmq.shm.addresses import HA_ADDRESS, as_registered, read_addresses

# A start is not delayed for longer by a name server that does not answer, and the second one once another has answered.
_REGISTRATION_SECONDS, _OTHERS_SECONDS = 1.0, 0.1
KV_FILE = Path("config", "namesrv", "kvConfig.json")  # below the store directory

_EVERY_ADDRESS = ("0.0.0.0", "::")

Log = Callable[..., None]


class NameService:
    """What makes the broker known; lives inside the bridge's event loop."""

    def __init__(
        self,
        face: NameServerFace | None,
        links: RegistrarLinks | None,
        ha_port: Callable[[], int],
        embedded: Embedded | None = None,
        *,
        is_fenced: Callable[[], bool] = lambda: False,
    ) -> None:
        self._is_fenced = is_fenced
        self._face = face
        self._links = links
        self._ha_port = ha_port
        self._embedded = embedded

    @property
    def addresses(self) -> dict[str, str]:
        """What tcp.json says about it."""
        own = {"nameserver": str(self._face.address)} if self._face is not None else {}
        return own | (as_registered(self._links.registered) if self._links is not None else {})

    async def wait_until_registered(self) -> None:
        """Wait until name servers elsewhere know the broker, those that answer."""
        if self._links is not None:
            await self._links.wait_until_registered(_REGISTRATION_SECONDS, _OTHERS_SECONDS)

    @property
    def registration(self) -> RegistrarLinks | None:
        """What tells name servers elsewhere; None where there are none."""
        return self._links

    def tick(self) -> None:
        """Do what is due; call it about once a second."""
        if self._embedded is not None:
            self._embedded.ha_port = self._ha_port()
        if self._face is not None:
            self._face.tick()
        if self._links is not None:
            self._links.fence(is_fenced=self._is_fenced())
            self._links.ships_at(self._ha_port())
            self._links.tick()

    def close(self) -> None:
        """Leave."""
        if self._links is not None:
            self._links.close()
        if self._face is not None:
            self._face.close()


def start_name_service(
    options: Options,
    tables: Tables,
    log: Log,
    *,
    broker: Address,
    address_before: str = "",
    limits: BridgeLimits | None = None,
    security: Security | None = None,
    is_fenced: Callable[[], bool] = lambda: False,
) -> NameService:
    """Make the broker that listens at `broker` known, inside the running event loop.

    Args:
        address_before: where the embedded name server listened before this process was started again; the port is
            taken once more where the options leave it open.
        limits: of the embedded name server's connections.
        security: what protects the broker's own port.
        is_fenced: asked once a second whether this broker is a master that may have been replaced.

    Raises:
        ShmqError: the embedded name server cannot start.
    """
    source = TopicSource(
        tables,
        cluster=options.cluster,
        broker_name=options.broker_name,
        default_queues=options.default_queues if options.auto_create else 0,
    )
    if options.nameserver_addresses:
        face = None
        if options.is_name_server:
            face = _start_face(options, None, log, limits, security, address_before)
        links = _start_links(options, source, log, broker=broker, is_fenced=is_fenced())
        return NameService(face, links, partial(_ha_port, options), is_fenced=is_fenced)
    advertised = str(_advertised(options, broker.port)) if options.advertise else ""
    embedded = Embedded(source, advertised, broker.port, options.broker_id, _ha_port(options))
    face = _start_face(options, embedded, log, limits, security, address_before)
    return NameService(face, None, partial(_ha_port, options), embedded)


def _start_face(
    options: Options,
    embedded: Embedded | None,
    log: Log,
    limits: BridgeLimits | None,
    security: Security | None,
    address_before: str,
) -> NameServerFace:
    host, port = parse_address(options.nameserver_listen, name="nameserver_listen")
    keeper = KeyValueFile(options.store_path / KV_FILE, access_rights())
    start = partial(
        start_nameserver,
        log=log,
        keeper=keeper,
        embedded=embedded,
        settings=with_room_for(options.topic_max),
        limits=limits,
        security=security,
    )
    if port == 0 and address_before:
        with contextlib.suppress(ConnectError, UsageError):
            return start(host, parse_address(address_before)[1])
    return start(host, port)


def _tls(certificates: str) -> ssl.SSLContext | None:
    """Return how name servers are talked to; None for plain connections."""
    if not certificates:
        return None
    try:
        context = ssl.create_default_context(cafile=certificates)
    except OSError as error:  # an SSLError is one
        raise UsageError(f"{certificates} cannot be used: {error}", hint="a PEM file that may be read") from error
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def _start_links(
    options: Options, source: TopicSource, log: Log, *, broker: Address, is_fenced: bool
) -> RegistrarLinks:
    # A name server learns one address: the advertised one, the one we listen at, or else the one it sees us come from.
    address = _advertised(options, broker.port) if options.advertise else broker
    host = "" if address.host in _EVERY_ADDRESS else address.host
    broker_id = options.broker_id
    who = RegisteredBroker(options.cluster, options.broker_name, host, address.port, _ha_port(options), broker_id)
    servers = list(dict.fromkeys(options.nameserver_addresses))
    links = RegistrarLinks(Registrar(servers, who, _keys()), source, log, tls=_tls(options.nameserver_ca))
    if host and is_loopback(host):
        log("nameserver", text=f"registers as {address}, which other hosts cannot reach: --listen or --advertise")
    links.fence(is_fenced=is_fenced)
    links.tick()
    return links


def _ha_port(options: Options) -> int:
    """Where slaves get the log: the named port, or else the one that the process of replication was given."""
    if not options.ha_listen or (named := parse_address(options.ha_listen)[1]):
        return named if options.ha_listen else 0
    told = read_addresses(options.place.ha_path).get(HA_ADDRESS, "")
    return parse_address(told)[1] if told else 0


def check_registration(options: Options) -> None:
    """Refuse what makes registering with name servers elsewhere impossible from the start.

    Raises:
        UsageError: certificates that cannot be used, or half of an account.
    """
    _tls(options.nameserver_ca)
    _keys()


def _keys() -> KeyPair:
    """Return the account that registrations are signed with; every user can see options, so it is none of them."""
    keys = key_pair_of(os.environ)
    if bool(keys.access_key) != bool(keys.secret_key):
        raise UsageError(
            f"registrations cannot be signed with only one of ${ACCESS_KEY_VARIABLE} and ${SECRET_KEY_VARIABLE}",
            hint="set both, or none where name servers have no accounts",
        )
    return keys


def _advertised(options: Options, port: int) -> Address:
    """Return what --advertise says, its port being the broker's own unless it is said."""
    return Address(*parse_address(options.advertise, name="advertise", port=port))
