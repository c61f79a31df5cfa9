"""Administration of topics: create or change, delete, list.

They are the requests 17, 18, 215, 21 and 351, the list of system topics (305), and the cleaning of what is expired
or unused (306, 316, 329). The keeper removes what is expired as soon as it is, so a request to clean up finds it done.

`defaultTopic`, `topicFilterType`, `order` and `force` of RocketMQ's request mean nothing, as in RocketMQ itself. A
change that says no attributes leaves the topic's kind as it is.

What came again of a topic to its groups goes with it, as far as it lies in retry topics of their own.

A private header field `bornPositions` of 21 asks for where each topic begins in the log, and where that ended: a slave
of ours tells by it a topic that was deleted and made again, and when it has all that there is of a deleted one.

A private header field `onlyIfMissing` makes 17 harmless for a topic that exists, so that two producers that create a
topic on first use cannot change what an administrator created in between. The answer's field `created` says what was.
"""

from collections.abc import Callable

from shmq.daemon.broker.groups.registry import GroupRegistry
from shmq.daemon.broker.settings import BrokerSettings
from shmq.daemon.broker.tables import Tables, Topic
from shmq.daemon.broker.topics import delete_retries, ensure_topic, find_topic, system_topic_names
from shmq.daemon.logic.header_fields import INT32_MAX, flag_of, number_of, text_of
from shmq.daemon.logic.requests import Answer, Call, Part, serves
from shmq.delay_levels import SCHEDULE_TOPIC, DelayLevels
from shmq.errors import FlowControl, InvalidName, RemoteError, UsageError
from shmq.message import (
    PERM_ALL,
    PERM_READ_WRITE,
    QUEUES_MAX,
    TOPIC_BYTES_MAX,
    TRACE_TOPIC,
    check_topic,
    is_system_topic,
)
from shmq.protocol.admin_body import TopicConfigList, TopicList
from shmq.protocol.body import (
    BORN_POSITIONS,
    LOG_END,
    DataVersion,
    TopicConfig,
    TopicTable,
    decode_body,
    encode_body,
    listed_attributes,
    names_kind,
    parse_flush,
    parse_kind,
    topic_flush,
    topic_kind,
)
from shmq.protocol.codes import Request, Response, TopicKind
from shmq.protocol.request_reply import REPLY_QUEUES, reply_topic
from shmq.timing import TIMER_TOPIC


class TopicRequests(Part):
    """Serves the administration of topics."""

    def __init__(
        self, tables: Tables, registry: GroupRegistry, settings: BrokerSettings, deleted: Callable[[int], None]
    ) -> None:
        """`deleted` is called with the time when topics are gone: what was popped of them is over."""
        self._deleted = deleted
        self._tables = tables
        self._registry = registry
        self._settings = settings
        self._own_queues = {
            SCHEDULE_TOPIC: DelayLevels(settings.delay_levels).count,
            TIMER_TOPIC: 1,
            TRACE_TOPIC: 1,
            reply_topic(settings.cluster): REPLY_QUEUES,
        }
        self._system_names = system_topic_names(settings)

    @serves(Request.UPDATE_AND_CREATE_TOPIC)
    def _put(self, call: Call) -> Answer:
        ext = call.ext
        is_ours = ext.get("topic") in self._own_queues
        if is_ours and call.connection.is_local and flag_of(ext, "onlyIfMissing"):
            return self._ensure_own(ext["topic"])
        name = self._name_for_topic(text_of(ext, "topic"))
        default = self._settings.default_queues
        write_queues = _queues(number_of(ext, "writeQueueNums", most=INT32_MAX, default=default))
        read_queues = _queues(number_of(ext, "readQueueNums", most=INT32_MAX, default=write_queues))
        perm = number_of(ext, "perm", most=PERM_ALL, default=PERM_READ_WRITE)
        flags = number_of(ext, "topicSysFlag", most=INT32_MAX, default=0)
        known = self._tables.topic(name)
        parse_flush(ext.get("attributes", ""))  # what it refuses is refused before anything is changed
        kind: int = parse_kind(ext.get("attributes", ""))
        if known is not None and flag_of(ext, "onlyIfMissing"):
            return Answer(ext={"created": "false"})
        if known is not None and not call.connection.is_local and not names_kind(ext.get("attributes", "")):
            kind = known.kind
        self._tables.topic_put(
            name, read_queues=read_queues, write_queues=write_queues, perm=perm, flags=flags, kind=kind
        )
        flush = parse_flush(ext.get("attributes", ""))
        if flush is not None:
            self._tables.topic_set_flush(name, flush)
        created = {"created": "false" if known else "true"} if call.connection.is_local else {}
        return Answer(ext=created, changed_groups=self._registry.subscribers(name))

    def _ensure_own(self, name: str) -> Answer:
        """A local client delays, traces or asks, and this broker has never had such a message."""
        known = self._tables.topic(name)
        ensure_topic(self._tables, name, queues=self._own_queues[name])
        return Answer(ext={"created": "false" if known else "true"})

    @serves(Request.UPDATE_AND_CREATE_TOPIC_LIST)
    def _put_list(self, call: Call) -> Answer:
        configs = decode_body(call.command.body, TopicConfigList).topicConfigList
        most = self._settings.list_entries_max
        if len(configs) > most:
            raise FlowControl(f"{len(configs)} topics in one request; {most} are allowed")
        changed: dict[str, None] = {}
        for config in configs:  # all are looked at before any is made
            self._name_for_topic(config.topicName)
            _queues(config.writeQueueNums)
            _queues(config.readQueueNums)
            if not 0 <= config.perm <= PERM_ALL or not 0 <= config.topicSysFlag <= INT32_MAX:
                raise UsageError(f'topic "{config.topicName}": perm={config.perm} topicSysFlag={config.topicSysFlag}')
        for config in configs:
            self._tables.topic_put(
                config.topicName,
                read_queues=config.readQueueNums,
                write_queues=config.writeQueueNums,
                perm=config.perm,
                flags=config.topicSysFlag,
                kind=topic_kind(config),
            )
            self._tables.topic_set_flush(config.topicName, topic_flush(config))
            changed |= dict.fromkeys(self._registry.subscribers(config.topicName))
        return Answer(changed_groups=tuple(changed))

    @serves(Request.DELETE_TOPIC_IN_BROKER)
    def _delete(self, call: Call) -> Answer:
        name = self._name_for_topic(text_of(call.ext, "topic"))
        if not call.connection.is_local and self._tables.topic(name) is None:
            return Answer()  # RocketMQ finds nothing wrong with it
        find_topic(self._tables, name, broker_name=self._settings.broker_name)
        delete_retries(self._tables, lambda _, topic: topic == name)
        self._tables.topic_delete(name)
        self._deleted(call.now_ms)
        return Answer(changed_groups=self._registry.subscribers(name))

    @serves(Request.GET_TOPIC_CONFIG)
    def _get(self, call: Call) -> Answer:
        topic = self._tables.topic(text_of(call.ext, "topic"))
        if topic is None:
            name = call.ext["topic"][:TOPIC_BYTES_MAX]
            raise RemoteError(Response.TOPIC_NOT_EXIST, f"No topic in this broker. topic: {name}")
        return Answer(body=encode_body(topic_config(topic)))

    @serves(Request.GET_ALL_TOPIC_CONFIG)
    def _list(self, call: Call) -> Answer:
        # Before the table: what is made after it lies behind, and is another version.
        log_end, version = self._tables.facts().log_end, self._tables.version
        table = {topic.name: topic_config(topic) for topic in self._tables.topics()}
        answer = TopicTable(table, DataVersion(counter=version))
        if not flag_of(call.ext, BORN_POSITIONS):
            return Answer(body=encode_body(answer))
        answer.bornPositions = {name: self._tables.born_position(name) for name in table}
        return Answer(body=encode_body(answer), ext={LOG_END: str(log_end)})

    def _name_for_topic(self, name: str) -> str:
        """Return a name that an administrator may give to a topic."""
        try:
            check_topic(name)
        except InvalidName as error:
            error.code = Response.SYSTEM_ERROR  # as RocketMQ answers
            raise
        if is_system_topic(name) or name in self._system_names:
            conflict = UsageError(f"The topic[{name}] is conflict with system topic.", hint="choose another name")
            conflict.code = Response.SYSTEM_ERROR
            raise conflict
        return name

    @serves(Request.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)
    def _system_topics(self, call: Call) -> Answer:
        own = {self._settings.cluster, self._settings.broker_name, *system_topic_names(self._settings)}
        own.update(name for name in self._tables.topic_names() if is_system_topic(name))
        return Answer(body=encode_body(TopicList(sorted(own))))

    @serves(Request.CLEAN_EXPIRED_CONSUMEQUEUE, Request.CLEAN_UNUSED_TOPIC, Request.DELETE_EXPIRED_COMMITLOG)
    def _done(self, call: Call) -> Answer:
        return Answer()


def _queues(count: int) -> int:
    if not 1 <= count <= QUEUES_MAX:
        raise UsageError(f"a topic of {count} queues", hint=f"choose 1 to {QUEUES_MAX}")
    return count


def topic_config(topic: Topic) -> TopicConfig:
    """Return a topic as answers name it."""
    kind = TopicKind(topic.kind) if topic.kind in TopicKind.__members__.values() else TopicKind.NORMAL
    return TopicConfig(
        topicName=topic.name,
        readQueueNums=topic.read_queues,
        writeQueueNums=topic.write_queues,
        perm=topic.perm,
        topicSysFlag=topic.flags,
        order=kind == TopicKind.FIFO,
        attributes=listed_attributes(kind, topic.flush),
    )
