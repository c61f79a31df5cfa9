"""The .properties text in which RocketMQ's tools and servers exchange settings.

Escapes are left out: no name or value that shmq takes or gives needs one.

    name=value                lines that begin with # or ! are comments
"""

from __future__ import annotations

from collections.abc import Mapping

from shmq.errors import ProtocolError

_LINES_MAX = 64


def parse_java_properties(body: bytes) -> list[tuple[str, str]]:
    """Return names and values in their order.

    Raises:
        ProtocolError: not UTF-8, or more lines than any client has reason to send.
    """
    try:
        lines = body.decode().splitlines()
    except UnicodeDecodeError as error:
        raise ProtocolError(f"the body is not UTF-8 at its byte {error.start}") from error
    if len(lines) > _LINES_MAX:
        raise ProtocolError(f"{len(lines)} lines; {_LINES_MAX} are allowed")
    pairs = (line.partition("=") for line in map(str.strip, lines) if line and line[0] not in "#!")
    return [(name.strip(), value.strip()) for name, _, value in pairs]


def java_properties(values: Mapping[str, str]) -> bytes:
    """Return the text, sorted by name."""
    return "".join(f"{name}={value}\n" for name, value in sorted(values.items())).encode()
