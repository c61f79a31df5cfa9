"""Locks on queues for ordered consumption: LOCK_BATCH_MQ (41) and UNLOCK_BATCH_MQ (42).

    free, or last renewed 60 s ago    the next client that asks gets it
    held                              its holder renews it by asking again; others do not get it

A holder whose connection ends keeps its locks until they expire, as in RocketMQ: it may come back, and what it has
taken may still be at work. The word that says which local member reads a queue says this too, in shared memory: a
queue has one reader, whichever way it came, and a broker that is started again knows who that is.

Invariants: (1) only queues of live topics and groups that exist have locks; (2) of a client id 31 bits of a hash are
kept, so two ids of one group are taken for one in one of two thousand million cases.
"""

from collections.abc import Iterable
from hashlib import blake2b

import msgspec

from shmq.daemon.broker.tables import GroupProgress
from shmq.daemon.logic.access.client_ids import ClientIds
from shmq.daemon.logic.requests import Answer, Call, Part, serves
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


class Locks(Part):
    """Serves locks."""

    def __init__(self, tables: GroupProgress, client_ids: ClientIds) -> None:
        self._tables = tables
        self._client_ids = client_ids

    @serves(Request.LOCK_BATCH_MQ)
    def _lock(self, call: Call) -> Answer:
        request = self._request(call)
        holder, tables = _holder(request.clientId), self._tables
        locked = [
            asked
            for asked, (group, queue) in self._places(request)
            if tables.offset_lock(tables.offset_put(group, queue), holder, call.now_ms, LOCK_LIFE_MS)
        ]
        return Answer(body=encode_body(LockReply(locked)))

    @serves(Request.UNLOCK_BATCH_MQ)
    def _unlock(self, call: Call) -> Answer:
        request = self._request(call)
        holder = _holder(request.clientId)
        for _, (group, queue) in self._places(request):
            slot = self._tables.offset_slot(group, queue)
            if slot is not None:
                self._tables.offset_unlock(slot, holder)
        return Answer()

    def _request(self, call: Call) -> LockRequest:
        request = decode_body(call.command.body, LockRequest)
        if not request.clientId or not request.consumerGroup:
            raise ProtocolError("a lock without a client id or a group")
        self._client_ids.check(request.clientId, call.rights, call.now_ms)
        return request

    def _places(self, request: LockRequest) -> Iterable[tuple[MessageQueue, tuple[int, int]]]:
        group = self._tables.group(request.consumerGroup)
        if group is None:
            return
        for asked in request.mqSet:
            topic = self._tables.topic(asked.topic)
            if topic is not None and 0 <= asked.queueId < len(topic.queues):
                yield asked, (group, topic.queues[asked.queueId])


def _holder(client_id: str) -> int:
    return int.from_bytes(blake2b(client_id.encode(), digest_size=4).digest()) >> 1
