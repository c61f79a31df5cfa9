"""The URL of a broker on another host, and the options in it. The URL is checked here, not tried.

    rocketmq://HOST[:PORT][,HOST[:PORT]...][?option=value&...]        name servers; port 9876 when none is given;
                                                                  RocketMQ's ; between them is taken too

    option                          meaning
    tls=true                        TLS to name servers and brokers
    tls_ca=FILE                     certificates to trust instead of the system's
    tls_cert=FILE  tls_key=FILE     our own certificate
    tls_verify=false                trust any certificate (encryption without authentication)
    access_key=K  secret_key=S      sign every request (RocketMQ ACL 1.0); else $SHMQ_ACCESS_KEY, $SHMQ_SECRET_KEY
    security_token=T                sent along with a temporary key
    compression=zlib|lz4|zstd|none  of bodies above 4 KiB
    allocation=average|circle|consistent_hash|machine_room:IDC,...|config:0,3,...
    avoid_slow=false                do not keep away from brokers that were slow or failed

Invariant: `url` never shows a secret; `secret_url` leads to the same place from another process.
"""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from shmq import addresses
from shmq.addresses import Address
from shmq.errors import UsageError
from shmq.protocol.acl import key_pair_of
from shmq.shm.place import Place, place_of, shown_url

SCHEME = "rocketmq"
NAME_SERVER_PORT = 9876
COMPRESSIONS = ("zlib", "lz4", "zstd", "none")

_HINT = "rocketmq://HOST:9876, or rocketmq://HOST1:9876,HOST2:9876?tls=true"
_SHOWN_CHARACTERS = 100
_WORDS = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}


def parse_address(text: str, *, default_port: int | None = None) -> Address:
    """Read `host:port`, `[v6]:port`, or `host` when there is a default port.

    Raises:
        UsageError: no host, or no port between 1 and 65535.
    """
    with contextlib.suppress(UsageError):
        address = addresses.parse_address(text, port=default_port)
        if address.port:
            return address
    raise UsageError(f"{text[:_SHOWN_CHARACTERS]!a} is not an address", hint=_HINT)


@dataclass(frozen=True)
class RemoteOptions:
    """The options in the URL, behind the question mark."""

    tls: bool = False
    tls_ca: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    tls_verify: bool = True
    access_key: str = ""
    secret_key: str = field(default="", repr=False)
    security_token: str = field(default="", repr=False)
    compression: str = "zlib"
    allocation: str = "average"
    avoid_slow: bool = True


_SECRETS = ("secret_key", "security_token")
_DEFAULTS = RemoteOptions()


@dataclass(frozen=True)
class RemotePlace:
    """The name servers of a cluster, and how to talk to it."""

    name_servers: tuple[Address, ...]
    options: RemoteOptions = _DEFAULTS

    @property
    def broker_name(self) -> str:
        """The place's name in messages: its name servers."""
        return ",".join(map(str, self.name_servers))

    @property
    def url(self) -> str:
        """The URL, without secrets."""
        return self._url(secrets=False)

    @property
    def secret_url(self) -> str:
        """The whole URL; keep it out of logs."""
        return self._url(secrets=True)

    def _url(self, *, secrets: bool) -> str:
        given = {
            name: str(value).lower() if isinstance(value, bool) else value
            for name, value in vars(self.options).items()
            if value != getattr(_DEFAULTS, name) and (secrets or name not in _SECRETS)
        }
        query = f"?{urlencode(given, quote_via=quote)}" if given else ""
        return f"{SCHEME}://{self.broker_name}{query}"


def is_remote(url: str) -> bool:
    """Say whether a URL names a broker that is reached over TCP."""
    return url.partition(":")[0].lower() == SCHEME and ":" in url


def remote_place(url: str) -> RemotePlace:
    """Read a `rocketmq://` URL.

    Raises:
        UsageError: not such a URL, an address that is none, or an option that does not exist.
    """
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise UsageError(f"{shown_url(url)!a} does not name a RocketMQ cluster: {error}", hint=_HINT) from None
    if (
        parts.scheme != SCHEME
        or parts.path not in ("", "/")
        or parts.fragment
        or not parts.netloc
        or "@" in parts.netloc
    ):
        hint = f"{_HINT}; accounts as ?access_key=K&secret_key=S" if "@" in url else _HINT
        raise UsageError(f"{shown_url(url)!r} does not name a RocketMQ cluster", hint=hint)
    servers = tuple(
        parse_address(unquote(text), default_port=NAME_SERVER_PORT) for text in re.split("[,;]", parts.netloc) if text
    )
    if not servers:
        raise UsageError(f"{shown_url(url)!r} names no name server", hint=_HINT)
    return RemotePlace(tuple(dict.fromkeys(servers)), _options(dict(parse_qsl(parts.query, keep_blank_values=True))))


def _options(given: dict[str, str]) -> RemoteOptions:
    values: dict[str, str | bool] = {**key_pair_of(os.environ)._asdict()}
    for name, text in given.items():
        default = getattr(_DEFAULTS, name, None)
        if default is None:
            raise UsageError(f"the URL option {name!r} does not exist", hint=f"one of {', '.join(vars(_DEFAULTS))}")
        if isinstance(default, bool):
            if text.lower() not in _WORDS:
                raise UsageError(f"{name}={text!r} is neither true nor false", hint=f"{name}=true")
            values[name] = _WORDS[text.lower()]
        else:
            values[name] = text
    options = RemoteOptions(**values)  # type: ignore[arg-type]
    if options.compression not in COMPRESSIONS:
        raise UsageError(
            f"compression={options.compression!r} does not exist", hint=f"one of {', '.join(COMPRESSIONS)}"
        )
    if bool(options.access_key) != bool(options.secret_key):
        missing = "secret_key" if options.access_key else "access_key"
        raise UsageError(
            f"requests cannot be signed without {missing}", hint=f"?{missing}=…, or $SHMQ_{missing.upper()}"
        )
    if bool(options.tls_key) and not options.tls_cert:
        raise UsageError("tls_key needs tls_cert", hint="?tls=true&tls_cert=client.pem&tls_key=client.key")
    return options


def locate(url: str | None) -> Place | RemotePlace:
    """Return the place a URL names, on this host or elsewhere; None takes $SHMQ_URL, then the default broker.

    Raises:
        UsageError, InvalidName: it names none.
    """
    if url is not None and not isinstance(url, str):
        raise UsageError(f"a URL is a str, not {type(url).__name__}", hint="shmq://NAME, or rocketmq://HOST:9876")
    text = url or os.environ.get("SHMQ_URL") or ""
    return remote_place(text) if is_remote(text) else place_of(url)


def find(url: str | None) -> Place | RemotePlace:
    """Return the place of the broker that a URL means: on this host, where one is. Raises as `locate`."""
    place = locate(url)
    if not isinstance(place, Place):
        return place
    from shmq.shm.discovery import found  # loads the core, which reading a URL does not need

    return found(place)


class Placed:
    """An object with a place: a connection, and its asyncio twin."""

    __slots__ = ()

    if TYPE_CHECKING:
        place: Place | RemotePlace
        _closed: bool

    @property
    def url(self) -> str:
        """The URL that leads to this broker, whatever the environment says; without the secrets in it."""
        return self.place.url

    @property
    def is_remote(self) -> bool:
        """Whether the broker is reached over TCP, so that whatever asks it waits for a network."""
        return isinstance(self.place, RemotePlace)

    @property
    def broker_name(self) -> str:
        """The broker's name."""
        return self.place.broker_name

    @property
    def closed(self) -> bool:
        """Whether `close()` was called."""
        return self._closed
