"""Owns what the message trace says of transactions: the half that was stored, and how it ended.

It does not know how traces are stored (tracing) nor how a transaction ends (transaction).

    begin            Pub, of type "half"
    commit, rollback EndTransaction, said by whoever ends it
    check            EndTransaction, from-check, said by the member that was asked
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from shmq.client.wire_tcp.outgoing import keys_of
from shmq.protocol import trace as wire
from shmq.protocol.trace import MessageType, Trace
from shmq.protocol.transaction import COMMIT, ROLLBACK

if TYPE_CHECKING:
    from shmq.client.observers.trace import Tracer
    from shmq.shm.core import Message

_STATES: Final = {COMMIT: "COMMIT_MESSAGE", ROLLBACK: "ROLLBACK_MESSAGE"}
_UNKNOWN: Final = "UNKNOW"


class TransactionTrace:
    """The trace of one transaction."""

    __slots__ = ("_about", "_tracer")

    def __init__(self, tracer: Tracer, about: Trace) -> None:
        self._tracer = tracer
        self._about = about

    def ended(self, state: int) -> None:
        """Note that its producer ended it."""
        self._tracer.add(_end_of(self._about, state, is_from_check=False))


def words_of(key: str | None, keys: Iterable[str] | None) -> list[str] | None:
    """Return the keys of a message as what may be read twice."""
    return keys_of(key, keys) or None


def begun(
    tracer: Tracer,
    group: str,
    topic: str,
    message_id: str,
    body: Any,
    began: float,
    *,
    tag: str | None,
    keys: Iterable[str],
) -> TransactionTrace:
    """Note that a half was stored, and return what notes its end.

    Args:
        began: when storing it began (time.monotonic).
    """
    cost = time.monotonic() - began
    about = Trace(
        wire.PUB,
        message_id,
        round((time.time() - cost) * 1000),
        group,
        topic,
        tag or "",
        " ".join(keys),
        body_bytes=len(body) if isinstance(body, (bytes, bytearray)) else memoryview(body).nbytes,
        cost_ms=round(cost * 1000),
        message_type=MessageType.TRANSACTION_HALF,
    )
    tracer.add(about)
    return TransactionTrace(tracer, about)


def checked(tracer: Tracer, group: str, message: Message, state: int) -> None:
    """Note what was answered to a broker's question."""
    about = Trace(wire.PUB, message.message_id, 0, group, message.topic, message.tag or "", " ".join(message.keys))
    tracer.add(_end_of(about, state, is_from_check=True))


def _end_of(about: Trace, state: int, *, is_from_check: bool) -> Trace:
    return about._replace(
        kind=wire.END_TRANSACTION,
        time_ms=round(time.time() * 1000),
        message_type=MessageType.TRANSACTION_COMMIT,
        transaction_id=about.message_id,
        transaction_state=_STATES.get(state, _UNKNOWN),
        is_from_check=is_from_check,
    )
