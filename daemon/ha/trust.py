"""Decides which peers get a broker's log, and whose log it takes: named addresses, and peers that prove a secret.

--ha-secret-file   --ha-allow   gets the log, or is followed
no                 -            shmq and stock peers on loopback; a slave follows the address that --master names
no                 CIDR         those, and both kinds of peer there: none of them proves its identity
yes                -            shmq peers that prove the secret, anywhere; no stock peer
yes                CIDR         those, and stock peers there, loopback too only if it is named

Where the broker has accounts (--acl), the first two lines hold without "on loopback": accounts keep the users of this
host from each other, and a slave gets the messages of all of them. There loopback has to be named, too.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from shmq.addresses import parse_address
from shmq.daemon.bridge.sockets.watched_file import WatchedFile
from shmq.errors import UsageError
from shmq.options.broker import Options, parse_networks

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
SECRET_BYTES_MIN, SECRET_BYTES_MAX = 16, 4096


class Trust(NamedTuple):
    """Which peers one broker trusts on its links.

    Attributes:
        secret: what they prove; empty: nothing.
        has_accounts: the users of this host are not trusted for being on it.
    """

    networks: Sequence[Network] = ()
    secret: bytes = b""
    has_accounts: bool = False

    def refuses(self, host: str) -> tuple[str, str] | None:
        """Why a slave at an address is not listened to, and what to do about it; None if it is."""
        if self.secret or is_allowed(host, self.networks, is_loopback_named=self.has_accounts):
            return None
        reason, cure = (
            f"{host} is not named by --ha-allow",
            f'start the master with --ha-allow "{host}", and what it names',
        )
        if is_allowed(host, self.networks):  # but for the accounts
            reason += ", and loopback is not trusted by itself where the master has accounts (--acl)"
            cure = f"give both the same --ha-secret-file; or, where each user of that host may read the log, {cure}"
        return reason, f"if it is a slave of yours, {cure} now"

    def refuses_plain(self, host: str) -> tuple[str, str] | None:
        """Why a stock peer at an address is neither served nor followed, and what to do about it; None if it is."""
        address = _address(host)
        if not self.secret or (address is not None and any(address in network for network in self.networks)):
            return None
        cure = f'if it is a RocketMQ broker of yours, start this one with --ha-allow "{host}", and what it names now'
        return f"{host} is a stock peer, proves no secret, and is not named by --ha-allow", cure


WITHOUT_SECRET = Trust()


def is_allowed(host: str, networks: Sequence[Network], *, is_loopback_named: bool = False) -> bool:
    """Return whether a slave at this address may have the log: what is named, and loopback, unless that has to be."""
    address = _address(host)
    if address is None:
        return False
    return (address.is_loopback and not is_loopback_named) or any(address in network for network in networks)


def open_trust(options: Options) -> Trust:
    """Return whom a broker trusts; raises UsageError."""
    return Trust(parse_networks(options.ha_allow), _read_secret(options.ha_secret_file), bool(options.acl))


def is_open_unproven(options: Options) -> bool:
    """Whether slaves on other hosts reach the port, and prove nothing."""
    if not options.ha_listen or options.ha_secret_file:
        return False
    address = _address(parse_address(options.ha_listen, name="ha_listen")[0])
    return address is not None and not address.is_loopback


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None


def _read_secret(name: str) -> bytes:
    if not name:
        return b""
    more = f"openssl rand -hex 32 > {name}; chmod 600 {name}; the other hosts need the same file"
    if not Path(name).exists():
        raise UsageError(f"ha_secret_file {name} does not exist", hint=more)
    secret = WatchedFile(Path(name)).read().strip()
    if not SECRET_BYTES_MIN <= len(secret) <= SECRET_BYTES_MAX:
        found = f"{name} has a secret of {len(secret)} bytes"
        raise UsageError(f"{found}, {SECRET_BYTES_MIN} to {SECRET_BYTES_MAX} are needed", hint=more)
    return secret
