"""Reads the facts of a certificate: its names, and from when until when it is valid.

The module `ssl` tells that of a peer's certificate only when it has found nothing wrong with it. Here the DER form
(X.509, RFC 5280) is read as far as this needs; nothing is verified.

    Certificate ─▶ tbsCertificate ─▶ version? serial algorithm issuer validity subject key … extensions?
                                                                  │                          │
                                                             two times               names of subjectAltName
"""

import base64
import ipaddress
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final, NamedTuple

WARNING_DAYS: Final = 14
DAY_SECONDS: Final = 86_400
_PEM = re.compile(rb"-----BEGIN CERTIFICATE-----(.+?)-----END CERTIFICATE-----", re.DOTALL)
_SEQUENCE, _OBJECT_ID, _UTC_TIME, _GENERALIZED_TIME, _OCTETS = 0x30, 0x06, 0x17, 0x18, 0x04
_VERSION, _EXTENSIONS = 0xA0, 0xA3  # context-specific [0] and [3]
_DNS_NAME, _ADDRESS = 0x82, 0x87
_ALTERNATIVE_NAMES, _COMMON_NAME = b"\x55\x1d\x11", b"\x55\x04\x03"


class Certificate(NamedTuple):
    """One certificate; times are seconds since the epoch."""

    names: tuple[str, ...]
    begins: float
    ends: float

    def fault(self, now: float) -> str:
        """Return what is wrong with it at a time; "" for nothing."""
        if now < self.begins:
            return f"is not valid before {date_text(self.begins)}"
        return f"expired on {date_text(self.ends)}" if now > self.ends else ""

    def notice(self, now: float) -> str:
        """Return what is wrong with it, or will be in `WARNING_DAYS`; "" for nothing."""
        days = (self.ends - now) / DAY_SECONDS
        expires = f"expires on {date_text(self.ends)}, in {days:.0f} days" if days <= WARNING_DAYS else ""
        return self.fault(now) or expires


def date_text(seconds: float) -> str:
    """Return a time as people read it."""
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S} UTC"


def certificate_of_pem(data: bytes) -> Certificate:
    """Read the first certificate of a PEM file.

    Raises:
        ValueError: there is none that can be read.
    """
    found = _PEM.search(data)
    if found is None:
        raise ValueError("it holds no certificate")
    return certificate_of_der(base64.b64decode(found[1]))


def certificate_of_der(data: bytes) -> Certificate:
    """Read a certificate.

    Raises:
        ValueError: it cannot be read.
    """
    try:
        ((_, whole),) = _parts(data)
        (_, body), *_ = _parts(whole)
        fields = list(_parts(body))
        if fields[0][0] == _VERSION:
            del fields[0]
        _, _, _, (_, validity), (_, subject), *rest = fields
        begins, ends = (_seconds(*part) for part in _parts(validity))
        extensions = next((content for tag, content in rest if tag == _EXTENSIONS), b"")
        names = tuple(_alternative_names(extensions)) or tuple(_common_names(subject))
    except (ValueError, IndexError, OverflowError) as error:
        raise ValueError(f"it is no certificate: {error}") from error
    return Certificate(names, begins, ends)


def _parts(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield tag and content of each value that stands in some bytes."""
    at = 0
    while at < len(data):
        tag, size = data[at], data[at + 1]
        at += 2
        if size & 0x80:
            count = size & 0x7F
            size = int.from_bytes(data[at : at + count])
            at += count
        if at + size > len(data):
            raise ValueError("it is cut short")
        yield tag, data[at : at + size]
        at += size


def _seconds(tag: int, content: bytes) -> float:
    text = content.decode("ascii").rstrip("Z")
    if tag == _UTC_TIME:  # two digits for the year, from 1950 on
        text = ("20" if int(text[:2]) < 50 else "19") + text
    elif tag != _GENERALIZED_TIME:
        raise ValueError("it has no validity")
    return datetime.strptime(text, "%Y%m%d%H%M%S").replace(tzinfo=UTC).timestamp()


def _alternative_names(extensions: bytes) -> Iterator[str]:
    for _, listed in _parts(extensions):
        for _, extension in _parts(listed):
            parts = list(_parts(extension))
            if parts[0] != (_OBJECT_ID, _ALTERNATIVE_NAMES) or parts[-1][0] != _OCTETS:
                continue
            for _, names in _parts(parts[-1][1]):
                for tag, content in _parts(names):
                    if tag == _DNS_NAME:
                        yield content.decode("ascii", "replace")
                    elif tag == _ADDRESS and len(content) in (4, 16):
                        yield str(ipaddress.ip_address(content))


def _common_names(subject: bytes) -> Iterator[str]:
    for _, group in _parts(subject):
        for _, pair in _parts(group):
            (_, kind), (_, value) = _parts(pair)
            if kind == _COMMON_NAME:
                yield value.decode("utf-8", "replace")
