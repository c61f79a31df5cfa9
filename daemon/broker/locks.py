"""Locks on queues for ordered consumption: LOCK_BATCH_MQ (41) and UNLOCK_BATCH_MQ (42).

Owns which client of a group may consume which queue in order. It does not know how a client uses that.

    free, or last renewed 60 s ago    whoever asks gets it
    held                              its holder renews it by asking again; others do not get it

A holder whose connection ends keeps its locks until they expire, as in RocketMQ: it may come back, and what it has
taken may still be at work. A queue that a local member of the group owns is not given to anybody over TCP.

Invariant: only queues of live topics and groups that exist have locks, so their number is bounded by the tables.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from shmq.daemon.broker.requests import Answer, Call, Handler, Part
from shmq.daemon.broker.tables import Tables
from shmq.errors import ProtocolError
from shmq.protocol.body import decode_body, encode_body
from shmq.protocol.codes import Request
from shmq.protocol.dialect import MessageQueue

LOCK_LIFE_MS = 60_000


class LockRequest(msgspec.Struct):
    """Body of LOCK_BATCH_MQ and UNLOCK_BATCH_MQ."""

    consumerGroup: str = ""
    clientId: str = ""
    mqSet: list[MessageQueue] = []


class LockReply(msgspec.Struct):
    """Body of the answer to LOCK_BATCH_MQ."""

    lockOKMQSet: list[MessageQueue] = []


class _Lock(NamedTuple):
    client_id: str
    since_ms: int


class Locks(Part):
    """Serves locks."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._held: dict[tuple[int, int], _Lock] = {}  # (group, queue)

    def handlers(self) -> dict[int, Handler]:
        """Return what is served here, by request code."""
        return {Request.LOCK_BATCH_MQ: self._lock, Request.UNLOCK_BATCH_MQ: self._unlock}

    def tick(self, now_ms: int) -> tuple[()]:
        """Forget what nobody renews."""
        for key in [key for key, lock in self._held.items() if now_ms - lock.since_ms > LOCK_LIFE_MS]:
            del self._held[key]
        return ()

    def _lock(self, call: Call) -> Answer:
        request = _request(call)
        locked = [asked for asked, key in self._places(request) if self._take(key, request.clientId, call.now_ms)]
        return Answer(body=encode_body(LockReply(locked)))

    def _take(self, key: tuple[int, int], client_id: str, now_ms: int) -> bool:
        held = self._held.get(key)
        if held is not None and held.client_id != client_id and now_ms - held.since_ms <= LOCK_LIFE_MS:
            return False
        if held is None and self._is_owned_here(key):
            return False
        self._held[key] = _Lock(client_id, now_ms)
        return True

    def _is_owned_here(self, key: tuple[int, int]) -> bool:
        slot = self._tables.offset_slot(*key)
        return slot is not None and self._tables.offset_owned(slot)

    def _unlock(self, call: Call) -> Answer:
        request = _request(call)
        for _, key in self._places(request):
            held = self._held.get(key)
            if held is not None and held.client_id == request.clientId:
                del self._held[key]
        return Answer()

    def _places(self, request: LockRequest) -> Iterable[tuple[MessageQueue, tuple[int, int]]]:
        group = self._tables.group(request.consumerGroup)
        if group is None:
            return
        for asked in request.mqSet:
            topic = self._tables.topic(asked.topic)
            if topic is not None and 0 <= asked.queueId < len(topic.queues):
                yield asked, (group, topic.queues[asked.queueId])


def _request(call: Call) -> LockRequest:
    request = decode_body(call.command.body, LockRequest)
    if not request.clientId or not request.consumerGroup:
        raise ProtocolError("a lock without a client id or a group")
    return request
