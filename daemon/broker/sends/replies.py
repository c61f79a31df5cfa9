"""Replies to requests: SEND_REPLY_MESSAGE (324) and SEND_REPLY_MESSAGE_V2 (325), pushed to TCP clients as 326.

A private reply topic for each requesting process would make the tables grow with processes that come and go; a queue of
one topic, named in REPLY_TO_CLIENT, tells a local replier and the broker the same place without a search.

    REPLY_TO_CLIENT               the reply is                                  the replier is answered
    shm:<queue>:<client id>       stored in that queue of the reply topic       as for a send
    id of a TCP producer          stored, then pushed over its connection       when the producer has it, or 10 s later
    unknown here, or missing      stored                                        1, "channel of <…> not found"

A reply is stored in the reply topic, as RocketMQ does it by default: that is how it reaches a process of this host,
and what an administrator can look at. The answer does not wait for the disk, unless the reply topic itself has
flush=sync: a requester does not outlive a crash of the host.

The primary bridge alone knows where producers are connected; other bridges forward these requests, and what is pushed
to a client of theirs goes over that client's own connection between the two.
"""

from collections.abc import Sequence

from shmq.daemon.broker.groups.registry import GroupRegistry
from shmq.daemon.broker.records.message_id import UNKNOWN_HOST
from shmq.daemon.broker.records.property_text import property_of, with_properties
from shmq.daemon.broker.sends.header import SendHeader, sent_ext
from shmq.daemon.broker.sends.sends import SendRefusal, Sends
from shmq.daemon.broker.tables import Clock
from shmq.daemon.logic.effects import Effect
from shmq.daemon.logic.requests import Answer, Ask, Call, Part, later, serves
from shmq.errors import ShmqError
from shmq.protocol.codes import Request, Response
from shmq.protocol.command import Command
from shmq.protocol.request_reply import PUSH_TIME, REPLY_TO, SharedAddress


class Replies(Part):
    """Serves replies."""

    def __init__(self, tables: Clock, registry: GroupRegistry, sends: Sends) -> None:
        self._tables = tables
        self._registry = registry
        self._sends = sends

    @serves(Request.SEND_REPLY_MESSAGE, Request.SEND_REPLY_MESSAGE_V2)
    def _reply(self, call: Call) -> Answer:
        header = SendHeader(call.command.code, call.ext)
        requester = property_of(header.properties, REPLY_TO) or ""
        shared = SharedAddress.parse(requester)
        try:
            stored, end = self._sends.store_reply(call, header, shared.queue_id if shared is not None else None)
        except SendRefusal as refusal:
            return refusal.answer
        except ShmqError as error:
            return self._sends.failed(error)
        if shared is not None:
            return self._sends.when_durable(call, stored, end, header.topic) if end else stored
        connection_id = self._registry.producer_connection(requester)
        if connection_id is None:
            missing = f"channel of <{requester[:255]}> not found." if requester else f"properties[{REPLY_TO}] is null"
            stored.code, stored.remark = Response.SYSTEM_ERROR, f"push reply message fail, {missing}"
            return stored
        return self._push(call, header, requester, connection_id, stored, end)

    def _push(
        self, call: Call, header: SendHeader, requester: str, connection_id: int, stored: Answer, end: int
    ) -> Answer:
        now_ms = self._tables.clock_ms
        properties = with_properties(header.properties, {PUSH_TIME: str(now_ms)})
        ext = header.long_fields() | {
            "properties": properties.decode(errors="replace"),
            "bornHost": str(call.connection.remote or UNKNOWN_HOST),  # Java fails where it is no address
            "storeHost": str(self._sends.address(call)),
            "storeTimestamp": str(now_ms),
        }
        # The reply went over the connection, so the replier gets a success even where it is not stored.
        fields = stored.ext if stored.code == Response.SUCCESS else sent_ext("0", str(max(0, header.queue_id)), "0")

        def answered(reply: Command | None) -> Sequence[Effect]:
            if reply is not None and reply.code == Response.SUCCESS:
                answer = Answer(ext=fields)
                if end:
                    answer = self._sends.when_durable(call, answer, end, header.topic)
                return answer.effects if answer.held else later(call, answer)
            remark = f"push reply message to {requester[:255]}fail."
            return later(call, Answer(code=Response.SYSTEM_ERROR, remark=remark, ext=fields))

        push = Ask(connection_id, Request.PUSH_REPLY_MESSAGE_TO_CLIENT, answered, ext=ext, body=call.command.body)
        return Answer(held=True, asks=[push], effects=stored.effects)
