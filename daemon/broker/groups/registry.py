"""The registry of consumers and producers: which client is a member of which group.

It is plain memory: the time is handed in, and connections are numbers.

    heartbeat of a new member, or with a changed subscription      the group has changed: its members get a notice
    unregister, connection gone, 120 s of silence (TCP only)       the group has changed: its members get a notice

A local member lives exactly as long as its connection. The tags that local members want of a topic must agree
(`subscriptions.GroupAgreement`); the disagreement of a TCP member is counted and reported, never refused. Ways of
reading that take messages from others are refused to all clients of ours (`check_way`). What the group's table says is
decided by the last heartbeat, as at RocketMQ, but for what other members read where clients of ours are concerned.

Among whom the queues of a topic are divided, and where a group's retries lie: `consumer_group.py`.

Invariants:
 1. A heartbeat is applied to all of its groups or to none.
 2. A group without members is forgotten with everything about it.
 3. `_by_connection` names exactly the memberships of each connection, so that leaving costs what the leaver held.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from shmq.daemon.broker.groups.consumer_group import ConsumerGroup, Member, Origin, check_way
from shmq.daemon.broker.groups.selection import characters_max
from shmq.daemon.broker.groups.subscriptions import subscription_of
from shmq.daemon.broker.settings import BrokerSettings
from shmq.daemon.logic.requests import Connection
from shmq.errors import FlowControl
from shmq.message import check_group, check_topic, retry_topic
from shmq.protocol.body import ConsumerData, HeartbeatData, SubscriptionData


@dataclass(slots=True)
class Change:
    """What a call changed: groups whose members get a notice, and lines for the log."""

    groups: list[str] = field(default_factory=list)
    reports: list[str] = field(default_factory=list)


class GroupRegistry:
    """All groups with members; connections are numbers handed in by the caller."""

    hears_heartbeats = True

    def __init__(self, settings: BrokerSettings) -> None:
        self._settings = settings
        self._consumers: dict[str, ConsumerGroup] = {}
        self._producers: dict[str, dict[str, Member]] = {}
        self._by_connection: dict[int, set[tuple[bool, str, str]]] = defaultdict(set)  # (consumes, group, client id)
        self.version = 0  # grows whenever a table, a model or a group changes
        self.members_version = 0  # grows whenever a member comes, changes or leaves
        self.touched: set[str] = set()  # groups whose table or model may differ since this was emptied

    def check(self, origin: Origin, beat: HeartbeatData, now_ms: int) -> None:
        """Say whether a heartbeat would be accepted; changes nothing.

        Raises:
            InvalidName: a group or topic name that cannot exist.
            FlowControl: more groups, topics or members than a broker keeps.
            SubscriptionConflict: a local member that differs from its group, or one of ours over TCP that reads the
                group's messages in another way.
        """
        self._check_limits(origin, beat)
        for data in beat.consumerDataSet:
            member = _member_of(beat, data, origin, now_ms)
            group = self._consumers.get(data.groupName)
            if group is None or not member.shares_by_topic:
                continue
            others = [other for other in group.members.values() if other.client_id != member.client_id]
            check_way(group.name, member, group.members.get(member.client_id), others)
            if origin.is_local:
                self._judge(group, member, others, now_ms)

    def heartbeat(self, origin: Origin, beat: HeartbeatData, now_ms: int) -> Change:
        """Register or refresh one client in all groups its heartbeat names. Raises as `check`, then changes nothing."""
        self.check(origin, beat, now_ms)
        change = Change()
        for data in beat.consumerDataSet:
            self._consume(origin, beat, data, now_ms, change)
        for producer in beat.producerDataSet:
            members = self._producers.setdefault(producer.groupName, {})
            self._replace(members.get(beat.clientID), origin, consumes=False, group=producer.groupName)
            members[beat.clientID] = Member(beat.clientID, origin, {}, now_ms)
            self._by_connection[origin.connection_id].add((False, producer.groupName, beat.clientID))
        return change

    def _check_limits(self, origin: Origin, beat: HeartbeatData) -> None:
        limits = self._settings
        held = {group for _, group, _ in self._by_connection.get(origin.connection_id, ())}
        named = {data.groupName for data in beat.consumerDataSet} | {data.groupName for data in beat.producerDataSet}
        if len(held | named) > limits.groups_per_client_max:
            raise FlowControl(f"{len(held | named)} groups of one client; {limits.groups_per_client_max} are allowed")
        for name in named:
            check_group(name)
        for data in beat.consumerDataSet:
            if len(data.subscriptionDataSet) > limits.topics_per_group_max:
                raise FlowControl(
                    f"group {data.groupName} subscribes to {len(data.subscriptionDataSet)} topics; "
                    f"{limits.topics_per_group_max} are allowed"
                )
            for entry in data.subscriptionDataSet:
                check_topic(entry.topic)
                most = characters_max(entry.expressionType, limits)
                if len(entry.subString) > most:
                    raise FlowControl(
                        f"the subscription to {entry.topic} has {len(entry.subString)} characters; {most} are allowed"
                    )
            group = self._consumers.get(data.groupName)
            if group and beat.clientID not in group.members and len(group.members) >= limits.members_per_group_max:
                raise FlowControl(f"group {data.groupName} has {len(group.members)} members, which is the limit")
        for producer in beat.producerDataSet:
            producers = self._producers.get(producer.groupName, {})
            if beat.clientID not in producers and len(producers) >= limits.members_per_group_max:
                raise FlowControl(f"group {producer.groupName} has {len(producers)} producers, which is the limit")

    def _judge(self, group: ConsumerGroup, member: Member, others: list[Member], now_ms: int) -> None:
        own = group.members.get(member.client_id)
        held = own.subscription if own else {}
        group.agreement.judge(
            group.name,
            {topic: interest for topic, interest in member.subscription.items() if held.get(topic) != interest},
            [other.subscription for other in others],
            now_ms=now_ms,
            grace_ms=self._settings.subscription_grace_ms,
        )

    def _consume(
        self,
        origin: Origin,
        beat: HeartbeatData,
        data: ConsumerData,
        now_ms: int,
        change: Change,
    ) -> None:
        member = _member_of(beat, data, origin, now_ms)
        group = self._consumers.get(data.groupName)
        if group is None:
            group = ConsumerGroup(data.groupName, data.messageModel, data.consumeType)
            self._consumers[data.groupName] = group
            self.version += 1
        # The last heartbeat decides, as in RocketMQ; a local member that would change the model was refused before.
        self.version += group.model != data.messageModel
        group.model, group.consume_type = data.messageModel, data.consumeType
        self.touched.add(group.name)
        group.consume_from = data.consumeFromWhere
        before = group.members.get(beat.clientID)
        if beat.withoutSub and before is not None:
            member.subscription, member.popped = before.subscription, before.popped
        self._replace(before, origin, consumes=True, group=group.name)
        group.members[beat.clientID] = member
        self._by_connection[origin.connection_id].add((True, group.name, beat.clientID))
        is_new = before is None or before.origin.connection_id != origin.connection_id
        if is_new or before is None or _reads_otherwise(member, before):
            self.members_version += 1
            change.groups.append(group.name)
            if origin.is_local:
                group.agreement.adopt(member.subscription)
            self._settle(group, now_ms, change)
        if not beat.withoutSub:
            self.version += _update_table(group, member, data.subscriptionDataSet)

    def _settle(self, group: ConsumerGroup, now_ms: int, change: Change) -> None:
        agreed = group.agreement.differs_since_ms is None
        group.agreement.settle(
            [member.subscription for member in group.members.values()],
            now_ms=now_ms,
            same_topics=not group.is_ours,
        )
        if agreed and group.agreement.differs_since_ms is not None:
            group.conflicts += 1
            change.reports.append(f'the members of group "{group.name}" subscribe differently')

    def _replace(self, before: Member | None, origin: Origin, *, consumes: bool, group: str) -> None:
        """A client that comes back over another connection no longer belongs to the old one."""
        if before is not None and before.origin.connection_id != origin.connection_id:
            self._forget(before.origin.connection_id, (consumes, group, before.client_id))

    def _forget(self, connection_id: int, membership: tuple[bool, str, str]) -> None:
        held = self._by_connection.get(connection_id)
        if held is not None:
            held.discard(membership)
            if not held:
                del self._by_connection[connection_id]

    def unregister(
        self, connection_id: int, client_id: str, *, producer_group: str, consumer_group: str, now_ms: int
    ) -> Change:
        """Take a client out of groups; an empty name leaves that side alone, an unknown one is harmless."""
        change = Change()
        for consumes, group in ((False, producer_group), (True, consumer_group)):
            if (consumes, group, client_id) in self._by_connection.get(connection_id, ()):
                self._remove(connection_id, (consumes, group, client_id), now_ms, change)
        return change

    def leave(self, connection_id: int, now_ms: int) -> Change:
        """Take everything a connection registered out of its groups."""
        change = Change()
        for membership in sorted(self._by_connection.get(connection_id, ())):
            self._remove(connection_id, membership, now_ms, change)
        return change

    def _remove(self, connection_id: int, membership: tuple[bool, str, str], now_ms: int, change: Change) -> None:
        consumes, name, client_id = membership
        self._forget(connection_id, membership)
        if not consumes:
            producers = self._producers[name]
            del producers[client_id]
            if not producers:
                del self._producers[name]
            return
        group = self._consumers[name]
        del group.members[client_id]
        self.members_version += 1
        if group.members:
            self._settle(group, now_ms, change)
            change.groups.append(name)
        else:
            del self._consumers[name]
            self.version += 1
            self.touched.add(name)

    def expired_connections(self, now_ms: int) -> list[int]:
        """Return the TCP connections that have a member silent for longer than a member may be."""
        oldest = now_ms - self._settings.member_expiry_ms
        return sorted(
            {
                member.origin.connection_id
                for member in self._all_members()
                if not member.origin.is_local and member.seen_ms < oldest
            }
        )

    def _all_members(self) -> Iterator[Member]:
        for group in self._consumers.values():
            yield from group.members.values()
        for members in self._producers.values():
            yield from members.values()

    def members(self, group: str) -> list[str]:
        """Return the sorted client ids of a consumer group; every member sees the same order."""
        found = self._consumers.get(group)
        return sorted(found.members) if found is not None else []

    def sharers(self, group: str, topic: str = "") -> list[str]:
        """Return the sorted client ids of those among whom the queues of a topic are divided.

        Args:
            topic: "" asks as clients of RocketMQ do, which divide every topic among all listed members.
        """
        found = self._consumers.get(group)
        return found.sharers(topic) if found is not None else []

    def origins(self, group: str) -> list[Origin]:
        """Return where the members of a consumer group are connected, each connection once."""
        found = self._consumers.get(group)
        return (
            list({member.origin.connection_id: member.origin for member in found.members.values()}.values())
            if found
            else []
        )

    def subscribers(self, topic: str) -> list[str]:
        """Return the consumer groups of which a member subscribes to a topic."""
        return sorted(
            group.name
            for group in self._consumers.values()
            if topic in group.table or any(topic in member.subscription for member in group.members.values())
        )

    def memberships(self, connection_id: int) -> tuple[list[str], list[str]]:
        """Return the consumer and the producer groups of a connection, sorted."""
        held = sorted(self._by_connection.get(connection_id, ()))
        return [name for consumes, name, _ in held if consumes], [name for consumes, name, _ in held if not consumes]

    def member_of(self, connection_id: int) -> Member | None:
        """Return a member that is registered over a connection, None when there is none."""
        for consumes, name, client_id in sorted(self._by_connection.get(connection_id, ())):
            return self._consumers[name].members[client_id] if consumes else self._producers[name][client_id]
        return None

    def consumer_group(self, name: str) -> ConsumerGroup | None:
        """Return a consumer group that has members; the caller reads and changes nothing."""
        return self._consumers.get(name)

    def producers(self) -> Mapping[str, Mapping[str, Member]]:
        """Return the members of each producer group by client id; the caller reads and changes nothing."""
        return self._producers

    def producer_connection(self, client_id: str) -> int | None:
        """Return the connection over which a producer of a TCP client is registered, None when there is none."""
        for members in self._producers.values():
            member = members.get(client_id)
            if member is not None and not member.origin.is_local:
                return member.origin.connection_id
        return None

    def consumer_groups(self) -> list[ConsumerGroup]:
        """Return all consumer groups with members; the caller reads and changes nothing."""
        return [self._consumers[name] for name in sorted(self._consumers)]

    def producer_groups(self) -> dict[str, list[str]]:
        """Return the client ids of each producer group."""
        return {name: sorted(members) for name, members in sorted(self._producers.items())}


def _member_of(beat: HeartbeatData, data: ConsumerData, origin: Origin, now_ms: int) -> Member:
    return Member(
        beat.clientID,
        origin,
        subscription_of(data.groupName, data.subscriptionDataSet),
        now_ms,
        model=data.messageModel,
        shares_by_topic=origin.is_local or data.sharesByTopic is True,
        popped=frozenset(entry.topic for entry in data.subscriptionDataSet if entry.isPopped is True),
    )


def _reads_otherwise(member: Member, before: Member) -> bool:
    now, then = ((each.subscription, each.popped, each.model, each.shares_by_topic) for each in (member, before))
    return now != then


def _update_table(group: ConsumerGroup, member: Member, entries: list[SubscriptionData]) -> bool:
    """RocketMQ's rule: a newer entry replaces an older one, and what this heartbeat does not list is dropped.

    But members of ours may read different topics: what another member reads is kept if it is of ours, or this one is.
    Else each would drop what the other pulls, and both would get "not subscribed" again and again.

    Returns:
        Whether the table is another now.
    """
    table, changed = group.table, False
    for entry in entries:
        known = table.get(entry.topic)
        if known is None or entry.subVersion > known.subVersion:
            table[entry.topic] = entry
            changed = True
    gone = table.keys() - {entry.topic for entry in entries}
    if gone:
        others = (other for other in group.members.values() if other.client_id != member.client_id)
        for other in others:
            if other.shares_by_topic or member.shares_by_topic:
                gone -= {retry_topic(group.name), *other.subscription}
    for topic in gone:
        del table[topic]
    return changed or bool(gone)


class Presence(NamedTuple):
    """The present members of groups and connections, for STATUS, roster, metrics and administrators.

    Attributes:
        since_ms: when the broker's logic began, on the steady clock.
    """

    registry: GroupRegistry
    connections: Mapping[int, Connection]
    since_ms: int
