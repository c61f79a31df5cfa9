"""The requests that change topics and groups: when they are all refused, and when they are answered.

    on a slave                          a topic or a group is the master's to change, and its slaves copy it
    where nothing can be saved          the tables are in shared memory, and the keeper saves them some 0.1 s later:
                                        what the disk does not take now would be gone after a restart
    where the keeper makes no rounds    done, and the remark of the answer says that it is not saved yet
    where slaves confirm                a mark in the log says what was changed, and the answer waits until it is
                                        confirmed: a slave takes over what the mark says first
    where the log takes no mark         done, and the remark says that only this host has it; but where this host does
                                        not lead any more, the log's refusal is the answer

Changes whose mark is not stored yet share the next one; it says how things are then.

Sends need no rule here. The log of a slave takes none, and its refusal has the code that RocketMQ's producers know: 14,
service not available.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, NoReturn

from shmq.daemon.broker.administration.topics import topic_config
from shmq.daemon.broker.groups.settings import GroupSettings
from shmq.daemon.broker.log import Log, NewRecord
from shmq.daemon.broker.settings import BrokerSettings
from shmq.daemon.broker.tables import Tables
from shmq.daemon.broker.topics import ensure_topic
from shmq.daemon.logic.alarm import Alarm
from shmq.daemon.logic.effects import Effect, Reply
from shmq.daemon.logic.header_fields import flag_of
from shmq.daemon.logic.requests import Answer, Call, Connection, Handler, Part, WhenDurable, later
from shmq.errors import BrokerBusy, BrokerNotRunning, NotMaster, RemoteError, SegmentFull, ShmqError
from shmq.protocol.admin_body import GroupConfigList, TopicConfigList
from shmq.protocol.body import SubscriptionGroupConfig, decode_body
from shmq.protocol.codes import NOT_SAVED_YET, ONLY_HERE, Request, Response
from shmq.protocol.failure import failure_reply
from shmq.protocol.system_topics.table_marks import TABLES_TOPIC, TablesMark, encode_tables_mark

_CHANGES = (
    Request.UPDATE_AND_CREATE_TOPIC,
    Request.UPDATE_AND_CREATE_TOPIC_LIST,
    Request.DELETE_TOPIC_IN_BROKER,
    Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
    Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
    Request.DELETE_SUBSCRIPTIONGROUP,
)
_SILENCE_SECONDS_MOST = 3.0  # as for a warning of health
_NAMES_PER_MARK = 1000  # some 300 bytes each
_AGAIN_MS, _UNASKED_AGAIN_MS = 20, 1_000
_WHY = "Can't modify topic or subscription group from slave broker, please execute it from master broker."


def slave_refusals() -> Mapping[int, Handler]:
    """Return the handlers that a slave has in place of a master's."""
    return dict.fromkeys(map(int, _CHANGES), _refuse)


def _refuse(_call: Call) -> NoReturn:
    raise RemoteError(Response.SYSTEM_ERROR, _WHY)


class _Waiting(NamedTuple):
    call: Call
    answer: Answer


class TableChanges(Part):
    """Stands before the handlers of these requests, and answers in their place where slaves confirm."""

    def __init__(
        self, tables: Tables, log: Log, groups: GroupSettings, settings: BrokerSettings, when_durable: WhenDurable
    ) -> None:
        self._tables, self._log, self._groups = tables, log, groups
        self._are_confirmed = settings.confirms
        self._timeout_ms = settings.flush_timeout_ms
        self._when_durable = when_durable
        self._topics: dict[str, None] = {}  # changed, and in no mark yet
        self._group_names: dict[str, None] = {}
        self._waiting: list[_Waiting] = []  # for a mark
        self._marked_end = 0  # of the last one
        self._alarm = Alarm()

    def checked(self, handlers: Mapping[int, Handler]) -> Mapping[int, Handler]:
        """Return the handlers that stand before these."""
        return {int(code): self._checked(handlers[code]) for code in _CHANGES}

    def _checked(self, handler: Handler) -> Handler:
        def handle(call: Call) -> Answer | None:
            self._tables.check_savable()
            before = self._tables.version
            try:
                answer = handler(call)
            except ShmqError:
                if self._tables.version != before:  # it was done in part
                    self._note(call)
                raise
            silence = self._tables.keeper_silence_seconds()
            if answer is not None and silence > _SILENCE_SECONDS_MOST:
                answer.remark = (
                    f"{NOT_SAVED_YET}: the store keeper has made no round for {silence:.0f} s; see shmq health"
                )
            return self._held(call, answer) if answer is not None and self._are_confirmed else answer

        return handle

    def _held(self, call: Call, answer: Answer) -> Answer:
        is_as_before = flag_of(call.ext, "onlyIfMissing") and answer.ext.get("created") == "false"
        if not is_as_before:
            self._note(call)
        if self._topics or self._group_names:
            self._waiting.append(_Waiting(call, replace(answer, changed_groups=(), effects=())))
            return replace(answer, held=True, effects=[*answer.effects, self._alarm.set(call.now_ms, 0)])
        if self._marked_end <= self._log.durable_end:
            return answer
        # What made it is being confirmed. The end: answers wait in the order of the log.
        return self._when_durable(call, answer, max(self._marked_end, self._log.end), TABLES_TOPIC)

    def _note(self, call: Call) -> None:
        if self._are_confirmed:
            topics, groups = _names_in(call)
            self._topics |= dict.fromkeys(topics)
            self._group_names |= dict.fromkeys(groups)

    def woken(self, now_ms: int) -> Sequence[Effect]:
        """Store the mark of what was changed."""
        return self._alarm.ring(now_ms, self._mark)

    def disconnected(self, connection: Connection, now_ms: int) -> Sequence[Effect]:
        """Drop the answers that wait for a connection that is gone; what was changed is marked all the same."""
        gone = connection.connection_id
        self._waiting = [each for each in self._waiting if each.call.connection.connection_id != gone]
        return ()

    def _mark(self, now_ms: int) -> Sequence[Effect]:
        try:
            self._marked_end = self._append()
        except (BrokerBusy, SegmentFull) as error:
            due_ms = now_ms - self._timeout_ms
            return self._give_up(error, sum(each.call.now_ms <= due_ms for each in self._waiting), now_ms)
        except ShmqError as error:
            return self._give_up(error, len(self._waiting), now_ms)
        self._topics.clear()
        self._group_names.clear()
        effects: list[Effect] = []
        waiting, self._waiting = self._waiting, []
        for call, answer in waiting:
            held = self._when_durable(call, answer, self._marked_end, TABLES_TOPIC)
            effects += held.effects if held.held else later(call, held)
        return effects

    def _append(self) -> int:
        topic, end = ensure_topic(self._tables, TABLES_TOPIC, queues=1), 0
        for mark in self._marks():
            end = self._log.append(topic, 0, NewRecord(encode_tables_mark(mark))).end
        return end

    def _marks(self) -> Iterator[TablesMark]:
        for names in _parts(self._topics):
            known = {name: topic for name in names if (topic := self._tables.topic(name)) is not None}
            gone = [name for name in names if name not in known]
            born = {name: self._tables.born_position(name) for name in known}
            yield TablesMark([topic_config(topic) for topic in known.values()], born=born, deleted_topics=gone)
        for names in _parts(self._group_names):
            gone = [name for name in names if self._tables.group(name) is None]
            here = [self._groups.named(name) for name in names if name not in gone]
            yield TablesMark(groups=here, deleted_groups=gone)

    def _give_up(self, error: ShmqError, count: int, now_ms: int) -> Sequence[Effect]:
        """Answer the oldest without a mark, and try again for the others; the next mark tells of all these changes."""
        given_up, self._waiting = self._waiting[:count], self._waiting[count:]
        effects: list[Effect] = [self._alarm.set(now_ms, _AGAIN_MS if self._waiting else _UNASKED_AGAIN_MS)]
        for call, answer in given_up:
            if not isinstance(error, NotMaster | BrokerNotRunning):
                effects += later(call, replace(answer, remark=f"{ONLY_HERE}: {error}"))
            elif not call.command.is_oneway:
                effects.append(Reply(call.connection.connection_id, failure_reply(call.command, error)))
        return effects


def _names_in(call: Call) -> tuple[Iterable[str], Iterable[str]]:
    """Return the topics and groups that a request names; its handler has read it."""
    code, body = call.command.code, call.command.body
    if code == Request.UPDATE_AND_CREATE_TOPIC_LIST:
        return [config.topicName for config in decode_body(body, TopicConfigList).topicConfigList], ()
    if code == Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP:
        return (), [decode_body(body, SubscriptionGroupConfig).groupName]
    if code == Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST:
        return (), [config.groupName for config in decode_body(body, GroupConfigList).groupConfigList]
    if code == Request.DELETE_SUBSCRIPTIONGROUP:
        return (), [call.ext["groupName"]]
    return [call.ext["topic"]], ()


def _parts(names: Iterable[str]) -> Iterator[list[str]]:
    listed = list(names)
    for begin in range(0, len(listed), _NAMES_PER_MARK):
        yield listed[begin : begin + _NAMES_PER_MARK]
