"""Signatures of RocketMQ's ACL 1.0: what a client signs, and whether a signature fits.

Here are the three header fields, the signed content, and where a process of ours finds the account it signs with.

    Signature = base64(HMAC-SHA1(secret key, values of all ext fields but Signature, sorted by name, then the body))

The names are not part of the content and nothing separates the values. A query by unique key is signed before its
client adds the field `_UNIQUE_KEY_QUERY` (old clients) or after (new ones); both are right.

SHA-1 is what the wire offers. It keeps a request from being forged, not from being read or repeated: use TLS off the
host.
"""

from __future__ import annotations

import base64
import hmac
from collections.abc import Mapping
from typing import NamedTuple

ACCESS_KEY = "AccessKey"
SIGNATURE = "Signature"
SECURITY_TOKEN = "SecurityToken"
ACCESS_KEY_VARIABLE, SECRET_KEY_VARIABLE = "SHMQ_ACCESS_KEY", "SHMQ_SECRET_KEY"
_ADDED_AFTER_SIGNING = "_UNIQUE_KEY_QUERY"


class KeyPair(NamedTuple):
    """The name and the secret of an account; both are empty where nothing is signed."""

    access_key: str = ""
    secret_key: str = ""


def key_pair_of(environment: Mapping[str, str]) -> KeyPair:
    """Return the account that the environment names; one of its two parts may be missing."""
    return KeyPair(environment.get(ACCESS_KEY_VARIABLE, ""), environment.get(SECRET_KEY_VARIABLE, ""))


def sign(ext: Mapping[str, str], body: bytes, *, access_key: str, secret_key: str, token: str = "") -> dict[str, str]:
    """Return the header fields of a request with those that prove who sent it."""
    signed = {**ext, ACCESS_KEY: access_key, **({SECURITY_TOKEN: token} if token else {})}
    signed.pop(SIGNATURE, None)
    return {**signed, SIGNATURE: _signature(secret_key, signed, body)}


def is_signed(ext: Mapping[str, str], body: bytes, *, secret_key: str) -> bool:
    """Say whether a request was signed with this key, in a time that does not depend on where a wrong one differs."""
    given = ext.get(SIGNATURE, "").encode()
    fields = {name: value for name, value in ext.items() if name != SIGNATURE}
    old = {name: value for name, value in fields.items() if name != _ADDED_AFTER_SIGNING}
    contents = (old,) if len(old) == len(fields) else (old, fields)
    return any([hmac.compare_digest(_signature(secret_key, content, body).encode(), given) for content in contents])


def _signature(secret_key: str, ext: Mapping[str, str], body: bytes) -> str:
    content = "".join(ext[name] for name in sorted(ext)).encode(errors="surrogatepass") + body
    return base64.b64encode(hmac.digest(secret_key.encode(), content, "sha1")).decode()
