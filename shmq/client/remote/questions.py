"""Questions about queues to the brokers that have them: pulls, bounds, offsets of groups, members, locks.

They are coroutines of the I/O thread, each of which ends within its timeout. A pull is a question, too; what follows
from its answer is a `Pulled`:

    0  found                                      deliver, go on at once
    19 not found, 20 retry at once                go on at once; after a moment if the broker did not hold the request
    21 offset moved                               begin again where the broker says
    24, 25 subscription unknown or old            register again, then go on
    anything else                                 go on after a pause, with the broker's words

Invariants:
    1. A question goes to the master of the queue's broker.
    2. The numbers of an answer are input: checked before they are believed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from shmq.addresses import Address
from shmq.client.position import Kind, Position
from shmq.client.wire import CONCURRENT_MAX
from shmq.client.wire_tcp.name_service import NameService
from shmq.client.wire_tcp.network import Network, countdown
from shmq.errors import (
    BrokerNotRunning,
    ConnectError,
    PermissionDenied,
    ProtocolError,
    RemoteError,
    RequestTimeout,
    ShmqError,
)
from shmq.protocol.body import decode_body, encode_body
from shmq.protocol.client_requests import group_creation, member_ids, member_list, message_view
from shmq.protocol.codes import Request, Response
from shmq.protocol.command import FLAG_ONEWAY, Command
from shmq.protocol.dialect import MessageQueue, loads
from shmq.protocol.failure import error_of, number_in, reply_of
from shmq.shm.core import Message, records_read

ANONYMOUS_GROUP: Final = "TOOLS_CONSUMER"
"""The group RocketMQ keeps for tools that read without being members of anything."""
COUNT_MAX: Final = 32
SUSPEND: Final = 15.0
ANSWER_MARGIN: Final = 15.0
"""The broker holds a pull up to SUSPEND seconds, rounded up to its own ticks; after this much more it is lost."""
ERROR_PAUSE: Final = 1.0
EMPTY_PAUSE: Final = 0.1
FLOW_PAUSE: Final = 0.05
FLOW_PAUSE_MAX: Final = 0.5

COMMIT_OFFSET, HOLD, SUBSCRIPTION = 1, 2, 4


class PullQuestion(NamedTuple):
    """A pull of one queue."""

    group: str
    queue: MessageQueue
    offset: int
    count_max: int = COUNT_MAX
    hold: float = SUSPEND
    commit_offset: int | None = None
    expression: str | None = None  # None: the broker knows the group's subscription from its heartbeat
    version: int = 0
    expression_type: str = "TAG"
    reader: int = 0  # tells those of one connection apart that read for no group: each has offsets of its own


class Pulled(NamedTuple):
    """The meaning of an answer to a pull."""

    body: bytes = b""
    next_offset: int = 0
    offset_max: int = 0
    broker_id: int = 0
    moved: bool = False
    register: bool = False
    pause: float = 0.0
    error: ShmqError | None = None


def pull_command(question: PullQuestion) -> Command:
    """Return the request."""
    flags = HOLD if question.hold > 0 else 0
    flags |= COMMIT_OFFSET if question.commit_offset is not None else 0
    flags |= SUBSCRIPTION if question.expression is not None else 0
    ext = {
        "consumerGroup": question.group,
        "topic": question.queue.topic,
        "queueId": str(question.queue.queueId),
        "queueOffset": str(question.offset),
        "maxMsgNums": str(question.count_max),
        "sysFlag": str(flags),
        "commitOffset": str(question.commit_offset or 0),
        "suspendTimeoutMillis": str(round(question.hold * 1000)),
        "subVersion": str(question.version),
        "expressionType": question.expression_type,
        "bname": question.queue.brokerName,
    }
    if question.expression is not None:
        ext["subscription"] = question.expression
    if question.reader:
        ext["reader"] = str(question.reader)
    return Command(code=Request.PULL_MESSAGE, ext=ext)


def read_pulled(reply: Command, question: PullQuestion, waited: float) -> Pulled:
    """Say what follows from an answer that took `waited` seconds."""
    if reply.code not in (
        Response.SUCCESS,
        Response.PULL_NOT_FOUND,
        Response.PULL_RETRY_IMMEDIATELY,
        Response.PULL_OFFSET_MOVED,
    ):
        stale = reply.code in (Response.SUBSCRIPTION_NOT_EXIST, Response.SUBSCRIPTION_NOT_LATEST)
        return Pulled(next_offset=question.offset, register=stale, pause=ERROR_PAUSE, error=error_of(reply))
    try:
        next_offset, offset_max, broker_id = (
            number_in("the answer to a pull", reply.ext, name)
            for name in ("nextBeginOffset", "maxOffset", "suggestWhichBrokerId")
        )
    except ProtocolError as error:
        return Pulled(next_offset=question.offset, pause=ERROR_PAUSE, error=error)
    if reply.code == Response.SUCCESS:
        return Pulled(reply.body, max(next_offset, question.offset), offset_max, broker_id)
    if reply.code == Response.PULL_OFFSET_MOVED:
        stuck = next_offset == question.offset
        return Pulled(b"", next_offset, offset_max, broker_id, moved=True, pause=ERROR_PAUSE if stuck else 0.0)
    advanced = next_offset > question.offset
    quick = question.hold > 0 and waited < EMPTY_PAUSE and not advanced
    return Pulled(b"", max(next_offset, question.offset), offset_max, broker_id, pause=EMPTY_PAUSE if quick else 0.0)


OFFSETS_BODY_BYTES_MAX = 1 << 20


class _LockBody(msgspec.Struct):
    clientId: str
    consumerGroup: str
    mqSet: list[MessageQueue]


class _LockedBody(msgspec.Struct):
    lockOKMQSet: list[MessageQueue] = []


class QueueQuestions:
    """Requests to the brokers of queues; `timeout` is seconds for an answer."""

    def __init__(self, network: Network, names: NameService, timeout: float) -> None:
        self.network = network
        self.names = names
        self._timeout = timeout

    async def master(self, queue: MessageQueue, *, timeout: float | None = None) -> Address:
        """Return the address of the broker that has a queue.

        Raises:
            BrokerNotRunning: no name server knows it any more.
        """
        route = await self.names.route(queue.topic, timeout=self._timeout if timeout is None else timeout)
        address = route.reader(queue.brokerName) if route is not None else None
        if address is None:
            raise BrokerNotRunning(
                f"no name server knows broker {queue.brokerName}, which had queue {queue.queueId} of {queue.topic}",
                hint="is the broker up, and registered?",
            )
        return address

    async def ask(self, queue: MessageQueue, code: int, ext: Mapping[str, str], *, oneway: bool = False) -> Command:
        """Ask about one queue; topic, queue id and broker name are added."""
        left = countdown(self.network.loop, self._timeout)
        address = await self.master(queue, timeout=left())
        fields = {**ext, "topic": queue.topic, "queueId": str(queue.queueId), "bname": queue.brokerName}
        command = Command(code=code, ext=fields, flag=FLAG_ONEWAY if oneway else 0)
        if oneway:
            await self.network.notify(address, command, left())
            return command
        return await self.network.request(address, command, left())

    async def _number(self, queue: MessageQueue, code: int, ext: Mapping[str, str]) -> int:
        return _offset_of(await self.ask(queue, code, ext))

    async def pull(self, question: PullQuestion, broker_id: int, timeout: float) -> Pulled:
        """Ask for messages of a queue at one of its broker's replicas, and say what the answer means."""
        route = await self.names.route(question.queue.topic, timeout=timeout)
        address = route.reader(question.queue.brokerName, broker_id) if route is not None else None
        if address is None:
            raise BrokerNotRunning(
                f"broker {question.queue.brokerName} of topic {question.queue.topic} is not registered now",
                hint="is it up?",
            )
        started = self.network.loop.time()
        reply = await self.network.request(address, pull_command(question), timeout)
        return read_pulled(reply, question, self.network.loop.time() - started)

    # -- offsets
    async def offset_min(self, queue: MessageQueue) -> int:
        """Return the first offset stored."""
        return await self._number(queue, Request.GET_MIN_OFFSET, {})

    async def offset_max(self, queue: MessageQueue) -> int:
        """Return the offset behind the last one stored."""
        return await self._number(queue, Request.GET_MAX_OFFSET, {})

    async def bounds(self, queue: MessageQueue) -> tuple[int, int]:
        """Return both."""
        low, high = await asyncio.gather(self.offset_min(queue), self.offset_max(queue))
        return low, max(low, high)

    async def place_in(self, queue: MessageQueue, position: Position) -> int:
        """Return the offset a position means in a queue now."""
        if position.kind is Kind.BEGIN:
            return await self.offset_min(queue)
        if position.kind is Kind.END:
            return await self.offset_max(queue)
        low, high = await self.bounds(queue)
        found = position.value
        if position.kind is Kind.TIME_MS and high > low:
            ext = {"timestamp": str(position.value)}
            found = await self._number(queue, Request.SEARCH_OFFSET_BY_TIMESTAMP, ext)
            if found >= high - 1 and await self._is_older(queue, high - 1, position.value):
                found = high  # RocketMQ's search answers the last message when all are older
        return min(max(found, low), high)

    async def _is_older(self, queue: MessageQueue, offset: int, time_ms: int) -> bool:
        message = await self._message_at(queue, offset)
        return message is not None and message.offset == offset and message.store_ms < time_ms

    async def _message_at(self, queue: MessageQueue, offset: int) -> Message | None:
        """Return the message at an offset, or the first one after it; None where the broker gives none."""
        question = PullQuestion(ANONYMOUS_GROUP, queue, offset, count_max=1, hold=0.0, expression="*")
        reply = await self.network.request(await self.master(queue), pull_command(question), self._timeout)
        if reply.code == Response.PULL_OFFSET_MOVED:  # once, where looks at a former topic of the name came before
            reply = await self.network.request(await self.master(queue), pull_command(question), self._timeout)
        messages = records_read(reply.body) if reply.code == Response.SUCCESS else []
        return messages[0] if messages else None

    async def record_at(self, queue: MessageQueue, position: int) -> Message | None:
        """Return the message at a place in the log of a queue's broker; None where it gives none."""
        reply = await self.network.request(await self.master(queue), message_view(position), self._timeout)
        error = error_of(reply)
        if error is not None and error.code != Response.SYSTEM_ERROR:  # which it answers where no record begins
            raise error
        messages = [] if error is not None else records_read(reply.body)
        return messages[0] if messages else None

    async def messages_at(self, places: Sequence[tuple[MessageQueue, int]]) -> list[Message]:
        """Return the messages at offsets of queues, without those that are gone."""
        room = asyncio.Semaphore(CONCURRENT_MAX)

        async def one(queue: MessageQueue, offset: int) -> Message | None:
            async with room:
                return await self._message_at(queue, offset)

        found = await asyncio.gather(*(one(queue, offset) for queue, offset in places))
        return [message for message in found if message is not None]

    async def committed(self, group: str, queue: MessageQueue) -> int:
        """Return a group's committed offset, -1 when the broker knows none.

        For a young queue a broker answers 0 instead; `committed_exactly` tells the difference.
        """
        ext = {"consumerGroup": group, "setZeroIfNotFound": "false"}
        reply = await self.ask(queue, Request.QUERY_CONSUMER_OFFSET, ext)
        return -1 if reply.code == Response.QUERY_NOT_FOUND else _offset_of(reply)

    async def committed_exactly(self, group: str, queues: Sequence[MessageQueue]) -> dict[MessageQueue, int]:
        """Return what a group really committed on queues, from the brokers' whole tables.

        Where those are for administrators each queue is asked for; only shmq's broker then tells 0 from nothing.
        """
        found: dict[MessageQueue, int] = {}
        for broker_name in sorted({queue.brokerName for queue in queues}):
            mine = [queue for queue in queues if queue.brokerName == broker_name]
            address = await self.master(mine[0])
            reply = await self.network.request(address, Command(code=Request.GET_ALL_CONSUMER_OFFSET), self._timeout)
            if (error := error_of(reply)) is not None:
                if not isinstance(error, PermissionDenied) and error.code != Response.NO_PERMISSION:
                    raise error
                told = [(queue, await self.committed(group, queue)) for queue in mine]
                found |= {queue: offset for queue, offset in told if offset >= 0}
                continue
            table = loads(reply.body) if len(reply.body) <= OFFSETS_BODY_BYTES_MAX else {}
            offsets = table.get("offsetTable") if isinstance(table, dict) else None
            for queue in mine:
                entry = (offsets or {}).get(f"{queue.topic}@{group}") or {}
                offset = entry.get(queue.queueId, entry.get(str(queue.queueId), -1))
                if isinstance(offset, int) and offset >= 0:
                    found[queue] = offset
        return found

    async def commit(self, group: str, queue: MessageQueue, offset: int, *, oneway: bool = False) -> None:
        """Write a group's offset down."""
        ext = {"consumerGroup": group, "commitOffset": str(offset)}
        reply = await self.ask(queue, Request.UPDATE_CONSUMER_OFFSET, ext, oneway=oneway)
        if not oneway:
            reply_of(reply)

    async def commit_made(self, group: str, queue: MessageQueue, offset: int) -> None:
        """Write an offset down for a group that may not exist yet: RocketMQ 5 wants it made before, 4 makes it so."""
        try:
            await self.commit(group, queue, offset)
        except RemoteError as error:
            if error.code != Response.SUBSCRIPTION_GROUP_NOT_EXIST:
                raise
            reply = await self.network.request(await self.master(queue), group_creation(group), self._timeout)
            if (refused := error_of(reply)) is not None:
                raise refused from error
            await self.commit(group, queue, offset)

    # -- groups
    async def members(self, group: str, topic: str, *, timeout: float) -> list[str]:
        """Return the client ids of a group, as some broker of the topic knows them; [] when it knows none.

        Our brokers name only the members that share the topic, RocketMQ's all members.
        """
        left = countdown(self.network.loop, timeout)
        route = await self.names.route(topic, timeout=left())
        addresses = _addresses(route.readable if route else (), route.brokers if route else {})
        failure: Exception | None = None
        for number, address in enumerate(addresses):
            share = left() / (len(addresses) - number)  # a silent broker leaves time for another one
            try:
                reply = await self.network.request(address, member_list(group, topic), share)
            except (ConnectError, RequestTimeout) as raised:
                failure = raised
                continue
            return member_ids(reply)
        if failure is not None:
            raise failure
        return []

    # -- locks of ordered consumers
    async def lock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> set[MessageQueue]:
        """Lock queues for this client, and return those that are ours now."""
        held: set[MessageQueue] = set()
        for address, mine in (await self._by_broker(queues)).items():
            body = encode_body(_LockBody(client_id, group, mine))
            command = Command(code=Request.LOCK_BATCH_MQ, body=body)
            reply = reply_of(await self.network.request(address, command, self._timeout))
            held.update(decode_body(reply.body, _LockedBody).lockOKMQSet)
        return held

    async def unlock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> None:
        """Give locks up."""
        for address, mine in (await self._by_broker(queues)).items():
            body = encode_body(_LockBody(client_id, group, mine))
            await self.network.request(address, Command(code=Request.UNLOCK_BATCH_MQ, body=body), self._timeout)

    async def _by_broker(self, queues: Iterable[MessageQueue]) -> dict[Address, list[MessageQueue]]:
        found: dict[Address, list[MessageQueue]] = {}
        for queue in queues:
            found.setdefault(await self.master(queue), []).append(queue)
        return found


def _addresses(queues: Iterable[MessageQueue], brokers: Mapping[str, Mapping[int, Address]]) -> list[Address]:
    names = dict.fromkeys(queue.brokerName for queue in queues)
    return [address for name in names for _, address in sorted(brokers.get(name, {}).items())[:1]]


def _offset_of(reply: Command) -> int:
    text = reply_of(reply).ext.get("offset", "")
    if not text.removeprefix("-").isdecimal() or len(text) > 20:
        raise ProtocolError(f"the answer holds offset={text[:32]!a}")
    return max(-1, int(text))
