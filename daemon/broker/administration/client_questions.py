"""Passes questions of administrators that only a client can answer to it; its answer is the reply.

They are the requests 307, 309 and 223.

    307, 309    one member is asked; its whole answer is the administrator's
    223         the members of a group are asked, all or one; the answers are put together

    not there: 1    no answer in time: 207    only this question is held

A local member is never sent a request it does not understand: it counts as one that does not answer.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from shmq.daemon.broker.groups.consumer_group import Member
from shmq.daemon.broker.groups.registry import GroupRegistry
from shmq.daemon.broker.log import Log
from shmq.daemon.broker.settings import BrokerSettings
from shmq.daemon.logic.effects import Effect
from shmq.daemon.logic.header_fields import text_of
from shmq.daemon.logic.requests import Answer, Ask, Call, Part, later, serves
from shmq.errors import ProtocolError, RemoteError
from shmq.protocol.codes import Request, Response
from shmq.protocol.command import Command
from shmq.protocol.dialect import dumps, loads
from shmq.protocol.message_id import position_in

_STATUS_TIMEOUT_MS = 5000
_MEMBERS_ASKED_MAX = 64
_STATUS_BYTES_MAX = 64 << 10  # of one member's answer; more takes the dialect's reader too long


class ClientQuestions(Part):
    """Passes questions on to clients."""

    def __init__(self, registry: GroupRegistry, log: Log, settings: BrokerSettings) -> None:
        self._registry = registry
        self._settings = settings
        self._log = log

    @serves(Request.GET_CONSUMER_RUNNING_INFO)
    def _running_info(self, call: Call) -> Answer:
        group, client_id = text_of(call.ext, "consumerGroup"), text_of(call.ext, "clientId")
        return self._pass_on(call, self._member(group, client_id), call.ext, b"")

    @serves(Request.CONSUME_MESSAGE_DIRECTLY)
    def _consume_directly(self, call: Call) -> Answer:
        group = text_of(call.ext, "consumerGroup")
        member = self._member(group, call.ext.get("clientId", ""))
        message_id = text_of(call.ext, "msgId")
        position = position_in(message_id)
        if position is None:
            raise ProtocolError(f"the message id {message_id[:64]!a} names no place in a log")
        record = self._log.record_at(position)
        if record is None:
            raise RemoteError(Response.SYSTEM_ERROR, f"no message is at the log position of {message_id}")
        return self._pass_on(call, member, {**call.ext, "brokerName": self._settings.broker_name}, record)

    def _member(self, group_name: str, client_id: str) -> Member:
        group = self._registry.consumer_group(group_name)
        members: Mapping[str, Member] = group.members if group is not None else {}
        member = members.get(client_id) if client_id else next(iter(members.values()), None)
        if member is None:
            shown = f"The Consumer <{group_name[:255]}> <{client_id[:255]}> not online"
            raise RemoteError(Response.SYSTEM_ERROR, shown)
        return member

    def _pass_on(self, call: Call, member: Member, ext: Mapping[str, str], body: bytes) -> Answer:
        code = call.command.code

        def answered(reply: Command | None) -> Sequence[Effect]:
            if reply is None:
                remark = f"consumer <{call.ext['consumerGroup']}> <{member.client_id}> Timeout"
                return later(call, Answer(code=Response.CONSUME_MSG_TIMEOUT, remark=remark))
            return later(call, Answer(code=reply.code, ext=reply.ext, body=reply.body, remark=reply.remark))

        return Answer(held=True, asks=[Ask(member.origin.connection_id, code, answered, ext=dict(ext), body=body)])

    # -- where members stand

    @serves(Request.INVOKE_BROKER_TO_GET_CONSUMER_STATUS)
    def _status(self, call: Call) -> Answer:
        name, topic = text_of(call.ext, "group"), text_of(call.ext, "topic")
        wanted = call.ext.get("clientAddr", "")
        group = self._registry.consumer_group(name)
        members = [member for member in (group.members.values() if group else ()) if wanted in ("", member.client_id)][
            :_MEMBERS_ASKED_MAX
        ]
        if not members:
            raise RemoteError(Response.SYSTEM_ERROR, f"No Any Consumer online in the consumer group: [{name[:255]}]")
        gathered: dict[str, Any] = {}
        open_questions = {member.client_id for member in members}

        def gather(client_id: str, reply: Command | None) -> Sequence[Effect]:
            open_questions.discard(client_id)
            gathered[client_id] = _queue_offsets(reply)
            if open_questions:
                return ()
            body = {"consumerTable": gathered, "messageQueueTable": {}}
            return later(call, Answer(body=dumps(body)))

        asks = [
            Ask(
                member.origin.connection_id,
                Request.GET_CONSUMER_STATUS_FROM_CLIENT,
                partial(gather, member.client_id),
                ext={"topic": topic, "group": name},
                timeout_ms=_STATUS_TIMEOUT_MS,
            )
            for member in members
        ]
        return Answer(held=True, asks=asks)


def _queue_offsets(reply: Command | None) -> Any:
    if reply is None or reply.code != Response.SUCCESS or len(reply.body) > _STATUS_BYTES_MAX:
        return {}
    try:
        body = loads(reply.body)
    except ProtocolError:
        return {}
    table = body.get("messageQueueTable") if isinstance(body, dict) else None
    return table if isinstance(table, dict) else {}
