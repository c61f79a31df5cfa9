"""A broker whose n-th change of log or tables is refused, and clients that ask again until they are answered.

A refusal changes nothing, as the core promises of each change. What is asked again is the same request: by the broker's
own parking where the log was busy, by its sender where it was answered with an error.
"""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from shmq.daemon.broker.settings import BrokerSettings
from shmq.daemon.logic.effects import Effect, Notify, Reply
from shmq.errors import BrokerBusy, SegmentFull, StoreError
from shmq.properties import parse_properties
from shmq.protocol.codes import Request, Response
from shmq.protocol.command import Command
from tests.broker.conftest import MemoryTables
from tests.broker.kills import LOCAL, REMOTE, World

_TRIES_MAX = 6
_OF_TABLES = ("topic_delete", "topic_set_flush", "group_delete", "offset_lock")
_READS = ("read", "settled", "committed", "copies", "record_at", "stored_at")
_AT_LEAST_ONCE = frozenset(
    {Request.SEND_MESSAGE_V2, Request.SEND_BATCH_MESSAGE, Request.POP_MESSAGE, Request.RECALL_MESSAGE}
)
_NEVER_REFUSED = frozenset({"set_committed"})  # one store to a word
_OF_A_MOMENT = {"TIMER_DEQUEUE_MS", "__CRC32#"}  # when something happened, which a refusal puts off
_POP_TIME = re.compile(rb'"pt":\d+')


class Unsteady(World):
    """A world in which one change is refused.

    Args:
        refuse_at: which change; none where it is negative.
        is_parked: the log says that it is busy, so the broker itself handles the request again.
        of_reads: which read of the log fails, in place of a change.
        lose_at: the answer to which request is lost, so that its sender asks again; of those that store a message
            for others there is no such answer.
    """

    def __init__(
        self,
        settings: BrokerSettings,
        refuse_at: int = -1,
        *,
        is_parked: bool = False,
        of_reads: bool = False,
        lose_at: int = -1,
    ) -> None:
        self.refused: str | None = None
        self.is_parked, self.of_reads = is_parked, of_reads
        self._lose_at, self._answers_left = lose_at, -1
        self._opaques: dict[int, int] = {}
        self.replies: dict[tuple[int, int], list[Command]] = {}
        self.told: set[tuple[Any, ...]] = set()
        self._refuse_at = refuse_at
        super().__init__(MemoryTables(), replace(settings, serves_tcp=True))
        for name in _OF_TABLES:
            setattr(self.tables, name, self._counted(getattr(self.tables, name)))
        if of_reads:
            for name in _READS:
                setattr(self.log, name, self._failing(getattr(self.log, name)))
        self.broker.connected(2, None, self.now_ms, remote=REMOTE, local=LOCAL)
        self.begin(-1)

    def begin(self, refuse_at: int | None = None) -> None:
        """Count the changes from here on."""
        self.left = self._refuse_at if refuse_at is None else refuse_at
        self.told.clear()
        self._answers_left = self._lose_at

    def _comes_to_it(self, name: str) -> bool:
        self.left -= 1
        if self.left == -1:
            self.refused = name
        return self.left == -1

    def _counted(self, action: Callable[..., Any], *, unless: Callable[..., bool] | None = None) -> Callable[..., Any]:
        name = action.__name__
        is_append = name.startswith(("append", "raise_fence"))

        def change(*values: Any, **named: Any) -> Any:
            if self._depth or name in _NEVER_REFUSED or (unless and unless(*values)):
                return action(*values, **named)
            if not self.of_reads and self._comes_to_it(name):
                if is_append and self.is_parked:
                    self.log.congestion.refused += 1
                raise BrokerBusy("the lock is taken") if is_append else SegmentFull("no room in the table")
            self._depth += 1
            try:
                done = action(*values, **named)
            finally:
                self._depth -= 1
            self.log.congestion.stored += is_append and name != "raise_fence"
            return done

        return change

    def _failing(self, action: Callable[..., Any]) -> Callable[..., Any]:
        def read(*values: Any, **named: Any) -> Any:
            if not self._depth and self._comes_to_it(action.__name__):
                raise StoreError("mapping a log file: no memory")
            return action(*values, **named)

        return read

    def _alive(self, action: Callable[[], list[Effect]]) -> list[Effect] | None:
        effects = super()._alive(action)
        _ = self.broker.wanted_version, self.broker.wanted  # as a bridge looks after each step
        for effect in effects or ():
            if isinstance(effect, Reply):
                self.replies.setdefault((effect.connection_id, effect.command.opaque), []).append(effect.command)
            elif isinstance(effect, Notify):
                self.told.add((effect.connection_id, effect.command.code, *sorted(effect.command.ext.items())))
        return effects

    def send_request(
        self, code: int, ext: dict[str, Any] | None = None, body: bytes = b"", *, connection: int = 1
    ) -> tuple[int, int]:
        """Send a request; its reply may come later."""
        opaque = self._opaques[connection] = self._opaques.get(connection, 0) + 1
        fields = {name: str(value) for name, value in (ext or {}).items()}
        command = Command(code=code, opaque=opaque, ext=fields, body=body, version=413)
        self._alive(lambda: list(self.broker.handle(connection, command, self.now_ms)))
        return connection, opaque

    def ask(self, code: int, ext: dict[str, Any] | None = None, body: bytes = b"") -> Command:
        """Send a request and wait for its reply, on a clock that stands still for the log."""
        key = self.send_request(code, ext, body)
        for _ in range(_TRIES_MAX):
            if key in self.replies:
                break
            self.now_ms += 40
            self._alive(lambda: list(self.broker.woken(self.now_ms)))
        (reply,) = self.replies[key]
        return reply

    def insist(self, code: int, ext: dict[str, Any] | None = None, body: bytes = b"", *, done: str = "") -> Command:
        """Send a request again until it is answered with success, or that it is done already, in these words."""
        for _ in range(_TRIES_MAX):
            reply = self.ask(code, ext, body)
            if not _comes_twice(code, ext or {}):
                self._answers_left -= 1
                if self._answers_left == -1:
                    self.refused = f"the answer to {code}"
                    continue
            if reply.code == Response.SUCCESS or (done and done in (reply.remark or "")):
                return reply
        raise AssertionError(f"{code} is never served: {reply.code} {reply.remark}")

    def state(self) -> dict[str, Any]:
        """What is there, in a form that two worlds can be compared by."""
        tables = self.tables
        names = {index: name for name, index in tables.all_groups.items()}
        queues = {queue: (topic.name, at) for topic in tables.topics() for at, queue in enumerate(topic.queues)}
        owners = {slot: (names.get(group), queues.get(queue)) for (group, queue), slot in tables.slots.items()}
        return {
            "topics": {topic.name: topic[1:6] + topic[7:] for topic in tables.topics()},
            "groups": {name: tables.group_settings(index) for name, index in tables.all_groups.items()},
            "progress": {owners[slot]: offset for slot, offset in tables.progress.items()},
            "locks": {owners[slot]: holder for slot, (holder, _) in tables.locks.items()},
            "records": {
                place: [_seen(record) for record in self.records(*place)]
                for place in queues.values()
                if self.records(*place)
            },
            "told": self.told,
            "replies": {key for key in self.replies if key[0] != 1},
        }


def _comes_twice(code: int, ext: dict[str, Any]) -> bool:
    """Whether the message, asked for twice, is there twice, as at RocketMQ: its readers have to bear that."""
    return code in _AT_LEAST_ONCE or (code == Request.CONSUMER_SEND_MSG_BACK and ext["delayLevel"] >= 0)


def _seen(record: Any) -> tuple[Any, ...]:
    properties = parse_properties(record.properties.decode())
    kept = tuple(sorted((name, value) for name, value in properties.items() if name not in _OF_A_MOMENT))
    return _POP_TIME.sub(b"", record.body), kept, record.sys_flag, record.reconsume_times, record.flag
