"""The form of kombu's messages in a topic: its own dictionary as JSON.

    {"body": text, "headers": {…}, "content-type": …, "content-encoding": …,
     "properties": {"body_encoding": null or "base64", "delivery_info": {"routing_key": text, …}, …}}

Any client can write to a topic, so what comes out is input: `decoded` returns what kombu can make a message of, or
what is wrong. Bytes that had to become text come back as bytes.
"""

from __future__ import annotations

from typing import Any, Final

from kombu.transport.virtual import base
from kombu.utils.json import dumps, loads

_CODECS: Final = base.Channel.codecs


class Foreign(Exception):
    """A body is no envelope; the text says why."""


def encoded(message: dict[str, Any]) -> bytes:
    """Return what is stored of a message."""
    text: str = dumps(message)
    return text.encode()


def decoded(stored: bytes) -> dict[str, Any]:
    """Return a message.

    Raises:
        Foreign: no kombu has written this.
    """
    try:
        payload = loads(stored)
    except Exception as error:  # JSON's, those of kombu's own types, and of what is nested too deep
        raise Foreign(f"it is not kombu's JSON ({type(error).__name__})") from error
    properties = _part(payload, "properties", "the message")
    routing_key = _part(properties, "delivery_info", "properties").get("routing_key")
    if not isinstance(routing_key, str):
        raise Foreign("delivery_info has no routing_key that is text")
    if not isinstance(payload.get("headers", {}), dict | None):
        raise Foreign("headers are no mapping")
    _decode_body(payload, properties)
    return payload  # type: ignore[no-any-return]


def _part(whole: Any, name: str, of: str) -> dict[str, Any]:
    part = whole.get(name) if isinstance(whole, dict) else None
    if not isinstance(part, dict):
        raise Foreign(f"{name} of {of} are missing or no mapping")
    return part


def _decode_body(payload: dict[str, Any], properties: dict[str, Any]) -> None:
    body, encoding = payload.get("body"), properties.get("body_encoding")
    if not isinstance(body, str | bytes | None):
        raise Foreign(f"its body is of type {type(body).__name__}")
    if encoding is None or body is None or encoding == "utf-8":
        return
    codec = _CODECS.get(encoding) if isinstance(encoding, str) else None
    if codec is None:
        raise Foreign(f"body_encoding {encoding!r} is not known")
    try:
        payload["body"] = codec.decode(body)
    except ValueError as error:
        raise Foreign(f"its body is not {encoding}") from error
    properties["body_encoding"] = None
