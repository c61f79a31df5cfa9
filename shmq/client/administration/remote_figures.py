"""Topics, groups and figures of a cluster, asked of all its brokers. Sizes in bytes are not part of the protocol: 0.

Invariants:
    1. A change goes to the master of every broker; the first refusal is raised, so what others did stays done.
    2. Figures are asked of all brokers at once, at most 16 requests on their way.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from shmq.client.administration.interface import ResetStep, TopicQueues, TopicSettings
from shmq.client.wire import Question, Queues, ask_each, warn_of_unsaved
from shmq.errors import ConsumeError, ProtocolError, RemoteError, RequestTimeout, ShmqError
from shmq.figures.model import QueueInfo, QueueLag, TopicInfo, flush_name, kind_name
from shmq.figures.thresholds import DISK_RATIO_WARN
from shmq.figures.verdict import Finding, Health, Verdict, health_of, judge
from shmq.message import PERM_READ, PERM_WRITE, RETRY_PREFIX
from shmq.protocol.body import (
    CHECKS,
    TABLE_BYTES_MAX,
    SubscriptionGroupTable,
    TopicConfig,
    TopicTable,
    attribute_text,
    decode_body,
    topic_flush,
    topic_kind,
)
from shmq.protocol.client_requests import (
    group_creation,
    group_deletion,
    member_ids,
    member_list,
    topic_change,
    topic_deletion,
    topic_table,
)
from shmq.protocol.codes import Request
from shmq.protocol.command import Command
from shmq.protocol.dialect import MessageQueue, loads
from shmq.protocol.failure import reply_of
from shmq.protocol.route import KVTable
from shmq.typed_json import decode_json

if TYPE_CHECKING:
    from shmq.client.wire_tcp.wire import TcpWire

DEFAULT_QUEUES: Final = 8
_ROUTE_POLL: Final = 0.05


class QueueStats(NamedTuple):
    """The figures of one queue from a broker."""

    offset_min: int
    offset_max: int
    updated_ms: int


class RemoteFigures:
    """Figures of a cluster; see `Figures`.

    Args:
        wire: returns the wire of the connection, which is another one after a fork.
        queues: likewise.
        name_servers: their addresses, for the words of errors.
    """

    default_queues = DEFAULT_QUEUES
    is_asked = True

    def __init__(self, wire: Callable[[], TcpWire], queues: Callable[[], Queues], name_servers: str) -> None:
        self._wire = wire
        self._queues = queues
        self.place = f"at {name_servers}"

    @property
    def queues(self) -> Queues:
        return self._queues()

    def _ask_all(self, command: Command, brokers: Iterable[str] | None = None) -> list[Command]:
        """Ask brokers, all if none are named, and return their answers by name.

        Raises:
            ShmqError: the first refusal.
        """
        wire = self._wire()
        names = wire.brokers() if brokers is None else brokers
        return list(map(reply_of, ask_each(wire, [Question.of(name, command) for name in names])))

    def _ask_willing(self, *commands: Command) -> list[tuple[Question, Command]]:
        """Ask all brokers, and return the answers of those that know about the matter."""
        wire = self._wire()
        asked = [Question.of(name, command) for name in wire.brokers() for command in commands]
        found = []
        for question, answer in zip(asked, ask_each(wire, asked), strict=True):
            try:
                found.append((question, reply_of(answer)))
            except (RemoteError, LookupError):
                continue
        return found

    # -- topics
    def topics(self, names: Collection[str] | None = None) -> list[TopicInfo]:
        configs = self._topic_configs()
        wanted = sorted(configs if names is None else set(names) & configs.keys())
        stats = self._topic_stats(wanted)
        for name in wanted:
            if any(config.readQueueNums > config.writeQueueNums for config in configs[name]):
                stats.setdefault(name, {}).update(self._unwritten_stats(name, stats.get(name, {})))
        return [self._topic_info(name, configs[name], stats.get(name, {})) for name in wanted]

    def topic_names(self) -> list[str]:
        return sorted(self._topic_configs())

    def has_topic(self, name: str) -> bool:
        return bool(self._wire().brokers(name))

    def is_on_every_broker(self, topic: str) -> bool:
        wire = self._wire()
        return set(wire.brokers()) <= set(wire.brokers(topic))

    def topic_queues(self, topic: str) -> TopicQueues | None:
        configs = self._topic_configs().get(topic)
        if not configs:
            return None
        stats = self._topic_stats([topic]).get(topic, {})
        stored: dict[int, int] = {}
        for queue, entry in (stats | self._unwritten_stats(topic, stats)).items():
            stored[queue.queueId] = stored.get(queue.queueId, 0) + entry.offset_max - entry.offset_min
        read, write = (
            max(numbers) for numbers in zip(*((c.readQueueNums, c.writeQueueNums) for c in configs), strict=True)
        )
        return TopicQueues(read, write, stored)

    def create_topic(self, name: str, settings: TopicSettings) -> bool:
        """Create or change a topic on every broker, and wait until the name servers know it."""
        is_new, change, perm = not self.has_topic(name), settings.queues, settings.perm
        command = topic_change(
            name,
            read_queues=change.read_queues,
            write_queues=change.write_queues,
            perm=perm,
            attributes=attribute_text(settings.kind, settings.flush, changes_kind=settings.changes_kind),
        )
        wire = self._wire()
        replies = self._ask_all(command)
        warn_of_unsaved(*replies)
        brokers = len(replies)
        wanted = (
            change.read_queues * brokers if perm & PERM_READ else 0,
            change.write_queues * brokers if perm & PERM_WRITE else 0,
        )
        deadline = time.monotonic() + wire.timeout
        while wire.refresh(name) != wanted:
            if time.monotonic() >= deadline:
                raise RequestTimeout(
                    f'topic "{name}" was created, but the name servers did not show it within {wire.timeout:g} s',
                    hint="are the brokers registered at all of them?",
                )
            time.sleep(_ROUTE_POLL)
        return is_new

    def delete_topic(self, name: str) -> None:
        wire = self._wire()
        wire.refresh(name)
        self.queues.read_queues(name, must_exist=True)
        masters = wire.brokers()
        brokers = [broker for broker in wire.brokers(name) if broker in masters]
        warn_of_unsaved(*self._ask_all(topic_deletion(name), brokers))
        wire.tell_name_servers(Request.DELETE_TOPIC_IN_NAMESRV, {"topic": name})
        wire.refresh(name)

    def _topic_configs(self) -> dict[str, list[TopicConfig]]:
        """Return {topic: its settings on the brokers that have it}."""
        found: dict[str, list[TopicConfig]] = {}
        for reply in self._ask_all(topic_table()):
            table = decode_body(reply.body, TopicTable, dialect_bytes_max=TABLE_BYTES_MAX)
            for name, config in table.topicConfigTable.items():
                found.setdefault(name, []).append(config)
        return found

    def _topic_stats(self, names: Collection[str]) -> dict[str, dict[MessageQueue, QueueStats]]:
        """Return what the brokers say about the queues of topics; a topic that is gone has none."""
        found: dict[str, dict[MessageQueue, QueueStats]] = {}
        commands = [Command(code=Request.GET_TOPIC_STATS_INFO, ext={"topic": name}) for name in names]
        for question, reply in self._ask_willing(*commands):
            assert question.ext is not None
            stats = found.setdefault(question.ext["topic"], {})
            for queue, entry in _offset_table(reply.body).items():
                numbers = (_number(entry, name) for name in ("minOffset", "maxOffset", "lastUpdateTimestamp"))
                stats[queue] = QueueStats(*numbers)
        return found

    def _unwritten_stats(self, name: str, known: Mapping[MessageQueue, QueueStats]) -> dict[MessageQueue, QueueStats]:
        """Return the same of queues that are read and not written: what brokers tell of a topic leaves them out."""
        queues, found = self.queues, {}
        for slot in queues.read_queues(name):
            queue = queues.message_queue(name, slot.queue_id)
            if queue not in known:
                found[queue] = QueueStats(*queues.bounds(name, slot), 0)
        return found

    def _topic_info(self, name: str, configs: list[TopicConfig], stats: Mapping[MessageQueue, QueueStats]) -> TopicInfo:
        queues = self.queues
        return TopicInfo(
            name,
            kind_name(topic_kind(configs[0])),
            tuple(
                sorted(
                    QueueInfo(queues.queue_id(queue), entry.offset_min, entry.offset_max, 0)
                    for queue, entry in stats.items()
                )
            ),
            sum(config.readQueueNums for config in configs),
            sum(config.writeQueueNums for config in configs),
            configs[0].perm,
            flush_name(topic_flush(configs[0])),
        )

    # -- groups
    def group_names(self) -> list[str]:
        found: set[str] = set()
        for reply in self._ask_all(Command(code=Request.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)):
            table = decode_body(reply.body, SubscriptionGroupTable, dialect_bytes_max=TABLE_BYTES_MAX)
            found.update(table.subscriptionGroupTable)
        return sorted(found)

    def has_group(self, name: str) -> bool:
        return name in self.group_names()

    def create_group(self, name: str) -> None:
        warn_of_unsaved(*self._ask_all(group_creation(name)))

    def delete_group(self, group: str) -> None:
        warn_of_unsaved(*self._ask_all(group_deletion(group)))

    def progress(self, group: str | None = None) -> dict[str, list[QueueLag]]:
        names = self.group_names() if group is None else [group]
        return {name: rows for name in names if (rows := self._lags(name))}

    def _lags(self, group: str) -> list[QueueLag]:
        progress = {
            queue: entry
            for _, reply in self._ask_willing(Command(code=Request.GET_CONSUME_STATS, ext={"consumerGroup": group}))
            for queue, entry in _offset_table(reply.body).items()
        }
        stats = self._topic_stats(sorted({queue.topic for queue in progress}))
        found = []
        for queue, entry in progress.items():
            offset_max = _number(entry, "brokerOffset")
            known = stats.get(queue.topic, {}).get(queue, QueueStats(0, offset_max, 0))
            found.append(
                QueueLag(
                    queue.topic,
                    self.queues.queue_id(queue),
                    _number(entry, "consumerOffset"),
                    known.offset_min,
                    max(offset_max, known.offset_max),
                    -1,
                    _number(entry, "lastTimestamp"),
                    _number(entry, "popped"),
                )
            )
        return sorted(found)

    def members(self, group: str) -> list[str]:
        """Return the client ids of a group, as all brokers together know them."""
        return sorted({name for _, reply in self._ask_willing(member_list(group)) for name in member_ids(reply)})

    def connections(self, group: str) -> list[dict[str, Any]]:
        """Return the members of a group: client, language, version, subscription."""
        found: dict[str, dict[str, Any]] = {}
        command = Command(code=Request.GET_CONSUMER_CONNECTION_LIST, ext={"consumerGroup": group})
        for _, reply in self._ask_willing(command):
            body = loads(reply.body)
            if not isinstance(body, dict):
                continue
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

    def move(self, group: str, topic: str, wanted: Mapping[int, int], *, dry_run: bool) -> list[ResetStep]:
        committed = self.queues.committed(group, topic)
        steps = [
            ResetStep(queue_id, committed.get(queue_id, -1), offset) for queue_id, offset in sorted(wanted.items())
        ]
        if dry_run:
            return steps
        members = self.members(group)
        if members:
            raise ConsumeError(
                f'group "{group}" has {len(members)} members, {members[0]} among them; their next commit would '
                "undo the reset",
                hint="stop its members, reset, and start them again",
            )
        self.queues.commit(group, topic, dict(wanted))
        return steps

    # -- brokers
    def status(self) -> dict[str, Any]:
        names = self._wire().brokers()
        answers = self._ask_all(Command(code=Request.GET_BROKER_RUNTIME_INFO), names)
        return {
            name: decode_body(reply.body, KVTable, dialect_bytes_max=TABLE_BYTES_MAX).table
            for name, reply in zip(names, answers, strict=True)
        }

    def health(self) -> Health:
        try:
            brokers = self.status()
        except ShmqError as error:
            why, do = str(error), error.hint or "shmq health on their hosts"
            what = "the brokers do not answer"
            return health_of([Finding("brokers", Verdict.CRITICAL, what, "", why, do, facts={"alive": 0})])
        return cluster_health(brokers)


def cluster_health(brokers: Mapping[str, Mapping[str, str]]) -> Health:
    """Look at what the brokers of a cluster say about themselves, by name."""
    checks = [Finding("brokers", Verdict.OK, f"{len(brokers)} brokers answer", facts={"alive": len(brokers)})]
    for name, table in sorted(brokers.items()):
        checks += [_disk(name, table), *_told(name, table)]
    return health_of(checks)


def _told(name: str, table: Mapping[str, str]) -> Iterator[Finding]:
    """Findings of a broker of ours about itself; others report none."""
    try:
        rows = decode_json(table.get(CHECKS, "[]").encode(), list[tuple[str, Verdict, str]])
    except ValueError:
        return
    for check, verdict, text in rows:
        yield Finding(f"{check} of {name}", verdict, text)


def _disk(name: str, table: Mapping[str, str]) -> Finding:
    try:
        ratio = float(table.get("commitLogDiskRatio", "0"))
    except ValueError:
        ratio = 0.0
    verdict = judge(ratio, DISK_RATIO_WARN, None)
    why, do = ("it stores nothing more above its mark", "make room there") if verdict is not Verdict.OK else ("", "")
    what, facts = f"the disk of its log is {100 * ratio:.0f} % full", {"disk_percent": round(100 * ratio)}
    return Finding(f"disk of {name}", verdict, what, "", why, do, facts=facts)


def _offset_table(body: bytes) -> dict[MessageQueue, dict[str, Any]]:
    if len(body) > TABLE_BYTES_MAX:
        raise ProtocolError(f"a table of offsets of {len(body)} bytes; {TABLE_BYTES_MAX} are read")
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
