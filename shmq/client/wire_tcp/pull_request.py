"""The pull request, and what follows from its answer: a `Command` in, a `Pulled` out.

    0  found                                      deliver, go on at once
    19 not found, 20 retry at once                go on at once; after a moment if the broker did not hold the request
    21 offset moved                               begin again where the broker says
    24, 25 subscription unknown or old            register again, then go on
    anything else                                 go on after a pause, with the broker's words

Invariant: the four numbers of an answer are input: one that is missing or negative makes the answer an error.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from shmq.errors import ProtocolError, ShmqError
from shmq.protocol.codes import Request, Response
from shmq.protocol.command import Command
from shmq.protocol.dialect import MessageQueue
from shmq.protocol.failure import error_of

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
    """What is asked of one queue."""

    group: str
    queue: MessageQueue
    offset: int
    count_max: int = COUNT_MAX
    hold: float = SUSPEND
    commit_offset: int | None = None
    expression: str | None = None  # None: the broker knows the group's subscription from its heartbeat
    version: int = 0
    expression_type: str = "TAG"


class Pulled(NamedTuple):
    """What an answer means."""

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
        next_offset, offset_max = _number(reply, "nextBeginOffset"), _number(reply, "maxOffset")
        broker_id = _number(reply, "suggestWhichBrokerId")
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


def _number(reply: Command, name: str) -> int:
    text = reply.ext.get(name, "")
    if not text.isdecimal() or len(text) > 19:
        raise ProtocolError(f"the answer to a pull has {name}={text[:32]!a}")
    return int(text)
