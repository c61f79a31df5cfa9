"""Reading header fields: text on the wire, checked values inside.

A field that is missing or malformed is answered as RocketMQ answers it.
"""

import re
from collections.abc import Mapping

from shmq.errors import ProtocolError

INT32_MAX = (1 << 31) - 1
INT64_MAX = (1 << 63) - 1

_NUMBER = re.compile(r"-?[0-9]{1,19}", re.ASCII)
ADVICE = "\nSee http://rocketmq.apache.org/docs/faq/ for further details."  # RocketMQ ends many remarks with it


def text_of(ext: Mapping[str, str], name: str) -> str:
    """Return a field that must be there and must not be empty.

    Raises:
        ProtocolError: it is not.
    """
    value = ext.get(name, "")
    if not value:
        raise ProtocolError(f"the field {name} is missing")
    return value


def number_of(
    ext: Mapping[str, str], name: str, *, least: int = 0, most: int = INT64_MAX, default: int | None = None
) -> int:
    """Return a decimal field within bounds; without a default it must be there.

    Raises:
        ProtocolError: missing, no decimal number, or out of bounds.
    """
    text = ext.get(name)
    if text is None:
        if default is None:
            raise ProtocolError(f"the field {name} is missing")
        return default
    is_plain = len(text) < 19 and text.isascii() and text.isdigit()
    value = int(text) if is_plain or _NUMBER.fullmatch(text) else None
    if value is None or not least <= value <= most:
        raise ProtocolError(f"the field {name} is {text[:32]!a}; a number from {least} to {most} is needed")
    return value


def flag_of(ext: Mapping[str, str], name: str) -> bool:
    """Return a boolean field; missing is false, as is anything but "true", as in Java."""
    return ext.get(name, "").lower() == "true"
