"""Access to the console: pure decisions about hosts, origins, tokens and sessions.

    session    nonce "." HMAC(secret, nonce)       cookie; made for the right token, or for any visitor where none is
    CSRF       HMAC(secret, "form " nonce)         hidden field of each form; no other site can read it

The secret is made when the console starts, so whatever it has signed ends with it.

Invariants:
1. Without a token the console answers to loopback names only, so no page of another site reaches it by a name of its
   own (DNS rebinding).
2. Secrets are compared in constant time.
"""

from __future__ import annotations

import hmac
import ipaddress
import secrets
from collections.abc import Collection
from typing import NamedTuple

from shmq.addresses import is_loopback_address, parse_address
from shmq.errors import UsageError

TOKEN_LENGTH_MIN = 12
_LOOPBACK_NAMES = frozenset({"localhost"})


class Listen(NamedTuple):
    """The address at which the console listens."""

    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        """Whether only processes of this host can connect."""
        return self.host in _LOOPBACK_NAMES or is_loopback_address(self.host)

    @property
    def url(self) -> str:
        """The address to type."""
        return f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}/"


def parse_listen(text: str) -> Listen:
    """Return the meaning of HOST:PORT.

    Raises:
        UsageError: it is none.
    """
    try:
        return Listen(*parse_address(text))
    except UsageError as error:
        raise UsageError(f"{text[:100]!r} is no address: {error}", hint="--listen 127.0.0.1:8080") from error


def address_of(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return a host that is a number; None for a name."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


class Access:
    """The access rules of one console.

    Args:
        listen: where it listens.
        token: what visitors have to know; None lets all users of this host in.
        read_only: whether it changes nothing at all.
        names: other names by which it is reached, as behind a proxy.

    Raises:
        UsageError: other hosts could come in without a token.
    """

    def __init__(
        self, listen: Listen, token: str | None, *, read_only: bool = False, names: Collection[str] = ()
    ) -> None:
        if token is None and not listen.is_loopback:
            raise UsageError(
                f"--listen {listen.host}:{listen.port} is open to other hosts, and no token is set",
                hint="set one: export SHMQ_CONSOLE_TOKEN=…, or listen on 127.0.0.1",
            )
        if token is not None and len(token) < TOKEN_LENGTH_MIN:
            raise UsageError(
                f"a token of {len(token)} characters can be guessed; at least {TOKEN_LENGTH_MIN} are needed",
                hint=f"for example: --token {secrets.token_urlsafe(16)}",
            )
        self.listen = listen
        self.read_only = read_only
        self._token = token
        self._proxied = {name.lower() for name in names}
        self._names = _LOOPBACK_NAMES | self._proxied | {listen.host.lower()}
        self._secret = secrets.token_bytes(32)
        self.cookie = f"shmq_console_{listen.port}"

    @property
    def asks_token(self) -> bool:
        """Whether visitors have to tell a token."""
        return self._token is not None

    def token_is(self, text: str) -> bool:
        """Say whether this is the token."""
        return self._token is not None and hmac.compare_digest(text.encode(), self._token.encode())

    def host_is_ours(self, host: str) -> bool:
        """Say whether a Host header, or the part of an Origin behind the scheme, names this console."""
        name = _without_port(host).lower()
        if name in self._names:
            return True
        address = address_of(name)
        return address is not None and (address.is_loopback or not self.listen.is_loopback)

    def origin_is_ours(self, origin: str, host: str) -> bool:
        """Say whether a form was sent from a page of this console."""
        scheme, _, rest = origin.partition("://")
        return scheme in ("http", "https") and (rest == host or _without_port(rest).lower() in self._proxied)

    def new_session(self) -> str:
        """Return the cookie of a visitor who may come in."""
        nonce = secrets.token_urlsafe(18)
        return f"{nonce}.{self._signed(nonce)}"

    def session_is_ours(self, session: str) -> bool:
        """Say whether this console has made a cookie."""
        nonce, _, signature = session.partition(".")
        return bool(nonce) and hmac.compare_digest(signature.encode(), self._signed(nonce).encode())

    def form_token(self, session: str) -> str:
        """Return what each form of a session carries."""
        return self._signed(f"form {session}")

    def form_token_is(self, session: str, text: str) -> bool:
        """Say whether a form belongs to a session."""
        return hmac.compare_digest(text.encode(), self.form_token(session).encode())

    def _signed(self, text: str) -> str:
        return hmac.digest(self._secret, text.encode(), "sha256").hex()


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]
