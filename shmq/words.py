r"""Checks the words of a message: tag, key, message group; and how words that other clients stored are sent again.

This is the one rule for every door: local sends (bindings/face/send/py_property.c holds it in C), TCP, asyncio, both
guarantees of the Spark sink, the commands. Names of topics and groups are in message.py, properties in properties.py.

    word             may not be, or hold
    tag              `|` and blanks around it, which separate tags in a subscription; `*`, which means every tag
    key              a blank, which separates keys
    tag, key,
    message group    empty; a control character; half a surrogate pair, which UTF-8 cannot carry

Any other character is a letter like the others, U+3000 and the no-break space included: RocketMQ separates by the ASCII
blank alone. Its clients check next to nothing, so a stored message may have what is refused here. It is read as it is.
Where it is sent again or handed to a program, that character is written as an escape: NUL as `\x00`.

Invariants:
    1. `check_word` takes exactly the tags that a subscription can name, and the keys that a search can.
    2. What `sent_again` returns for any stored message is taken by every send.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from shmq.errors import UsageError
from shmq.properties import RESERVED_PROPERTIES, is_control

REASON_CHARACTERS_MAX: Final = 500
_TRIMMED: Final = "".join(map(chr, range(0x21)))  # what Java's trim takes away; U+3000 is a letter
_SEPARATORS: Final = {
    "tag": ("|", "'|', which separates tags in a subscription", "a message has one tag"),
    "key": (" ", "a blank, which separates keys", 'several are keys=["order-42", "customer-7"]'),
}
_CONTROL: Final = r"\x00-\x1f\x7f-\x9f"
_HALVES: Final = r"\ud800-\udfff"
_ESCAPED: Final = {
    "tag": re.compile(rf"[{_CONTROL}{_HALVES}|]|\A[ ]|[ ]\Z|\A\*\Z"),
    "key": re.compile(rf"[{_CONTROL}{_HALVES} ]"),
    "message_group": re.compile(rf"[{_CONTROL}{_HALVES}]"),
    "name": re.compile(rf"[{_CONTROL}{_HALVES}]"),
    "value": re.compile(rf"[\x01\x02{_HALVES}]"),
    "environment": re.compile(rf"[\x00{_HALVES}]"),
}


def check_word(name: str, text: str) -> None:
    """Refuse a tag, a key or a message group that no message can have.

    Raises:
        UsageError: it is empty, or holds what separates or cannot be carried.
    """
    if not text:
        raise UsageError(f"{name} is empty", hint="leave it out")
    if not text.isprintable():
        if control := next(filter(is_control, text), None):
            raise UsageError(f"{name} {text!a:.80} holds the control character {control!a}", hint="remove it")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise UsageError(
                f"{name} holds {text[error.start]!a}, which UTF-8 cannot carry", hint="remove it"
            ) from None
    separator, what, hint = _SEPARATORS.get(name, ("", "", ""))
    if separator and separator in text:
        raise UsageError(f"{name} {text!r:.80} holds {what}", hint=hint)
    if name == "tag" and (text == "*" or text[0] == " " or text[-1] == " "):
        what = "means every tag" if text == "*" else "has a blank around it, which is no part of a tag"
        raise UsageError(f"tag {text!r:.80} {what} in a subscription", hint="another tag")


def tags_in(expression: str) -> list[str]:
    """Return the parts of a client's `fruit || veg`, as RocketMQ separates and trims them; empty ones stay."""
    return [part.strip(_TRIMMED) for part in expression.split("||")]


def keys_in(text: str) -> list[str]:
    """Return the keys of a stored message by its property KEYS."""
    return [key for key in text.split(" ") if key]


def escaped(kind: str, text: str) -> str:
    r"""Return stored text with what a word of this kind may not hold written as `\x00` or `\ud800`."""
    return _ESCAPED[kind].sub(_escape, text)


def reason_text(reason: object) -> str:
    """Return why a message is given up as a request and a dead letter can carry it: cut, without halves of a pair.

    Nothing is refused here: a message that is being settled must not come again because of the words about it.
    """
    try:
        text = str(reason)
    except Exception:  # the text of an exception is the application's code
        text = type(reason).__name__
    return text[:REASON_CHARACTERS_MAX].encode(errors="replace").decode()


def _escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def sent_again(properties: Mapping[str, str], *, without: Iterable[str] = ()) -> dict[str, Any]:
    """Return what a send takes of a stored message's properties: `tag`, `keys`, `properties` and `message_group`.

    Args:
        properties: all of them.
        without: properties that are left out, beside those of RocketMQ.
    """
    dropped = RESERVED_PROPERTIES.union(without)
    own = {
        escaped("name", name): escaped("value", text)
        for name, text in properties.items()
        if name and text and name not in dropped
    }
    tag, group = properties.get("TAGS"), properties.get("__SHARDINGKEY")
    return {
        "tag": escaped("tag", tag) if tag else None,
        "keys": [escaped("key", key) for key in keys_in(properties.get("KEYS", ""))] or None,
        "properties": own or None,
        "message_group": escaped("message_group", group) if group else None,
    }
