"""Rows for people: what two looks at one broker say about its processes, topics and groups.

A rate is the difference of two counters over the time between the looks;
with one look, or when the counter belongs to another process or generation, it is None: not known is not zero.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from shmq.client.client_id import name_of
from shmq.figures.snapshot import Client, Group, Process, Snapshot, plain

TCP_ROLE = "tcp"


@dataclass(frozen=True, slots=True)
class ProcessRow:
    """One process that takes part, or one client over TCP (pid None)."""

    pid: int | None = None
    user: str = ""
    role: str = TCP_ROLE  # supervisor, keeper, bridge, producer, consumer, both, reader, tcp
    name: str = ""
    state: str = ""
    cpu_percent: float | None = None
    rss_bytes: int | None = None
    uss_bytes: int | None = None  # in a deep look only
    in_rate: float | None = None  # messages a second it stored
    out_rate: float | None = None  # and was given
    idle: float | None = None  # seconds since its last send or poll
    lag: int | None = None  # of the queues it reads
    groups: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TopicRow:
    """One topic."""

    name: str
    kind: str
    queues: int
    messages: int
    size_bytes: int
    in_rate: float | None
    out_rate: float | None  # progress of all its groups together
    groups: int


@dataclass(frozen=True, slots=True)
class GroupRow:
    """One consumer group."""

    name: str
    members: int
    topics: int
    lag: int
    ready: int | None
    out_rate: float | None
    oldest: float | None
    conflict: bool


@dataclass(frozen=True, slots=True)
class Picture:
    """Everything of one refresh."""

    at: float
    seconds: float | None  # between the two looks
    snapshot: Snapshot
    in_rate: float | None
    in_bytes_rate: float | None
    out_rate: float | None
    processes: tuple[ProcessRow, ...]
    topics: tuple[TopicRow, ...]
    groups: tuple[GroupRow, ...]

    def document(self) -> dict[str, Any]:
        """Return the picture as JSON carries it."""
        broker = self.snapshot.broker
        supervisor = self.snapshot.process("supervisor")
        log = self.snapshot.log
        return {
            "broker": broker.name,
            "url": broker.url,
            "served": broker.served,
            "pid": supervisor.pid if supervisor and supervisor.alive else None,
            "at": int(self.at),
            "at_ms": int(self.at * 1000),
            "seconds": self.seconds,
            "uptime": supervisor.age if supervisor else None,
            "read_only": broker.read_only_text,
            "in_rate": self.in_rate,
            "in_bytes_rate": self.in_bytes_rate,
            "out_rate": self.out_rate,
            "log_end": log.end if log else None,
            "flush_behind_bytes": log.flush_behind_bytes if log else None,
            "replication": plain(self.snapshot.replication),
            "processes": [asdict(row) for row in self.processes],
            "topics": [asdict(row) for row in self.topics],
            "groups": [asdict(row) for row in self.groups],
            "faults": [fault._asdict() for fault in self.snapshot.faults],
        }


def picture_of(before: Snapshot | None, after: Snapshot) -> Picture:
    """Return the rows of the later look, with rates since the earlier one."""
    if before is not None and before.broker.generation != after.broker.generation:
        before = None
    seconds = after.at - before.at if before is not None else None
    rate = _Rate(seconds)
    consumed = _consumed(after)
    consumed_before = _consumed(before) if before else {}
    log, log_before = after.log, before.log if before else None
    return Picture(
        at=after.at,
        seconds=seconds,
        snapshot=after,
        in_rate=rate(log.appended if log else None, log_before.appended if log_before else None),
        in_bytes_rate=rate(log.end if log else None, log_before.end if log_before else None),
        out_rate=rate(sum(consumed.values()), sum(consumed_before.values()) if before else None),
        processes=_processes(before, after, rate),
        topics=_topics(before, after, rate, consumed, consumed_before),
        groups=tuple(_group(group, rate, consumed, consumed_before) for group in after.groups),
    )


@dataclass(frozen=True, slots=True)
class _Rate:
    seconds: float | None

    def __call__(self, now: float | None, before: float | None) -> float | None:
        if now is None or before is None or not self.seconds or self.seconds <= 0:
            return None
        return max(0.0, (now - before) / self.seconds)


def _consumed(look: Snapshot) -> dict[tuple[str, str], int]:
    """Progress of every group on every topic, in messages since both began."""
    found: dict[tuple[str, str], int] = {}
    for group in look.groups:
        for queue in group.queues:
            key = (group.name, queue.topic)
            found[key] = found.get(key, 0) + (queue.committed or 0)
    return found


def _processes(before: Snapshot | None, after: Snapshot, rate: _Rate) -> tuple[ProcessRow, ...]:
    known = {(process.pid, process.start): process for process in before.processes} if before else {}
    counted = {(client.slot, client.pid, client.start): client for client in before.clients} if before else {}
    local: dict[tuple[int, int], list[Client]] = {}
    for client in after.clients:
        if client.pid is not None:
            local.setdefault((client.pid, client.start), []).append(client)
    lag = _lag_by_reader(after.groups)
    rows = []
    for process in after.processes:
        clients = local.get((process.pid, process.start), [])
        rows.append(_process_row(process, known.get((process.pid, process.start)), clients, counted, lag, rate))
    return (*rows, *(_tcp_row(client) for client in after.clients if client.pid is None))


def _process_row(
    process: Process,
    earlier: Process | None,
    clients: list[Client],
    counted: Mapping[tuple[int | None, int | None, int], Client],
    lag: Mapping[int, int],
    rate: _Rate,
) -> ProcessRow:
    pairs = [(client, counted.get((client.slot, client.pid, client.start))) for client in clients]
    sent = [rate(now.sent, then.sent) for now, then in pairs if then is not None]
    received = [rate(now.received, then.received) for now, then in pairs if then is not None]
    cpu = rate(process.cpu_seconds, earlier.cpu_seconds if earlier else None)
    is_own = process.role != "client"
    return ProcessRow(
        pid=process.pid,
        user=process.user,
        role=process.role if is_own else _role(clients),
        name=_name(process),
        state=process.state,
        cpu_percent=None if cpu is None else round(100 * cpu, 1),
        rss_bytes=process.rss_bytes,
        uss_bytes=process.uss_bytes,
        in_rate=_total(sent),
        out_rate=_total(received),
        idle=min((client.idle for client in clients if client.idle is not None), default=None),
        lag=lag.get(process.pid),
        groups=tuple(sorted({name for client in clients for name in client.consumer_groups})),
    )


def _total(rates: Iterable[float | None]) -> float | None:
    known = [value for value in rates if value is not None]
    return sum(known) if known else None


def _role(clients: list[Client]) -> str:
    roles = sorted({client.role for client in clients})
    return roles[0] if len(roles) == 1 else "both" if roles else "client"


def _name(process: Process) -> str:
    named = [text for text in process.client_ids if text]
    return named[0] if named else process.name


def _tcp_row(client: Client) -> ProcessRow:
    name = " ".join(filter(None, (client.address, client.language, name_of(client.client_id))))
    return ProcessRow(name=name, idle=client.idle, groups=client.consumer_groups)


def _lag_by_reader(groups: Iterable[Group]) -> dict[int, int]:
    found: dict[int, int] = {}
    for group in groups:
        for queue in group.queues:
            if queue.owner_pid is not None:
                found[queue.owner_pid] = found.get(queue.owner_pid, 0) + queue.lag
    return found


def _topics(
    before: Snapshot | None,
    after: Snapshot,
    rate: _Rate,
    consumed: Mapping[tuple[str, str], int],
    consumed_before: Mapping[tuple[str, str], int],
) -> tuple[TopicRow, ...]:
    stored = {topic.name: topic.stored for topic in before.topics} if before else {}
    out, out_before, groups = _by_topic(consumed), _by_topic(consumed_before), Counter(topic for _, topic in consumed)
    return tuple(
        TopicRow(
            name=topic.name,
            kind=topic.role,
            queues=topic.queues,
            messages=topic.messages,
            size_bytes=topic.size_bytes,
            in_rate=rate(topic.stored, stored.get(topic.name)),
            out_rate=rate(out.get(topic.name), out_before.get(topic.name)),
            groups=groups[topic.name],
        )
        for topic in after.topics
    )


def _by_topic(consumed: Mapping[tuple[str, str], int]) -> dict[str, int]:
    found: dict[str, int] = {}
    for (_, topic), count in consumed.items():
        found[topic] = found.get(topic, 0) + count
    return found


def _group(
    group: Group,
    rate: _Rate,
    consumed: Mapping[tuple[str, str], int],
    consumed_before: Mapping[tuple[str, str], int],
) -> GroupRow:
    topics = {queue.topic for queue in group.queues}
    keys = [(group.name, topic) for topic in topics]
    known = [consumed_before[key] for key in keys if key in consumed_before]
    return GroupRow(
        name=group.name,
        members=len(group.members),
        topics=len(topics),
        lag=group.lag,
        ready=group.ready,
        out_rate=rate(sum(consumed[key] for key in keys), sum(known)) if len(known) == len(keys) and keys else None,
        oldest=group.oldest,
        conflict=group.differs is not None,
    )
