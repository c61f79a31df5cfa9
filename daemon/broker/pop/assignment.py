"""Decides whether a group pulls or pops a topic, and which queues a member may ask for.

They are QUERY_ASSIGNMENT (400), SET_MESSAGE_REQUEST_MODE (401) and GET_ALL_MESSAGE_REQUEST_MODE (402). Clients of
release 5 that leave the sharing of queues to the broker ask the first every 20 s.

    mode    members share    a member may ask for
    PULL    the queues       its share, by the strategy it names
    POP     everything       queue -1: any; with popShareQueueNum n its own share and those of the n members behind it

Only the queues of this broker are known here: in a cluster of several, clients have to share queues by themselves.
Modes are kept with the state of POP (`state.py`).
"""

from collections.abc import Sequence

import msgspec

from shmq.daemon.broker.groups.registry import GroupRegistry
from shmq.daemon.broker.pop.state import PopState
from shmq.daemon.broker.settings import BrokerSettings
from shmq.daemon.broker.tables import Names
from shmq.daemon.logic.requests import Answer, Call, Part, serves
from shmq.errors import RemoteError
from shmq.message import PERM_READ, RETRY_PREFIX, check_group, check_popping
from shmq.protocol.allocation import allocate, allocate_in_circle
from shmq.protocol.body import decode_body, encode_body
from shmq.protocol.codes import Request, Response
from shmq.protocol.system_topics.pop_records import ModeRecord

PULL, POP = "PULL", "POP"
_BROADCASTING = "BROADCASTING"
_ANY_QUEUE = -1


class _Question(msgspec.Struct):
    """Body of QUERY_ASSIGNMENT."""

    topic: str
    consumerGroup: str
    clientId: str = ""
    strategyName: str = "AVG"
    messageModel: str = "CLUSTERING"


class _Wish(msgspec.Struct):
    """Body of SET_MESSAGE_REQUEST_MODE."""

    topic: str
    consumerGroup: str
    mode: str = PULL
    popShareQueueNum: int = 0


class Assignment(Part):
    """Serves assignments."""

    def __init__(self, tables: Names, registry: GroupRegistry, settings: BrokerSettings, state: PopState) -> None:
        self._tables = tables
        self._registry = registry
        self._settings = settings
        self._state = state

    @serves(Request.QUERY_ASSIGNMENT)
    def _query(self, call: Call) -> Answer:
        asked = decode_body(call.command.body, _Question)
        self._state.catch_up(call.now_ms)
        mode = self._mode(asked.consumerGroup, asked.topic)
        queues = self._share(asked, mode)
        if queues is None:
            return Answer(body=b"{}")  # the client keeps what it has
        return Answer(
            body=encode_body(
                {
                    "messageQueueAssignments": [
                        {
                            "messageQueue": {
                                "brokerName": self._settings.broker_name,
                                "queueId": queue_id,
                                "topic": asked.topic,
                            },
                            "mode": mode.mode,
                        }
                        for queue_id in dict.fromkeys(queues)
                    ]
                }
            )
        )

    def _mode(self, group: str, topic: str) -> ModeRecord:
        return self._state.mode(group, topic) or ModeRecord(group, topic, PULL)

    def _share(self, asked: _Question, mode: ModeRecord) -> Sequence[int] | None:
        """Queue ids of one member; None when that is unknown."""
        topic = self._tables.topic(asked.topic)
        if topic is None or not topic.perm & PERM_READ:
            return None
        queues = range(topic.read_queues)
        if asked.messageModel == _BROADCASTING:
            return queues
        members = self._registry.sharers(asked.consumerGroup, asked.topic)
        if asked.strategyName not in _STRATEGIES or not members:
            return None
        if mode.mode == POP:
            return _pop_share(asked, members, queues, mode.n)
        return _STRATEGIES[asked.strategyName](members, asked.clientId, queues)

    @serves(Request.SET_MESSAGE_REQUEST_MODE)
    def _set_mode(self, call: Call) -> Answer:
        wish = decode_body(call.command.body, _Wish)
        if wish.topic.startswith(RETRY_PREFIX):
            raise RemoteError(Response.NO_PERMISSION, "retry topic is not allowed to set mode")
        if self._tables.topic(wish.topic) is None:
            raise RemoteError(Response.TOPIC_NOT_EXIST, f"topic[{wish.topic[:127]}] not exist")
        if wish.mode not in (PULL, POP):
            raise RemoteError(Response.INVALID_PARAMETER, f"the mode {wish.mode[:32]!a}; {PULL} or {POP} is possible")
        if wish.mode == POP:
            check_popping(wish.consumerGroup, wish.topic)
        self._tables.group_put(check_group(wish.consumerGroup))
        self._state.catch_up(call.now_ms)
        record = ModeRecord(wish.consumerGroup, wish.topic, wish.mode, wish.popShareQueueNum)
        if self._mode(wish.consumerGroup, wish.topic) != record:
            self._state.write([record], call.now_ms)
        return Answer()

    @serves(Request.GET_ALL_MESSAGE_REQUEST_MODE)
    def _modes(self, call: Call) -> Answer:
        self._state.catch_up(call.now_ms)
        table: dict[str, dict[str, dict[str, object]]] = {}
        for record in self._state.modes():
            table.setdefault(record.t, {})[record.c] = {
                "consumerGroup": record.c,
                "mode": record.mode,
                "popShareQueueNum": record.n,
                "topic": record.t,
            }
        return Answer(body=encode_body({"messageRequestModeMap": table}))


_STRATEGIES = {"AVG": allocate, "AVG_BY_CIRCLE": allocate_in_circle}


def _pop_share(asked: _Question, members: Sequence[str], queues: Sequence[int], others: int) -> list[int]:
    if others <= 0 or others >= len(members) - 1:
        return [_ANY_QUEUE]
    if asked.clientId not in members:
        return []
    rank = members.index(asked.clientId)
    if len(members) > len(queues):
        return [queues[rank % len(queues)]]
    share_of = _STRATEGIES[asked.strategyName]
    shares = (share_of(members, members[(rank + step) % len(members)], queues) for step in range(others + 1))
    return [queue_id for share in shares for queue_id in share]
