"""The messages of an election as bytes: a JSON object with the message's kind and its numbers.

Invariant: whatever bytes come, the outcome is a message or a ProtocolError.
"""

from __future__ import annotations

import json
from typing import get_type_hints

from shmq.daemon.ha.election.effects import (
    HandOverWanted,
    Leaving,
    Left,
    Message,
    OldEpoch,
    Position,
    Promise,
    PromiseWanted,
)
from shmq.errors import ProtocolError
from shmq.store.lineage.epochs import EPOCH_MAX

_KINDS: dict[str, type[Message]] = {
    kind.__name__: kind for kind in (Position, PromiseWanted, Promise, Leaving, Left, HandOverWanted, OldEpoch)
}
_HINTS = {kind: get_type_hints(kind) for kind in _KINDS.values()}
_NUMBER_MAX = (1 << 63) - 1


def message_bytes(message: Message) -> bytes:
    """Return what `read_message` reads."""
    return json.dumps({"kind": type(message).__name__, **message._asdict()}).encode()


def read_message(data: bytes) -> Message:
    """Read what a peer says.

    Raises:
        ProtocolError: it is no message.
    """
    try:
        values = json.loads(data)
        kind = _KINDS[values.pop("kind")]
        if values.keys() != set(kind._fields):
            raise ValueError(f"it has the fields {sorted(values)}")
        for name, value in values.items():
            if type(value) is not _HINTS[kind][name]:
                raise ValueError(f"{name} is {value!r}")
            if type(value) is int and not 0 <= value <= (EPOCH_MAX if name == "epoch" else _NUMBER_MAX):
                raise ValueError(f"{name} is {value}")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ProtocolError(f"a peer says in an election what is no message: {error}") from error
    return kind(**values)
