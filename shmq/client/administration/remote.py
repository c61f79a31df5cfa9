"""Owns administration over TCP, with the names and types of `shmq.client.administration.admin`.

It does not know how brokers are asked (admin_service). Sizes in bytes are not part of the protocol and read 0.
"""

from __future__ import annotations

import time
from collections.abc import ItemsView, Iterator, Mapping
from typing import TYPE_CHECKING, Any, cast

from shmq.client.administration.admin import DEAD_LETTERS_MAX, KINDS, Admin, DeadLetter, Kind, QueueInfo, TopicInfo
from shmq.client.administration.group import Group, GroupLag, QueueLag, ResetStep
from shmq.client.administration.health import Check, Health, worst
from shmq.client.administration.service import AdminService, QueueStats
from shmq.client.position import PositionLike, parse_position
from shmq.client.wire_tcp.session import RemoteSession
from shmq.errors import ConsumeError, ShmqError, UsageError
from shmq.message import check_group, check_topic, dead_letter_topic
from shmq.protocol.body import TopicConfig, topic_kind
from shmq.protocol.dialect import MessageQueue

if TYPE_CHECKING:
    from shmq.client.connection import Connection

DEFAULT_QUEUES = 8
DISK_WARNING = 0.85
"""RocketMQ refuses writes at 0.9 by default."""
_READ_PATIENCE = 1.0


def _session(connection: Connection) -> RemoteSession:
    session = connection._live()
    assert isinstance(session, RemoteSession), "remote administration belongs to remote connections"
    return session


class RemoteGroup(Group):
    """One consumer group of a cluster."""

    __slots__ = ("_connection",)

    def __init__(self, connection: Connection, name: str) -> None:
        super().__init__(connection, name)
        self._connection = connection

    @property
    def offsets(self) -> list[QueueLag]:
        """Every queue the group has an offset for, by topic and queue; owners are not known."""
        return sorted(self._lags().values())

    def _lags(self) -> dict[MessageQueue, QueueLag]:
        session = _session(self._connection)
        service = AdminService(session)
        progress = session.call(service.progress(self.name))
        stats = session.call(service.topic_stats(sorted({queue.topic for queue in progress})))
        found: dict[MessageQueue, QueueLag] = {}
        for queue, entry in progress.items():
            known = stats.get(queue.topic, {}).get(queue, QueueStats(0, entry.offset_max, 0))
            found[queue] = QueueLag(
                queue.topic,
                session.numbers.number(queue),
                entry.committed,
                known.offset_min,
                max(entry.offset_max, known.offset_max),
                -1,
                entry.updated_ms,
                entry.popped,
            )
        return found

    @property
    def lag(self) -> GroupLag:
        """How far the group is behind: in all, queue by queue, and how old the oldest waiting message is."""
        lags = self._lags()
        waiting = {queue: lag.backlog.next_offset for queue, lag in lags.items() if lag.waiting}
        session = _session(self._connection)
        oldest_ms = min(session.call(AdminService(session).stored_ms(waiting)), default=0)
        age = max(0.0, time.time() - oldest_ms / 1000) if oldest_ms else 0.0
        offsets = tuple(sorted(lags.values()))
        return GroupLag(sum(entry.behind for entry in offsets), offsets, age)

    @property
    def members(self) -> list[str]:
        """Client ids of the members the brokers know."""
        session = _session(self._connection)
        found: list[str] = session.call(AdminService(session).members(self.name))
        return found

    def reset(self, topic: str, *, to: PositionLike, dry_run: bool = False) -> list[ResetStep]:
        """Move the group's offsets on a topic, and return what that does to each queue.

        Raises:
            ConsumeError: the group has members; stop them first.
            TopicNotFound: there is no such topic.
        """
        session = _session(self._connection)
        position = parse_position(to)
        wanted = {queue.queue_id: session.place_in(topic, queue, position) for queue in session.read_queues(topic)}
        return self._move(topic, wanted, dry_run=dry_run)

    def _sibling(self, name: str) -> Group:
        return RemoteGroup(self._connection, name)

    def _move(self, topic: str, wanted: Mapping[int, int], *, dry_run: bool) -> list[ResetStep]:
        session = _session(self._connection)
        committed = session.committed(self.name, topic)
        steps = [
            ResetStep(queue_id, committed.get(queue_id, -1), offset) for queue_id, offset in sorted(wanted.items())
        ]
        if dry_run:
            return steps
        members = self.members
        if members:
            raise ConsumeError(
                f'group "{self.name}" has {len(members)} members, {members[0]} among them; their next commit would '
                "undo the reset",
                hint="stop its members, reset, and start them again",
            )
        session.commit(self.name, topic, dict(wanted))
        return steps

    def delete(self) -> None:
        """Forget the group and its offsets.

        Raises:
            ConsumeError: it has members.
        """
        members = self.members
        if members:
            raise ConsumeError(
                f'group "{self.name}" has {len(members)} members: {", ".join(members[:5])}', hint="stop them first"
            )
        session = _session(self._connection)
        session.call(AdminService(session).delete_group(self.name))


class RemoteGroups(Mapping[str, Group]):
    """All groups of the cluster by name."""

    __slots__ = ("_connection",)

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def _names(self) -> list[str]:
        session = _session(self._connection)
        found: list[str] = session.call(AdminService(session).groups())
        return found

    def __getitem__(self, name: str) -> Group:
        if name not in self._names():
            raise KeyError(f'group "{name}" does not exist at {self._connection.broker_name}')
        return RemoteGroup(self._connection, name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names())

    def __len__(self) -> int:
        return len(self._names())

    def items(self) -> ItemsView[str, Group]:
        """All groups, asked for once."""
        return {name: cast("Group", RemoteGroup(self._connection, name)) for name in self._names()}.items()


class RemoteAdmin(Admin):
    """What `mq.admin` offers over TCP."""

    __slots__ = ()

    def create_topic(self, name: str, *, queues: int | None = None, kind: Kind = "normal") -> TopicInfo:
        """Create a topic on every broker, or change the number of its queues, and return it.

        Args:
            queues: on each broker; None takes 8.
            kind: "normal", "fifo", "delay" or "transaction"; brokers before RocketMQ 5 know normal topics only.
        """
        check_topic(name)
        if kind not in KINDS:
            raise UsageError(f"kind={kind!r} does not exist", hint=f"one of {', '.join(KINDS)}")
        count = DEFAULT_QUEUES if queues is None else queues
        if count < 1:
            raise UsageError(f"a topic cannot have {count} queues", hint="queues is at least 1")
        session = _session(self._connection)
        session.call(AdminService(session).put_topic(name, queues=count, kind=kind))
        return self._topics([name])[name]

    def delete_topic(self, name: str) -> None:
        """Delete a topic on every broker; its messages are gone for every group at once.

        Raises:
            TopicNotFound: there is none of this name.
        """
        session = _session(self._connection)
        session.call(AdminService(session).delete_topic(name))

    @property
    def topics(self) -> dict[str, TopicInfo]:
        """All topics by name, those of the brokers themselves included (`is_system`)."""
        return self._topics(None)

    def _topics(self, names: list[str] | None) -> dict[str, TopicInfo]:
        session = _session(self._connection)
        service = AdminService(session)
        configs: dict[str, dict[str, TopicConfig]] = session.call(service.topic_configs())
        wanted = sorted(configs if names is None else set(names) & configs.keys())
        stats = session.call(service.topic_stats(wanted))
        return {name: _topic_info(session, name, configs[name], stats.get(name, {})) for name in wanted}

    @property
    def groups(self) -> Mapping[str, Group]:
        """All consumer groups by name."""
        return RemoteGroups(self._connection)

    def dlq(self, group: str, *, limit: int = 1000) -> list[DeadLetter]:
        """Return what a group gave up on, oldest first; [] when there is nothing."""
        topic = dead_letter_topic(check_group(group))
        if not 1 <= limit <= DEAD_LETTERS_MAX:
            raise UsageError(f"limit={limit} is not possible", hint=f"1 to {DEAD_LETTERS_MAX}")
        session = _session(self._connection)
        if not session.resolve(topic):
            return []
        with self._connection.pull_consumer(topic) as consumer:
            letters: list[DeadLetter] = []
            while len(letters) < limit and (messages := consumer.poll(limit - len(letters), _READ_PATIENCE)):
                letters += (DeadLetter(self._connection, group, message) for message in messages)
                if not sum(consumer.lag().values()):
                    break
            return letters

    def status(self) -> dict[str, Any]:
        """Return what every broker says about itself, as text by name."""
        session = _session(self._connection)
        return dict(session.call(AdminService(session).runtime()))

    def health(self) -> Health:
        """Look at the cluster and say whether it is well: OK, WARNING or CRITICAL, with figures."""
        session = _session(self._connection)
        try:
            brokers = session.call(AdminService(session).runtime())
        except ShmqError as error:
            failed = Check("brokers", "CRITICAL", f"the brokers do not answer: {error}", {"alive": 0})
            return Health("CRITICAL", (failed,))
        checks = [Check("brokers", "OK", f"{len(brokers)} brokers answer", {"alive": len(brokers)})]
        checks += [_disk(name, table) for name, table in sorted(brokers.items())]
        return Health(worst(checks), tuple(checks))


def _disk(name: str, table: Mapping[str, str]) -> Check:
    try:
        ratio = float(table.get("commitLogDiskRatio", "0"))
    except ValueError:
        ratio = 0.0
    figures = {"disk_percent": round(100 * ratio)}
    verdict = "WARNING" if ratio >= DISK_WARNING else "OK"
    return Check(f"disk of {name}", verdict, f"the disk of its log is {100 * ratio:.0f} % full", figures)  # type: ignore[arg-type]


def _topic_info(
    session: RemoteSession, name: str, configs: Mapping[str, TopicConfig], stats: Mapping[MessageQueue, QueueStats]
) -> TopicInfo:
    queues = sorted(
        QueueInfo(session.numbers.number(queue), entry.offset_min, entry.offset_max, 0)
        for queue, entry in stats.items()
    )
    first = next(iter(configs.values()))
    return TopicInfo(
        name,
        KINDS[topic_kind(first)],
        tuple(queues),
        sum(config.readQueueNums for config in configs.values()),
        sum(config.writeQueueNums for config in configs.values()),
        first.perm,
    )
