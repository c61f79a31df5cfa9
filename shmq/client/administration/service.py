"""Owns the requests of administration: topics, groups and figures of all brokers of a cluster.

It does not know what is shown of them. Every method is a coroutine of the I/O thread and ends within its timeout.

Rules:
    (1) a change goes to the master of every broker; the first refusal is raised, so what others did stays done;
    (2) figures are asked of all brokers at once, at most 16 requests on their way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from shmq.client.place import Address, parse_address
from shmq.client.wire_tcp.pull_reader import ANONYMOUS_GROUP
from shmq.client.wire_tcp.pull_request import PullQuestion
from shmq.client.wire_tcp.route import PERM_READ, PERM_WRITE, Route
from shmq.errors import BrokerNotRunning, ProtocolError, RemoteError, UsageError
from shmq.message import RETRY_PREFIX
from shmq.protocol.body import (
    SubscriptionGroupConfig,
    SubscriptionGroupTable,
    TopicConfig,
    TopicTable,
    decode_body,
    encode_body,
    kind_text,
)
from shmq.protocol.codes import Request, TopicKind
from shmq.protocol.command import Command
from shmq.protocol.dialect import MessageQueue, loads
from shmq.protocol.failure import error_of
from shmq.protocol.route import DEFAULT_TOPIC, MASTER_ID, KVTable
from shmq.shm.core import records_read

if TYPE_CHECKING:
    from shmq.client.wire_tcp.session import RemoteSession

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")

BODY_BYTES_MAX: Final = 4 << 20
CONCURRENT_MAX: Final = 16
PERM_READ_WRITE: Final = 6
_ROUTE_POLL: Final = 0.05


class QueueStats(NamedTuple):
    """What a broker says about one queue."""

    offset_min: int
    offset_max: int
    updated_ms: int


class Progress(NamedTuple):
    """What a broker says about a group on one queue."""

    offset_max: int
    committed: int
    updated_ms: int
    popped: int


class AdminService:
    """Administration of one cluster."""

    def __init__(self, session: RemoteSession) -> None:
        self._session = session
        self._timeout = session.timeout

    async def masters(self) -> dict[str, Address]:
        """Return {broker name: master} of the whole cluster.

        Raises:
            BrokerNotRunning: no broker is registered.
        """
        info = await self._session.names.clusters(timeout=self._timeout)
        found: dict[str, Address] = {}
        for name, broker in sorted(info.brokerAddrTable.items()):
            if MASTER_ID in broker.brokerAddrs:
                try:
                    found[name] = parse_address(broker.brokerAddrs[MASTER_ID])
                except UsageError as error:
                    raise ProtocolError(f"broker {name} has an impossible address: {error}") from error
        self._session.numbers.learn_names(found)
        if not found:
            raise BrokerNotRunning("no broker is registered at the name server", hint="is the broker up?")
        return found

    async def ask(
        self, address: Address, code: int, ext: Mapping[str, str] | None = None, body: bytes = b""
    ) -> Command:
        """Ask one broker and return its answer.

        Raises:
            ShmqError: it refused; the type says why.
        """
        command = Command(code=code, ext=dict(ext or {}), body=body)
        reply = await self._session.network.request(address, command, self._timeout)
        if (error := error_of(reply)) is not None:
            raise error
        return reply

    async def _each(
        self, items: Iterable[ItemT], work: Callable[[ItemT], Awaitable[ResultT]]
    ) -> list[tuple[ItemT, ResultT]]:
        room = asyncio.Semaphore(CONCURRENT_MAX)

        async def one(item: ItemT) -> tuple[ItemT, ResultT]:
            async with room:
                return item, await work(item)

        return list(await asyncio.gather(*map(one, items)))

    # -- topics
    async def put_topic(self, name: str, *, queues: int, kind: str, perm: int = PERM_READ_WRITE) -> None:
        """Create or change a topic on every broker, and wait until the name servers know it."""
        ext = {
            "topic": name,
            "defaultTopic": DEFAULT_TOPIC,
            "readQueueNums": str(queues),
            "writeQueueNums": str(queues),
            "perm": str(perm),
            "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": "0",
            "order": "false",
            "attributes": kind_text(TopicKind[kind.upper()]),
        }
        masters = await self.masters()
        await self._each(masters.values(), lambda address: self.ask(address, Request.UPDATE_AND_CREATE_TOPIC, ext))
        names = self._session.names
        async with asyncio.timeout(self._timeout):
            while True:
                route = await names.refresh(name)
                if route is not None and _shows(route, queues * len(masters), perm):
                    return
                await asyncio.sleep(_ROUTE_POLL)

    async def delete_topic(self, name: str) -> None:
        """Delete a topic on its brokers and at every name server.

        Raises:
            TopicNotFound: there is none of this name.
        """
        names = self._session.names
        route = await names.refresh(name)
        if route is None:
            raise await names.not_found(name, timeout=self._timeout)
        masters = [address for broker in route.brokers if (address := route.master(broker)) is not None]
        await self._each(masters, lambda address: self.ask(address, Request.DELETE_TOPIC_IN_BROKER, {"topic": name}))
        await self._each(
            names.servers, lambda address: self.ask(address, Request.DELETE_TOPIC_IN_NAMESRV, {"topic": name})
        )
        await names.refresh(name)

    async def topic_configs(self) -> dict[str, dict[str, TopicConfig]]:
        """Return {topic: {broker name: its settings there}}."""
        found: dict[str, dict[str, TopicConfig]] = {}
        masters = await self.masters()
        answers = await self._each(masters.items(), lambda broker: self.ask(broker[1], Request.GET_ALL_TOPIC_CONFIG))
        for (broker_name, _), reply in answers:
            table = decode_body(reply.body, TopicTable, dialect_bytes_max=BODY_BYTES_MAX).topicConfigTable
            for name, config in table.items():
                found.setdefault(name, {})[broker_name] = config
        return found

    async def topic_stats(self, names: Iterable[str]) -> dict[str, dict[MessageQueue, QueueStats]]:
        """Return what the brokers say about the queues of topics; a topic that is gone has none."""
        masters = await self.masters()
        pairs = [(name, address) for name in names for address in masters.values()]

        async def one(pair: tuple[str, Address]) -> dict[MessageQueue, QueueStats]:
            try:
                reply = await self.ask(pair[1], Request.GET_TOPIC_STATS_INFO, {"topic": pair[0]})
            except (RemoteError, LookupError):
                return {}
            return {
                queue: QueueStats(
                    _number(entry, "minOffset"), _number(entry, "maxOffset"), _number(entry, "lastUpdateTimestamp")
                )
                for queue, entry in _offset_table(reply.body).items()
            }

        found: dict[str, dict[MessageQueue, QueueStats]] = {}
        for (name, _), stats in await self._each(pairs, one):
            found.setdefault(name, {}).update(stats)
        return found

    # -- groups
    async def groups(self) -> list[str]:
        """Return the names of all groups."""
        masters = await self.masters()
        answers = await self._each(
            masters.values(), lambda address: self.ask(address, Request.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
        )
        tables = (
            decode_body(reply.body, SubscriptionGroupTable, dialect_bytes_max=BODY_BYTES_MAX) for _, reply in answers
        )
        return sorted({name for table in tables for name in table.subscriptionGroupTable})

    async def progress(self, group: str) -> dict[MessageQueue, Progress]:
        """Return how far a group is on every queue it has offsets for."""
        masters = await self.masters()
        found: dict[MessageQueue, Progress] = {}

        async def one(address: Address) -> dict[MessageQueue, Progress]:
            try:
                reply = await self.ask(address, Request.GET_CONSUME_STATS, {"consumerGroup": group})
            except RemoteError:
                return {}
            return {
                queue: Progress(
                    _number(entry, "brokerOffset"),
                    _number(entry, "consumerOffset"),
                    _number(entry, "lastTimestamp"),
                    _number(entry, "popped"),
                )
                for queue, entry in _offset_table(reply.body).items()
            }

        for _, part in await self._each(masters.values(), one):
            found.update(part)
        return found

    async def members(self, group: str) -> list[str]:
        """Return the client ids of a group, as all brokers together know them."""
        masters = await self.masters()

        async def one(address: Address) -> list[str]:
            try:
                reply = await self.ask(address, Request.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": group})
            except RemoteError:
                return []
            body: dict[str, Any] = loads(reply.body) if reply.body else {}
            return [str(name) for name in body.get("consumerIdList") or ()]

        return sorted({name for _, names in await self._each(masters.values(), one) for name in names})

    async def put_group(self, group: str) -> None:
        """Create a group on every broker; harmless if it exists."""
        masters = await self.masters()
        body = encode_body(SubscriptionGroupConfig(group))
        await self._each(
            masters.values(), lambda each: self.ask(each, Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)
        )

    async def connections(self, group: str) -> list[dict[str, Any]]:
        """Return who is in a group: client, language, version, subscription."""
        masters = await self.masters()
        found: dict[str, dict[str, Any]] = {}

        async def one(address: Address) -> dict[str, Any]:
            try:
                reply = await self.ask(address, Request.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": group})
            except RemoteError:
                return {}  # nobody is there
            body = loads(reply.body)
            return body if isinstance(body, dict) else {}

        for _, body in await self._each(masters.values(), one):
            wants = {
                topic: entry.get("subString", "*")
                for topic, entry in (body.get("subscriptionTable") or {}).items()
                if isinstance(entry, dict) and not str(topic).startswith(RETRY_PREFIX)
            }
            for entry in body.get("connectionSet") or ():
                found[str(entry.get("clientId"))] = {
                    "client": str(entry.get("clientId")),
                    "language": str(entry.get("language", "")).lower(),
                    "transport": "tcp",
                    "pid": None,
                    "version": str(entry.get("version", "")),
                    "subscription": wants,
                }
        return [found[client] for client in sorted(found)]

    async def delete_group(self, group: str) -> None:
        """Delete a group and its offsets on every broker."""
        masters = await self.masters()
        ext = {"groupName": group, "removeOffset": "true", "cleanOffset": "true"}
        await self._each(masters.values(), lambda each: self.ask(each, Request.DELETE_SUBSCRIPTIONGROUP, ext))

    async def stored_ms(self, queues: Mapping[MessageQueue, int]) -> list[int]:
        """Return when the messages at these offsets were stored; those that are gone are left out."""

        async def one(item: tuple[MessageQueue, int]) -> int:
            question = PullQuestion(ANONYMOUS_GROUP, item[0], item[1], count_max=1, hold=0.0, expression="*")
            pulled = await self._session.pull(question, MASTER_ID, self._timeout)
            messages = records_read(pulled.body)
            return messages[0].store_ms if messages else 0

        return [stored for _, stored in await self._each(queues.items(), one) if stored]

    # -- brokers
    async def runtime(self) -> dict[str, dict[str, str]]:
        """Return {broker name: what it says about itself}."""
        masters = await self.masters()
        answers = await self._each(masters.items(), lambda broker: self.ask(broker[1], Request.GET_BROKER_RUNTIME_INFO))
        return {
            name: decode_body(reply.body, KVTable, dialect_bytes_max=BODY_BYTES_MAX).table
            for (name, _), reply in answers
        }


def _shows(route: Route, queues: int, perm: int) -> bool:
    """Whether a route has got what was asked for."""
    wanted = [(PERM_READ, route.readable), (PERM_WRITE, route.writable)]
    return all(len(found) == (queues if perm & bit else 0) for bit, found in wanted)


def _offset_table(body: bytes) -> dict[MessageQueue, dict[str, Any]]:
    if len(body) > BODY_BYTES_MAX:
        raise ProtocolError(f"a table of offsets of {len(body)} bytes; {BODY_BYTES_MAX} are read")
    data = loads(body)
    table = data.get("offsetTable") if isinstance(data, dict) else None
    if not isinstance(table, dict):
        raise ProtocolError("a table of offsets without offsetTable")
    return {
        queue: entry for queue, entry in table.items() if isinstance(queue, MessageQueue) and isinstance(entry, dict)
    }


def _number(entry: Mapping[str, Any], name: str) -> int:
    value = entry.get(name, 0)
    return value if isinstance(value, int) else 0
