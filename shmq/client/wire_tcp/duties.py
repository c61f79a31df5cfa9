"""Owns what brokers ask of this client: who left a group, offsets to be reset, what it reads, one message to be tried.

It does not know how a broker came to ask. Requests come on the I/O thread; what may take long is done elsewhere.

    40    members of a group changed        share the queues anew
    220   offsets of a topic                read on from there
    221   offsets                           answer with those of our queues
    307   running info                      answer with everything an operator may want to see
    39    how did a transaction end     ask the checker of its group
    326   a reply to a request of ours      give it to who waits
    309   consume this message now          call the listener, answer how it ended
    else                                    "not supported"
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

from shmq.errors import ProtocolError, Reject, Retry, ShmqError
from shmq.protocol.codes import PROTOCOL_VERSION, Request, Response
from shmq.protocol.command import Command
from shmq.protocol.dialect import MessageQueue, dumps, loads
from shmq.protocol.failure import failure_reply
from shmq.shm.core import Message, records_read
from shmq.version import __version__

if TYPE_CHECKING:
    from shmq.client.wire_tcp.channel import Channel
    from shmq.client.wire_tcp.group_reader import GroupReader
    from shmq.client.wire_tcp.session import RemoteSession

_OFFSET_MAX = 1 << 62


class Duties:
    """Requests of brokers to one client."""

    def __init__(self, session: RemoteSession) -> None:
        self._session = session
        self._since_ms = session.now_ms()

    def serve(self, channel: Channel, request: Command) -> None:
        """Do what is asked, and answer unless nobody waits."""
        try:
            reply = self._serve(channel, request)
        except ShmqError as error:
            reply = failure_reply(request, error)
        if reply is not None and not request.is_oneway:
            channel.answer(reply)

    def _serve(self, channel: Channel, request: Command) -> Command | None:
        group = request.ext.get("consumerGroup") or request.ext.get("group") or ""
        if request.code == Request.NOTIFY_CONSUMER_IDS_CHANGED:
            self._session.members_changed(group)
            return None
        if request.code == Request.CHECK_TRANSACTION_STATE:
            self._session.transactions.checked(channel, request)
            return None
        readers = [reader for reader in self._session.readers if reader.spec.group == group]
        if request.code == Request.RESET_CONSUMER_CLIENT_OFFSET:
            self._reset(readers, request)
            return request.reply()
        if request.code == Request.GET_CONSUMER_STATUS_FROM_CLIENT:
            topic = request.ext.get("topic", "")
            progress = (entry for reader in readers for entry in reader.progress())
            table = {queue.queue: offset for queue, offset in progress if queue.queue.topic == topic}
            return request.reply(body=dumps({"messageQueueTable": table}))
        if request.code == Request.GET_CONSUMER_RUNNING_INFO:
            return request.reply(body=dumps(self._running_info(readers)))
        if request.code == Request.PUSH_REPLY_MESSAGE_TO_CLIENT:
            return self._session.requests.pushed(request)
        if request.code == Request.CONSUME_MESSAGE_DIRECTLY:
            return self._consume(channel, request, readers)
        text = f" request type {request.code} not supported"
        return request.reply(Response.REQUEST_CODE_NOT_SUPPORTED, remark=text)

    def _reset(self, readers: list[GroupReader], request: Command) -> None:
        offsets = reset_offsets(request.body)
        for reader in readers:
            for queue in reader.queues:
                offset = offsets.get(queue.queue)
                if offset is not None:
                    reader.seek(queue.number, offset)
                    self._session.network.spawn(self._commit(reader, queue.queue, offset))

    async def _commit(self, reader: GroupReader, queue: MessageQueue, offset: int) -> None:
        session, group = self._session, reader.spec.group
        if reader.commits and group is not None:
            await session.queues.commit(group, queue, offset, session.timeout, oneway=True)

    def _running_info(self, readers: list[GroupReader]) -> dict[str, Any]:
        subscriptions = [
            entry
            for data in self._session.registration.data().consumerDataSet
            if any(reader.spec.group == data.groupName for reader in readers)
            for entry in data.subscriptionDataSet
        ]
        return {
            "jstack": None,
            "mqTable": {queue: info for reader in readers for queue, info in reader.infos()},
            "properties": {
                "PROP_CLIENT_VERSION": f"shmq {__version__} ({PROTOCOL_VERSION})",
                "PROP_CONSUMEORDERLY": str(any(reader.spec.ordered for reader in readers)).lower(),
                "PROP_CONSUMER_START_TIMESTAMP": str(self._since_ms),
                "PROP_CONSUME_TYPE": "CONSUME_PASSIVELY",
                "PROP_NAMESERVER_ADDR": ";".join(map(str, self._session.names.servers)),
                "PROP_THREADPOOL_CORE_SIZE": "1",
            },
            "statusTable": {},
            "subscriptionSet": subscriptions,
        }

    # -- one message, now
    def _consume(self, channel: Channel, request: Command, readers: list[GroupReader]) -> Command | None:
        messages = records_read(request.body)
        if not messages:
            raise ProtocolError("the request to consume a message directly holds none")
        reader = next((reader for reader in readers if reader.spec.topic == messages[0].topic), None)
        function = reader.spec.function if reader is not None else None
        if function is None:
            return request.reply(body=dumps(_result("CR_LATER", "this consumer has no listener", 0)))

        def run() -> None:
            reply = request.reply(body=dumps(_outcome(function, messages[0])))
            self._session.network.soon(lambda: channel.answer(reply))

        threading.Thread(target=run, name="shmq-consume-directly", daemon=True).start()
        return None


def _outcome(function: Any, message: Message) -> dict[str, Any]:
    started = time.monotonic()
    try:
        function(message)
        result, remark = "CR_SUCCESS", ""
    except Retry as error:
        result, remark = "CR_LATER", str(error)
    except Reject as error:
        result, remark = "CR_ROLLBACK", str(error)
    except Exception as error:  # whatever the application raised is what the operator asked for
        result, remark = "CR_THROW_EXCEPTION", f"{type(error).__name__}: {error}"
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
