"""The facts of each request code, and the check of a request's header fields against them.

The facts are in `request_rows`. The admission in front of every handler reads this table, so an unlisted code does not
exist at all; checks inside the handlers would leave the gaps that RocketMQ's own ACL has. A test runs every code
against a live broker.

Invariants:
 1. Every member of `Request` has exactly one row, and every row is a member.
 2. `check_fields` accepts what RocketMQ's own reader takes: a mandatory field may be empty, an optional number too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import NamedTuple

from shmq.errors import ProtocolError
from shmq.protocol.codes import Request
from shmq.protocol.request_rows import ADMIN_ROWS, CLIENT_ROWS, INTERNAL_ROWS

_SHOWN_CHARACTERS_MAX = 32


class RequestClass(Enum):
    """The senders that may send a request."""

    CLIENT = "client"
    ADMIN = "admin"
    INTERNAL = "internal"
    REFUSED = "refused"


class FieldKind(Enum):
    """The form of a header field's text."""

    TEXT = "text"
    INT = "int"
    LONG = "long"
    BOOL = "bool"


class HeaderField(NamedTuple):
    """One header field of a request."""

    name: str
    kind: FieldKind
    is_mandatory: bool


class RequestSpec(NamedTuple):
    """One row of the table. `asks` and `answers` are client, broker, slave, namesrv, controller or local."""

    code: Request
    asks: str
    answers: str
    request_class: RequestClass
    fields: tuple[HeaderField, ...]


_NUMBER = re.compile(r"-?[0-9]{1,19}", re.ASCII)
_BITS = {FieldKind.INT: 31, FieldKind.LONG: 63}
_DIGITS_OF_ALL = 10  # fewer than these fit every kind of number
_FIELD = re.compile(r"(?P<name>[A-Za-z0-9]+)(?P<mandatory>!?)(?::(?P<kind>int|long|bool))?")


def _read(rows: str) -> Iterator[RequestSpec]:
    folded = re.sub(r"\n+ ", " ", rows)
    for line in folded.splitlines():
        if not line.strip():
            continue
        code, way, request_class, *fields = line.split()
        asks, answers = way.split(">")
        yield RequestSpec(
            Request(int(code)), asks, answers, RequestClass(request_class), tuple(_field(text) for text in fields)
        )


def _field(text: str) -> HeaderField:
    match = _FIELD.fullmatch(text)
    assert match is not None, f"no field: {text}"
    return HeaderField(match["name"], FieldKind(match["kind"] or "text"), bool(match["mandatory"]))


REQUESTS: Mapping[int, RequestSpec] = {
    spec.code: spec for rows in (CLIENT_ROWS, ADMIN_ROWS, INTERNAL_ROWS) for spec in _read(rows)
}

# What there is to check: the bits of a number or 0, and whether the field must be there.
_CHECKS: Mapping[int, tuple[tuple[str, int, bool], ...]] = {
    spec.code: tuple(
        (name, _BITS.get(kind, 0), is_mandatory)
        for name, kind, is_mandatory in spec.fields
        if is_mandatory or kind in _BITS
    )
    for spec in REQUESTS.values()
}


def check_fields(code: int, ext: Mapping[str, str]) -> None:
    """Hold the header fields of a request to its row; a code without one has nothing to hold.

    Raises:
        ProtocolError: a mandatory field is missing, or a number is none.
    """
    for name, bits, is_mandatory in _CHECKS.get(code, ()):
        text = ext.get(name)
        if text is None:
            if is_mandatory:
                raise ProtocolError(f"the custom field <{name}> is null")
        elif bits and (text or is_mandatory) and not _fits(text, bits):
            kind = next(kind for kind, its_bits in _BITS.items() if its_bits == bits)
            raise ProtocolError(f"the field {name} is {text[:_SHOWN_CHARACTERS_MAX]!a}; an {kind.value} is needed")


def _fits(text: str, bits: int) -> bool:
    if len(text) < _DIGITS_OF_ALL and text.isascii() and text.isdigit():
        return True
    return _NUMBER.fullmatch(text) is not None and -(1 << bits) <= int(text) < 1 << bits
