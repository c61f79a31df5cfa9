"""A received message as text: for a terminal, a pipe, a format string, a JSON document, a command's environment.

    body       the body, one newline                                         when piped
    pretty     08:41:07.113  q3@1881  fruit  key=17  body                    on a terminal, or with -v
    format     kcat's: %s body %S its size %k key %t topic %p queue %o offset %T time in ms %h properties
               and %g tag, %i message id, %%, \\n \\t \\0 \\xNN
    json       one object a line, or one document of all
    command    SHMQ_TOPIC, SHMQ_KEY, … beside our own environment

Invariants:
1. The body form is exactly the stored bytes and one newline: what `produce` took as a line comes back as that line.
   A body that its sender called compressed, and that does not inflate, has none; all other forms show it as it lies.
2. The pretty form on a terminal holds no control character of a body: a message cannot steer the reader's terminal.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from shmq.errors import CorruptionError, MessageTooLarge, UsageError
from shmq.figures.quantity import clock_text, iso_text
from shmq.properties import RESERVED_PROPERTIES
from shmq.tools.terminal.output import json_line, printable
from shmq.words import escaped

if TYPE_CHECKING:
    from shmq.shm.core import Message

Render = Callable[["Message"], bytes]
UNREADABLE = (CorruptionError, MessageTooLarge)
"""Raised for a body that was not packed as its sender says; the message is whole, and stays as it is."""


def and_more(*, is_cut: bool) -> str:
    """Return what follows the number of things shown, where there are more."""
    return "; there are more: -n takes more at once" if is_cut else ""


def own_properties(message: Message) -> dict[str, str]:
    """Return the properties an application set, without those RocketMQ keeps for itself."""
    return {name: value for name, value in message.properties.items() if name not in RESERVED_PROPERTIES}


def body_of(message: Message) -> tuple[bytes, str]:
    """Return a body and "", or its bytes as they lie and why it cannot be inflated."""
    try:
        return message.body, ""
    except UNREADABLE as error:
        return bytes(message.view), str(error)


def render_body(message: Message) -> bytes:
    """Return the body and a newline.

    Raises:
        CorruptionError, MessageTooLarge: it does not inflate.
    """
    return message.body + b"\n"


def render_pretty(message: Message, *, escape: bool) -> bytes:
    """Return one line for people; with `escape` the body cannot hold a control character."""
    parts = [clock_text(message.store_ms), f"q{message.queue_id}@{message.offset}"]
    if message.tag:
        parts.append(message.tag)
    parts += [f"key={key}" for key in message.keys]
    parts += [f"{name}={value}" for name, value in own_properties(message).items()]
    if message.attempt > 1:
        parts.append(f"attempt={message.attempt}")
    head, (body, _) = "  ".join(parts) + "  ", body_of(message)
    if escape:
        return (printable(head.encode()) + printable(body) + "\n").encode()
    return head.encode() + body + b"\n"


def message_document(message: Message) -> dict[str, Any]:
    """Return the message as JSON carries it; a body that is no UTF-8 text is in `body_base64` instead of `body`."""
    body, fault = body_of(message)
    document: dict[str, Any] = {
        "topic": message.topic,
        "queue": message.queue_id,
        "offset": message.offset,
        "message_id": message.message_id,
        "tag": message.tag,
        "key": message.key,
        "keys": list(message.keys),
        "message_group": message.message_group,
        "properties": own_properties(message),
        "born": iso_text(message.born_ms),
        "stored": iso_text(message.store_ms),
        "attempt": message.attempt,
        "size_bytes": len(body),
    }
    try:
        document["body"] = None if fault else body.decode()
    except UnicodeDecodeError:
        document["body"] = None
    if document["body"] is None:
        import base64

        document["body_base64"] = base64.b64encode(body).decode()
    if fault:
        document["body_error"] = fault
    return document


def environment_of(message: Message) -> dict[str, str]:
    r"""Return our own environment, and SHMQ_TOPIC, SHMQ_KEY, … of a message.

    Other clients store any word: a NUL, which no environment can carry, is written as `\x00`.
    """
    variables = {
        "SHMQ_TOPIC": message.topic,
        "SHMQ_QUEUE": str(message.queue_id),
        "SHMQ_OFFSET": str(message.offset),
        "SHMQ_KEY": message.key or "",
        "SHMQ_TAG": message.tag or "",
        "SHMQ_MESSAGE_ID": message.message_id,
        "SHMQ_ATTEMPT": str(message.attempt),
    }
    return {**os.environ, **{name: escaped("environment", text) for name, text in variables.items()}}


def render_json_line(message: Message) -> bytes:
    """Return the message as one line of JSON."""
    return (json_line(message_document(message)) + "\n").encode()


_FIELDS: dict[str, Render] = {
    "s": lambda message: message.body,
    "S": lambda message: b"%d" % len(message.body),
    "k": lambda message: (message.key or "").encode(),
    "K": lambda message: b"%d" % len((message.key or "").encode()),
    "t": lambda message: message.topic.encode(),
    "p": lambda message: b"%d" % message.queue_id,
    "o": lambda message: b"%d" % message.offset,
    "T": lambda message: b"%d" % message.store_ms,
    "h": lambda message: ",".join(f"{name}={value}" for name, value in own_properties(message).items()).encode(),
    "g": lambda message: (message.tag or "").encode(),
    "i": lambda message: message.message_id.encode(),
    "%": lambda message: b"%",
}

_ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\", "e": b"\x1b"}
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|.?)", re.DOTALL)
_FIELD = re.compile(r"%(.?)", re.DOTALL)


def unescape(text: str) -> bytes:
    """Return the bytes meant by text with `\\n`, `\\t`, `\\r`, `\\0`, `\\e`, `\\\\` and `\\xNN` in it.

    Raises:
        UsageError: another letter behind a backslash.
    """
    literals = _ESCAPE.split(text)
    data = bytearray()
    for index, piece in enumerate(literals):
        if index % 2 == 0:
            data += piece.encode("utf-8", "surrogateescape")
        elif len(piece) == 3:
            data.append(int(piece[1:], 16))
        elif piece in _ESCAPES:
            data += _ESCAPES[piece]
        else:
            raise UsageError(f"\\{piece} is not an escape", hint=r"use one of \n \t \r \0 \e \\ \xNN")
    return bytes(data)


def format_renderer(text: str) -> Render:
    """Return what renders messages by a kcat-like format; nothing is added behind it, not even a newline.

    Raises:
        UsageError: an unknown letter behind % or a backslash.
    """
    pieces: list[bytes | Render] = []
    for index, piece in enumerate(_FIELD.split(text)):
        if index % 2 == 0:
            pieces.append(unescape(piece))
        elif piece in _FIELDS:
            pieces.append(_FIELDS[piece])
        else:
            raise UsageError(f"%{piece} is not part of a format", hint=f"use one of %{' %'.join(_FIELDS)}")

    def render(message: Message) -> bytes:
        return b"".join(piece if isinstance(piece, bytes) else piece(message) for piece in pieces)

    return render
