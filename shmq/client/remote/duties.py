"""The duties of a connection over TCP: its timers, and answers to brokers' requests; both on the I/O thread.

    route refresh   30 s     heartbeat   30 s, and at once after a new route or a reconnection
    who leads        5 s     of the topics that are read, where a broker has several hosts
    offsets          5 s     locks       20 s, and each second those that a new master has not confirmed

A failure of these is forgotten, and the next round tries again; nothing here ends the connection. Requests of brokers
are answered at once, since nothing may take long here:

40    members of a group changed        share the queues anew
220   offsets of a topic                read on from there
221   offsets                           answer with those of our queues
307   running info                      answer with everything an operator may want to see
309   consume this message now          call the listener, answer how it ended
else                                    "not supported"
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final

from shmq.client.background import started
from shmq.client.remote.progress import MemberReader, QueueProgress
from shmq.client.remote.questions import QueueQuestions
from shmq.client.remote.registration import HEARTBEAT_INTERVAL, Registration
from shmq.client.remote.share import LOCK_RENEWAL, TcpShare
from shmq.client.spec import ConsumerSpec
from shmq.client.wire import LOG
from shmq.client.wire_tcp.channel import Channel
from shmq.client.wire_tcp.name_service import REFRESH
from shmq.client.wire_tcp.wire import TcpWire
from shmq.errors import ConnectError, ProtocolError, Reject, Retry, ShmqError
from shmq.functions import finished
from shmq.message import retry_topic, retry_topic_of
from shmq.protocol.codes import PROTOCOL_VERSION, Request
from shmq.protocol.command import Command
from shmq.protocol.dialect import MessageQueue, dumps, loads
from shmq.shm.core import Message, records_read
from shmq.version import __version__
from shmq.words import reason_text

COMMIT_INTERVAL: Final = 5.0
MISSING_INTERVAL: Final = 1.0
LEADERS_INTERVAL: Final = 5.0
"""A master that stands still, or is cut off, does not say so: only the name servers do, while our pulls wait for it."""


class Upkeep:
    """The periodic work of one session."""

    def __init__(
        self,
        wire: TcpWire,
        questions: QueueQuestions,
        registration: Registration,
        readers: Callable[[], list[MemberReader]],
        shares: Callable[[], Iterable[TcpShare]],
        members_changed: Callable[[str], None],
    ) -> None:
        self._wire = wire
        self._questions = questions
        self._registration = registration
        self._readers = readers
        self._shares = shares
        self._members_changed = members_changed
        self._beat = asyncio.Event()
        self.is_running = False

    def start(self) -> None:
        """Begin; ends with the I/O thread."""
        self.is_running = True
        network = self._wire.network
        network.spawn(self._heartbeats())
        network.spawn(self._every(REFRESH, self._refresh_routes))
        network.spawn(self._every(LEADERS_INTERVAL, self._look_who_leads))
        network.spawn(self._every(MISSING_INTERVAL, self._look_for_missing))
        network.spawn(self._every(COMMIT_INTERVAL, self._commit))
        network.spawn(self._every(LOCK_RENEWAL, self._keep_locks))
        network.spawn(self._every(MISSING_INTERVAL, self._confirm_locks))

    def beat_soon(self) -> None:
        """Send a heartbeat now; on the I/O thread."""
        self._beat.set()

    def confirm_locks_soon(self) -> None:
        """Ask now for the locks that are in doubt; on the I/O thread."""
        self._wire.network.spawn(self._confirm_locks())

    async def _heartbeats(self) -> None:
        while True:
            try:
                async with asyncio.timeout(HEARTBEAT_INTERVAL):
                    await self._beat.wait()
            except TimeoutError:
                pass
            self._beat.clear()
            await _quietly(self._registration.beat())

    async def _every(self, seconds: float, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            await asyncio.sleep(seconds)
            await _quietly(work())

    async def _refresh_routes(self) -> None:
        names = self._wire.names
        for topic in names.routes.stale(self._wire.network.loop.time()):
            await names.refresh(topic)

    async def _look_who_leads(self) -> None:
        names, seen = self._wire.names, set[str]()
        for topic in self._registration.topics():
            brokers = names.routes.groups(topic, self._wire.network.loop.time())
            if brokers - seen:  # one topic tells it of all that are there
                seen |= brokers
                await names.refresh(topic)

    async def _look_for_missing(self) -> None:
        names = self._wire.names
        for topic in self._registration.topics():
            if names.routes.old(topic) is None:
                await names.refresh(topic)

    async def _commit(self) -> None:
        for reader in self._readers():
            if not reader.commits:
                continue
            assert reader.spec.group is not None
            for queue, offset in reader.progress():
                if offset != queue.stored_offset:
                    await _quietly(self._commit_one(reader.spec.group, queue, offset))

    async def _commit_one(self, group: str, queue: QueueProgress, offset: int) -> None:
        await self._questions.commit(group, queue.queue, offset, oneway=True)
        queue.stored_offset = offset

    async def _keep_locks(self) -> None:
        for share in self._shares():
            await self._keep_locks_of(share)

    async def _confirm_locks(self) -> None:
        await asyncio.gather(*(self._keep_locks_of(share) for share in self._shares() if share.doubts_locks))

    async def _keep_locks_of(self, share: TcpShare) -> None:
        known = share.refused_count
        await _quietly(share.keep_locks())
        if share.refused_count > known and (group := share.reader.spec.group) is not None:
            self._members_changed(group)  # the queue is asked for again from now on, until it is free


async def _quietly(work: Awaitable[None]) -> None:
    try:
        await work
    except ShmqError as error:
        LOG.debug("a round of upkeep failed and is repeated: %s", error)
    except Exception:
        # A fault of ours in one round: the next ones matter more, as offsets and heartbeats depend on them.
        LOG.exception("a round of upkeep failed and is repeated")


_OFFSET_MAX = 1 << 62


class Duties:
    """Requests of brokers to one client."""

    def __init__(
        self,
        wire: TcpWire,
        questions: QueueQuestions,
        registration: Registration,
        readers: Callable[[], list[MemberReader]],
        members_changed: Callable[[str], None],
    ) -> None:
        self._wire = wire
        self._questions = questions
        self._registration = registration
        self._readers = readers
        self._members_changed = members_changed
        self._since_ms = wire.now_ms()
        for code, handler in {
            Request.NOTIFY_CONSUMER_IDS_CHANGED: self._changed,
            Request.RESET_CONSUMER_CLIENT_OFFSET: self._reset,
            Request.GET_CONSUMER_STATUS_FROM_CLIENT: self._offsets,
            Request.GET_CONSUMER_RUNNING_INFO: self._running_info,
            Request.CONSUME_MESSAGE_DIRECTLY: self._consume,
        }.items():
            wire.serve(code, handler)

    def _readers_of(self, request: Command) -> list[MemberReader]:
        group = request.ext.get("consumerGroup") or request.ext.get("group") or ""
        return [reader for reader in self._readers() if reader.spec.group == group]

    def _changed(self, _channel: Channel, request: Command) -> None:
        self._members_changed(request.ext.get("consumerGroup") or request.ext.get("group") or "")

    def _offsets(self, _channel: Channel, request: Command) -> Command:
        topic = request.ext.get("topic", "")
        progress = (entry for reader in self._readers_of(request) for entry in reader.progress())
        table = {queue.queue: offset for queue, offset in progress if queue.queue.topic == topic}
        return request.reply(body=dumps({"messageQueueTable": table}))

    def _reset(self, _channel: Channel, request: Command) -> Command:
        offsets = reset_offsets(request.body)
        for reader in self._readers_of(request):
            for queue in reader.queues:
                offset = offsets.get(queue.queue)
                if offset is not None:
                    reader.seek(queue.number, offset)
                    self._wire.network.spawn(self._commit(reader, queue.queue, offset))
        return request.reply()

    async def _commit(self, reader: MemberReader, queue: MessageQueue, offset: int) -> None:
        group = reader.spec.group
        if reader.commits and group is not None:
            await self._questions.commit(group, queue, offset, oneway=True)

    def _running_info(self, _channel: Channel, request: Command) -> Command:
        readers = self._readers_of(request)
        subscriptions = [
            entry
            for data in self._registration.data().consumerDataSet
            if any(reader.spec.group == data.groupName for reader in readers)
            for entry in data.subscriptionDataSet
        ]
        info = {
            "jstack": None,
            "mqTable": {queue: info for reader in readers for queue, info in reader.infos()},
            "properties": {
                "PROP_CLIENT_VERSION": f"shmq {__version__} ({PROTOCOL_VERSION})",
                "PROP_CONSUMEORDERLY": str(any(reader.spec.ordered for reader in readers)).lower(),
                "PROP_CONSUMER_START_TIMESTAMP": str(self._since_ms),
                "PROP_CONSUME_TYPE": "CONSUME_PASSIVELY",
                "PROP_NAMESERVER_ADDR": ";".join(map(str, self._wire.names.servers)),
                "PROP_THREADPOOL_CORE_SIZE": "1",
            },
            "statusTable": {},
            "subscriptionSet": subscriptions,
        }
        return request.reply(body=dumps(info))

    # -- one message, now
    def _consume(self, channel: Channel, request: Command) -> Command | None:
        readers, messages = self._readers_of(request), records_read(request.body)
        if not messages:
            raise ProtocolError("the request to consume a message directly holds none")
        if any(_is_again(messages[0].topic, reader.spec) for reader in readers):
            messages = records_read(request.body, are_retries=True)
        reader = next((reader for reader in readers if reader.spec.topic == messages[0].topic), None)
        function = reader.spec.function if reader is not None else None
        if function is None:
            return request.reply(body=dumps(_result("CR_LATER", "this consumer has no listener", 0)))

        def run() -> None:
            reply = request.reply(body=dumps(_outcome(function, messages[0])))
            self._wire.network.soon(lambda: channel.answer(reply))

        try:
            started(threading.Thread(target=run, name="shmq-consume-directly", daemon=True))
        except ConnectError as error:
            return request.reply(body=dumps(_result("CR_LATER", str(error), 0)))
        return None


def _is_again(topic: str, spec: ConsumerSpec) -> bool:
    """Whether messages of a topic come again to the group of a consumer."""
    return spec.group is not None and topic in (retry_topic(spec.group), retry_topic_of(spec.group, spec.topic))


def _outcome(function: Any, message: Message) -> dict[str, Any]:
    started = time.monotonic()
    try:
        finished(function(message))
        result, remark = "CR_SUCCESS", ""
    except Retry as error:
        result, remark = "CR_LATER", reason_text(error)
    except Reject as error:
        result, remark = "CR_ROLLBACK", reason_text(error)
    except BaseException as error:  # whatever the application raised is what the operator asked for
        result, remark = "CR_THROW_EXCEPTION", f"{type(error).__name__}: {reason_text(error)}"
    return _result(result, remark, round((time.monotonic() - started) * 1000))


def _result(result: str, remark: str, spent_ms: int) -> dict[str, Any]:
    return {
        "autoCommit": True,
        "consumeResult": result,
        "order": False,
        "remark": remark or None,
        "spentTimeMills": spent_ms,
    }


def reset_offsets(body: bytes) -> dict[MessageQueue, int]:
    """Read the body of a reset: a map keyed by queues, or the list that is sent to C++ clients.

    Raises:
        ProtocolError: neither.
    """
    data = loads(body)
    table = data.get("offsetTable") if isinstance(data, dict) else None
    found: dict[MessageQueue, int] = {}
    if isinstance(table, dict):
        found = {queue: offset for queue, offset in table.items() if isinstance(queue, MessageQueue)}
    elif isinstance(table, list):
        for entry in table:
            if isinstance(entry, dict):
                queue = MessageQueue(entry.get("brokerName", ""), entry.get("queueId", -1), entry.get("topic", ""))
                found[queue] = entry.get("offset", -1)
    if not found or not all(isinstance(offset, int) and 0 <= offset < _OFFSET_MAX for offset in found.values()):
        raise ProtocolError("a reset of offsets without offsets, or with an impossible one")
    return found
