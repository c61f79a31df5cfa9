"""Parses addresses as people and configurations write them: HOST:PORT, with an IPv6 host in brackets."""

from __future__ import annotations

import re
from ipaddress import IPv6Address, ip_address
from typing import NamedTuple

from shmq.errors import UsageError

_PORT_MAX = 65535
_SHOWN_CHARACTERS = 100
_LABEL = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?")  # a part of a host's name
_HOST_CHARACTERS_MAX = 253
_ZONE = re.compile(r"[A-Za-z0-9_.-]{0,15}")  # the interface in an IPv6 address


class Address(NamedTuple):
    """The address of a listener, or of one end of a TCP connection."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str, *, name: str = "address", port: int | None = None) -> Address:
    """Return host and port of "HOST:PORT"; an IPv6 host stands in brackets.

    Args:
        port: taken when the text names none; without it one must be there.

    Raises:
        UsageError: it is no such text.
    """
    host, colon, digits = text.rpartition(":")
    if port is not None and (not colon or text.endswith("]")):
        host, digits = text, str(port)
    host = host[1:-1] if host.startswith("[") and host.endswith("]") else "" if ":" in host else host
    hint = "for example 127.0.0.1:10911 or [::1]:10911"
    if not host or not (digits.isascii() and digits.isdecimal()) or len(digits) > 5 or int(digits) > _PORT_MAX:
        raise UsageError(f"{name} is {_shown(text)}, HOST:PORT is needed", hint=hint)
    if fault := host_fault(host):
        raise UsageError(f"{name} is {_shown(text)}: {fault}", hint=hint)
    return Address(host, int(digits))


def parse_target(text: str, *, name: str, port: int | None = None) -> Address:
    """As `parse_address`, of an address to connect to: it has a port, and is not every address."""
    address = parse_address(text, name=name, port=port)
    if not address.port:
        raise UsageError(f"{name} is {_shown(text)}: no client connects to port 0", hint="the port that is listened on")
    if address.host in ("0.0.0.0", "::"):
        raise UsageError(f"{name} is {_shown(text)}, which stands for every address of a host", hint="name one of them")
    return address


def host_of(address: str) -> str:
    """Return the host of HOST:PORT without brackets; "" where there is no port."""
    return address.rpartition(":")[0].strip("[]")


def is_loopback_address(host: str) -> bool:
    """Whether a host is an address of its own, and no name."""
    try:
        return ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return False


def _shown(text: str) -> str:
    return repr(text) if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]!r}…, {len(text)} characters,"


def host_fault(host: str) -> str:
    """Return why a text is neither an address nor a name that a host can have; "" for nothing."""
    if ":" in host:
        number, _, zone = host.partition("%")
        try:
            IPv6Address(number)
        except ValueError:
            return f"{number!r} is no IPv6 address"
        return "" if _ZONE.fullmatch(zone) else f"{zone!r} is no interface"
    try:
        plain = host.encode("idna").decode().removesuffix(".")
    except UnicodeError as error:
        return f"no host has this name ({error})"
    if len(plain) > _HOST_CHARACTERS_MAX:
        return f"a host name has at most {_HOST_CHARACTERS_MAX} characters"
    labels = plain.split(".")
    wrong = next((label for label in labels if not _LABEL.fullmatch(label)), None)
    if wrong is not None:
        return f"{wrong!r} is no part of a host name: letters, digits, _ and - inside"
    from socket import inet_aton  # much to load, for a client of this host that reads no address

    if labels[-1].isdecimal():  # no name ends so: it is read as an address, or as nothing
        try:
            inet_aton(plain)
        except OSError:
            return f"{plain} is no IPv4 address"
    return ""
