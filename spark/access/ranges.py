"""Reading whole ranges of a topic over TCP: what there is, and the records of a planned range, as stored.

Such a reader is a member of no group, so it has a connection of its own, without heartbeats.

    our broker      DESCRIBE_QUEUES, READ_RANGE      the log's own bytes, up to 1 MiB an answer; or units alone
    RocketMQ        GET_MIN/MAX_OFFSET, PULL_MESSAGE as its clients get them: 32 messages or 256 KiB an answer, 8 or
                                                     64 KiB from disk, unless maxTransfer…OnMessage… says more

A piece of a RocketMQ broker is therefore made of stripes that are pulled side by side, each to its end:

    [begin ── stripe 0 ──)[── stripe 1 ──)[── stripe 2 ──) …     each about STRIPE_BYTES by the records that came last

Invariants:
    1. Which of both a broker is, it says itself: one that does not know DESCRIBE_QUEUES is RocketMQ.
    2. Numbers of an answer are input: one that leads backwards or behind the range makes it an error.
    3. Offsets that are gone are an error, not skipped: the caller decides what that means.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from shmq.client.place import RemotePlace
from shmq.client.position import Kind, Position
from shmq.client.remote.questions import (
    ANONYMOUS_GROUP,
    COUNT_MAX,
    PullQuestion,
    QueueQuestions,
    pull_command,
    read_pulled,
)
from shmq.client.wire import ignore
from shmq.client.wire_tcp.name_service import NameService
from shmq.client.wire_tcp.network import Network
from shmq.client.wire_tcp.route import Route
from shmq.errors import OffsetOutOfRange, ProtocolError, TopicNotFound, UsageError
from shmq.protocol.codes import Request, Response
from shmq.protocol.dialect import MessageQueue
from shmq.protocol.failure import number_in, reply_of
from shmq.shm.core import UNIT_BYTES, records_read, tag_hash
from shmq.shm.unit import Unit, units_of
from shmq.typed_json import decode_json

ResultT = TypeVar("ResultT")
_TIME_MS_MAX: Final = (1 << 63) - 1
PIECE_BYTES: Final = 1 << 20
STRIPES: Final = 8
STRIPE_MESSAGES_MAX: Final = 512
STRIPE_BYTES: Final = 1 << 19
TIMEOUT: Final = 30.0
STOP_TIMEOUT: Final = 2.0


class Described(msgspec.Struct, frozen=True):
    """A topic on one broker: `queues` are pairs, the first offset left and the first that may not be read yet.

    `identity` and `born` are "" and -1 where a broker does not tell them, which RocketMQ does not.
    """

    broker: str
    queues: list[tuple[int, int]]
    identity: str = ""
    born: int = -1


class Piece(NamedTuple):
    """Some of a range: records back to back, and the offset behind what was looked at.

    Where `offset_min` is behind the offset that was asked for, that is gone, and `body` is empty.
    """

    body: bytes
    next_offset: int
    offset_min: int


class RangeClient:
    """A cluster as a reader of ranges sees it; any thread may call.

    Args:
        broker: the broker to read from; needed only where a topic lies on several.
        timeout: seconds for one answer.
    """

    def __init__(self, place: RemotePlace, *, broker: str | None = None, timeout: float = TIMEOUT) -> None:
        self.place = place
        self._broker = broker
        self._timeout = timeout
        # No group, so brokers send no requests.
        self._network = Network(place.options, connect_timeout=timeout, on_request=ignore, on_reconnect=ignore)
        self._names = NameService(self._network, place.name_servers, ignore, timeout=timeout)
        self._queues = QueueQuestions(self._network, self._names, timeout)
        self._stock: dict[str, bool] = {}
        self._record_bytes: dict[MessageQueue, int] = {}  # of a RocketMQ broker's queue, on average, lately

    def close(self) -> None:
        """End the connection and its thread."""
        self._network.stop(STOP_TIMEOUT)

    # -- what there is
    def topics(self) -> list[str]:
        """Return the names of all topics."""
        return self._call(self._names.topics(timeout=self._timeout))

    def describe(self, topic: str) -> Described:
        """Return what a topic's broker has of it now.

        Raises:
            TopicNotFound: there is no such topic.
            UsageError: it lies on several brokers, and none was chosen.
        """
        return self._call(self._describe(topic))

    def search_time(self, queue: MessageQueue, time_ms: int) -> int:
        """Return the first offset stored at or after a time; that behind the last one when all are older."""
        position = Position(Kind.TIME_MS, min(max(time_ms, 0), _TIME_MS_MAX))
        return self._call(self._queues.place_in(queue, position))

    def committed(self, group: str, queues: Sequence[MessageQueue]) -> Mapping[MessageQueue, int]:
        """Return what a group committed on queues; those it never committed on are left out."""
        return self._call(self._queues.committed_exactly(group, queues))

    def commit(self, group: str, offsets: Mapping[MessageQueue, int]) -> None:
        """Write a group's offsets down."""
        self._call(self._commit(group, offsets))

    def broker_name(self) -> str:
        """Return the name of the one broker that is read from.

        Raises:
            UsageError: there are several, and none was chosen.
        """
        names = [self._broker] if self._broker else self._call(self._names.broker_names(timeout=self._timeout))
        if len(names) != 1:
            raise UsageError(f"there are the brokers {', '.join(sorted(names))}", hint="say which: broker=NAME")
        return str(names[0])

    def units(self, queue: MessageQueue, begin: int, end: int, born: int) -> list[Unit]:
        """Return where the records of [begin, end) lie; may be cut short, and is empty where they are gone.

        RocketMQ does not tell that, so there records are pulled and looked at.
        """
        return self._call(self._units(queue, begin, end, born))

    def read_units(self, queue: MessageQueue, begin: int, end: int, *, born: int) -> Future[Piece]:
        """Ask one of our brokers for ConsumeQueue units of [begin, end) in place of records: 20 bytes a message.

        Raises:
            TopicNotFound: the topic was deleted, or made anew; as the rest, when the answer is taken.
            OffsetOutOfRange: nothing is stored at `begin`.
        """
        return self._network.submit(self._range(queue, begin, end, {"born": str(born), "units": "true"}))

    def read(
        self, queue: MessageQueue, begin: int, end: int, *, born: int = -1, tags: Sequence[str] = ()
    ) -> Future[Piece]:
        """Ask for records of [begin, end), at least one where something is there and wanted.

        Args:
            born: which topic of the name is meant; -1 takes any.
            tags: records that have none of them are left out, if the broker can tell; look again.

        Raises:
            TopicNotFound: the topic was deleted, or made anew; as the rest, when the answer is taken.
            OffsetOutOfRange: nothing is stored at `begin`.
        """
        return self._network.submit(self._read(queue, begin, end, born, tags))

    def wait(self, answer: Future[Piece]) -> Piece:
        """Return an answer that was asked for."""
        return answer.result(4 * self._timeout)

    # -- on the I/O thread
    def _call(self, work: Coroutine[Any, Any, ResultT]) -> ResultT:
        return self._network.call(work, 4 * self._timeout)

    async def _route(self, topic: str) -> tuple[Route, str]:
        if await self._names.route(topic, timeout=self._timeout) is None:
            await self._names.refresh(topic, timeout=self._timeout)  # one made a moment ago is not missing
        route = await self._names.readable_route(topic, timeout=self._timeout)
        names = sorted({queue.brokerName for queue in route.readable} or route.brokers)
        if self._broker is not None:
            names = [name for name in names if name == self._broker]
        if not names:
            raise TopicNotFound(f'topic "{topic}" is not on broker {self._broker}', hint="see shmq topic list")
        if len(names) > 1:
            raise UsageError(
                f'topic "{topic}" lies on the brokers {", ".join(names)}; one read is of one broker',
                hint=f"say which: broker={names[0]}",
            )
        return route, names[0]

    async def _describe(self, topic: str) -> Described:
        route, broker = await self._route(topic)
        queue = MessageQueue(broker, 0, topic)
        if not self._stock.get(broker):
            reply = await self._queues.ask(queue, Request.DESCRIBE_QUEUES, {})
            self._stock[broker] = reply.code == Response.REQUEST_CODE_NOT_SUPPORTED
            if not self._stock[broker]:
                return _described(reply_of(reply).body)
        queues = [queue for queue in route.readable if queue.brokerName == broker]
        bounds = await asyncio.gather(*(self._queues.bounds(queue) for queue in queues))
        return Described(broker, list(bounds))

    async def _commit(self, group: str, offsets: Mapping[MessageQueue, int]) -> None:
        for queue, offset in offsets.items():
            await self._queues.commit(group, queue, offset)

    async def _is_stock(self, queue: MessageQueue) -> bool:
        if queue.brokerName not in self._stock:
            await self._describe(queue.topic)
        return self._stock[queue.brokerName]

    async def _units(self, queue: MessageQueue, begin: int, end: int, born: int) -> list[Unit]:
        if await self._is_stock(queue):
            piece = await self._pull(queue, begin, min(end, begin + COUNT_MAX), ())
            messages = records_read(piece.body)
            return [Unit(each.log_position, each.record_bytes, 0) for each in messages if each.offset < end]
        piece = await self._range(queue, begin, end, {"born": str(born), "units": "true"})
        return list(units_of(piece.body))

    async def _read(self, queue: MessageQueue, begin: int, end: int, born: int, tags: Sequence[str]) -> Piece:
        if await self._is_stock(queue):
            # How many messages a selection skips is not known before, so it is not read in stripes.
            return await (self._pull(queue, begin, end, tags) if tags else self._pull_stripes(queue, begin, end))
        hashes = ",".join(str(tag_hash(tag)) for tag in tags)
        ext = {"born": str(born), "bytesMax": str(PIECE_BYTES), **({"tags": hashes} if tags else {})}
        return await self._range(queue, begin, end, ext)

    async def _range(self, queue: MessageQueue, begin: int, end: int, ext: Mapping[str, str]) -> Piece:
        asked = {**ext, "queueOffset": str(begin), "queueEnd": str(end)}
        reply = reply_of(await self._queues.ask(queue, Request.READ_RANGE, asked))
        next_offset, first = (
            number_in("the answer to a range", reply.ext, name) for name in ("nextOffset", "offsetMin")
        )
        if first > begin:
            return Piece(b"", begin, first)
        if "units" in ext and len(reply.body) != (next_offset - begin) * UNIT_BYTES:
            raise ProtocolError(f"{len(reply.body)} bytes are no units of {next_offset - begin} messages")
        return _checked(Piece(reply.body, next_offset, first), queue, begin, end)

    async def _pull_stripes(self, queue: MessageQueue, begin: int, end: int) -> Piece:
        """Pull some of a range of a RocketMQ broker: every record, in order, up to the first stripe that has gaps."""
        known = self._record_bytes.get(queue)
        stripe = min(STRIPE_MESSAGES_MAX, max(1, STRIPE_BYTES // known)) if known else COUNT_MAX
        starts = range(begin, min(end, begin + stripe * (STRIPES if known else 1)), stripe)
        pulls = (self._pull_stripe(queue, at, min(end, at + stripe)) for at in starts)
        stripes = await asyncio.gather(*pulls, return_exceptions=True)
        if isinstance(stripes[0], BaseException):
            raise stripes[0]
        bodies, following = [], begin
        for piece in stripes:
            if isinstance(piece, BaseException):
                break  # it comes again when its turn is
            bodies.append(piece.body)
            following = piece.next_offset
            if following < begin + stripe * len(bodies):
                break
        body = b"".join(bodies)
        if body:
            self._record_bytes[queue] = max(1, len(body) // (following - begin))
        return Piece(body, following, stripes[0].offset_min)

    async def _pull_stripe(self, queue: MessageQueue, begin: int, end: int) -> Piece:
        """Pull until a stripe is whole, twice as long as it should be, or at a gap."""
        bodies, at, size = [], begin, 0
        while at < end and size < 2 * STRIPE_BYTES:
            piece = await self._pull(queue, at, end, ())
            if piece.offset_min > at:
                if at == begin:
                    return piece
                break
            bodies.append(piece.body)
            size, at = size + len(piece.body), piece.next_offset
        return Piece(b"".join(bodies), at, 0)

    async def _pull(self, queue: MessageQueue, begin: int, end: int, tags: Sequence[str]) -> Piece:
        question = PullQuestion(
            ANONYMOUS_GROUP,
            queue,
            begin,
            count_max=min(STRIPE_MESSAGES_MAX, end - begin),
            hold=0.0,
            expression=" || ".join(tags) or "*",
            version=0,
        )
        address = await self._queues.master(queue)
        reply = await self._network.request(address, pull_command(question), self._timeout)
        pulled = read_pulled(reply, question, 0.0)
        if pulled.error is not None:
            raise pulled.error
        if pulled.moved and pulled.next_offset > begin:
            return Piece(b"", begin, pulled.next_offset)
        # A selection looks behind the range; what it finds there is not taken, and nothing in between is left out.
        return _checked(Piece(pulled.body, min(pulled.next_offset, end), 0), queue, begin, end)


def _checked(piece: Piece, queue: MessageQueue, begin: int, end: int) -> Piece:
    if not begin <= piece.next_offset <= end:
        raise ProtocolError(
            f"queue {queue.queueId} of {queue.topic}: asked for offsets {begin} to {end}, the answer leads to "
            f"{piece.next_offset}"
        )
    if piece.next_offset == begin:
        raise OffsetOutOfRange(f"queue {queue.queueId}, offset {begin}: it is not stored, or not visible yet")
    return piece


def _described(body: bytes) -> Described:
    try:
        found = decode_json(body, Described)
    except msgspec.MsgspecError as error:
        raise ProtocolError(f"the description of a topic is not readable: {error}") from error
    if any(not 0 <= low <= high for low, high in found.queues):
        raise ProtocolError("the description of a topic has impossible offsets")
    return found
