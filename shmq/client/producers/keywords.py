"""Owns sends with keywords that the core does not know: which there are, and what they make of a message.

It does not know what a keyword does to a message (its owner's module), nor how messages are stored.

    send(topic, body, tag="t", delay_level=3)
      local   core ── special(topic, body, {"tag": "t", "delay_level": 3}) ──▶ SpecialSend ──▶ where a broker stores
      TCP     RemoteSender ──▶ the properties travel with the message, the broker does the rest

A keyword is an entry of `MEANINGS`: a function from its value to the properties it stands for, which the application
may not set by itself. One that is None counts as not given.

Rules:
    (1) a send without such a keyword never comes here;
    (2) a keyword nobody knows is refused with the words of the core.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypedDict

from shmq.client.producers import delay as delayed
from shmq.message import check_properties, encode_properties

if TYPE_CHECKING:
    from datetime import datetime, timedelta

    from shmq.client.wire_shm.session import Session
    from shmq.shm.core import Producer, Receipt


class SpecialArguments(TypedDict, total=False):
    """The special keyword arguments of `send` and `send_oneway`, for those who pass them on."""

    delay_level: int | None
    delay: timedelta | float | None
    deliver_at: datetime | str | float | None


Meaning = Callable[[Any], dict[str, str]]

MEANINGS: Final[dict[str, Meaning]] = {**delayed.MEANINGS}
_OWN: Final = frozenset(
    ("tag", "key", "keys", "properties", "message_group", "queue_id", "flag", "timeout")  # of every send
)


def take_special(arguments: dict[str, Any]) -> dict[str, str]:
    """Remove the special keywords from the arguments of a send, and return the properties they stand for.

    Raises:
        TypeError: a keyword that no send has.
        UsageError: a value that means nothing, or two keywords that contradict each other.
    """
    if len(arguments) == 1:  # nearly always
        name, value = arguments.popitem()
        if name in MEANINGS:
            return MEANINGS[name](value) if value is not None else {}
        arguments[name] = value
    found: dict[str, str] = {}
    for name in [name for name in arguments if name not in _OWN]:
        meaning = MEANINGS.get(name)
        if meaning is None:
            raise TypeError(f"send() got an unexpected keyword argument '{name}'")
        value = arguments.pop(name)
        if value is not None:
            found.update(meaning(value))
    if len(found) > 1:
        delayed.check_one(found)
    return found


class SpecialSend:
    """Takes the special sends of one local producer."""

    __slots__ = ("_delayed", "_send", "_send_oneway")

    def __init__(self, session: Session) -> None:
        self._delayed = delayed.DelayedSend(session)

    def bind(self, producer: Producer) -> Producer:
        """Say whose sends these are; return it."""
        self._send, self._send_oneway = producer.send, producer.send_oneway
        return producer

    def __call__(self, topic: str, body: Any, arguments: dict[str, Any], is_oneway: bool) -> Receipt | None:
        """Store one message and return where; a one-way message returns nothing and does not wait for the disk."""
        send = self._send_oneway if is_oneway else self._send
        found = take_special(arguments)
        if delayed.is_delayed(found):
            return self._delayed.send(send, topic, body, found, arguments)
        if found:
            arguments["properties"] = property_text(found, arguments.get("properties"))
        return send(topic, body, **arguments)


def property_text(reserved: Mapping[str, str], properties: Mapping[str, str] | None) -> bytes:
    """Return RocketMQ's text of properties that are ours and of an application's own.

    Raises:
        UsageError: a property the application may not set.
    """
    if properties:
        check_properties(properties)
        return encode_properties({**reserved, **properties}).encode()
    return encode_properties(reserved).encode()
