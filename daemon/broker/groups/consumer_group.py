"""One consumer group with members: which of them share the queues of a topic, and where its retries lie.

Two kinds of members divide queues. Clients of RocketMQ divide every topic among all that the broker names to them.
Ours divide a topic among those that read it, so members may read different topics; where a client of RocketMQ reads a
topic, ours follow it. RocketMQ has one retry topic for a group, read by all: it serves only members that read alike.

    the group holds                     a topic is divided among              retries of a topic lie in
    ours, that read the same queues     those that read it                    %RETRY%group, shared by all
    ours, that differ, or pop           those that read it                    %RETRY%group+topic, shared by those
    a client of RocketMQ, its topics    it, and ours that read any of them    %RETRY%group, shared by these
    beside it, other topics of ours     those that read it                    %RETRY%group+topic, shared by those

What lies in a topic that has no readers by this table is moved to the one that has: `sends/retry_moves.py`.

Rules:
 1. Broadcasting members divide nothing: they are in no list.
 2. A retry topic whose name would be too long is not used: then everything stays in %RETRY%group.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from shmq.daemon.broker.groups.subscriptions import GroupAgreement, Subscription
from shmq.errors import SubscriptionConflict
from shmq.message import TOPIC_BYTES_MAX, retry_topic, retry_topic_of
from shmq.protocol.body import SubscriptionData
from shmq.protocol.codes import Language

_CLUSTERING = "CLUSTERING"


@dataclass(frozen=True, slots=True)
class Origin:
    """The sender of a heartbeat."""

    connection_id: int
    is_local: bool
    language: Language
    version: int


@dataclass(slots=True)
class Member:
    """One client in one consumer group.

    Attributes:
        shares_by_topic: whether it divides a topic among those that read it, as our clients do.
        popped: the topics of which the broker hides messages for it; it reads no queue of them.
    """

    client_id: str
    origin: Origin
    subscription: Subscription
    seen_ms: int
    model: str = _CLUSTERING
    shares_by_topic: bool = False
    popped: frozenset[str] = frozenset()

    @property
    def queues_of(self) -> frozenset[str]:
        """The topics of which it reads queues."""
        return frozenset(self.subscription) - self.popped


@dataclass(slots=True)
class ConsumerGroup:
    """The consumers of one group; `table` is RocketMQ's view of what the group subscribes to."""

    name: str
    model: str
    consume_type: str
    members: dict[str, Member] = field(default_factory=dict)
    table: dict[str, SubscriptionData] = field(default_factory=dict)
    agreement: GroupAgreement = field(default_factory=GroupAgreement)
    conflicts: int = 0
    consume_from: str = "CONSUME_FROM_LAST_OFFSET"

    @property
    def is_local(self) -> bool:
        """Whether no member is connected over TCP."""
        return all(member.origin.is_local for member in self.members.values())

    @property
    def is_ours(self) -> bool:
        """Whether all members are clients of ours."""
        return all(member.shares_by_topic for member in self.members.values())

    def sharers(self, topic: str) -> list[str]:
        """Return the sorted client ids of those among whom a topic is divided; "": as RocketMQ's clients ask."""
        return sorted(member.client_id for member in self._sharers(topic))

    def _sharers(self, topic: str) -> Iterable[Member]:
        foreign = self.foreign_topics
        if topic == retry_topic(self.name):
            return () if self.differs and not foreign else self._followers(foreign)
        read = self._origin_of(topic)
        if read in foreign:
            return () if read != topic else self._followers(foreign)
        if not topic:
            return self._followers(foreign)
        return [member for member in self._dividing() if read in member.subscription]

    def _origin_of(self, topic: str) -> str:
        """Return the topic whose retries lie in one, or itself."""
        return topic.removeprefix(retry_topic_of(self.name, ""))

    def _dividing(self) -> list[Member]:
        return [member for member in self.members.values() if member.model == _CLUSTERING]

    def _followers(self, foreign: frozenset[str]) -> list[Member]:
        """The clients of RocketMQ and ours that read a topic of theirs; all members where there are none of them."""
        members = self._dividing()
        if not foreign:
            return members
        return [member for member in members if not member.shares_by_topic or foreign & member.queues_of]

    @property
    def foreign_topics(self) -> frozenset[str]:
        """The topics that clients of RocketMQ read."""
        return frozenset(
            topic for member in self._dividing() if not member.shares_by_topic for topic in member.subscription
        )

    @property
    def differs(self) -> bool:
        """Whether members of ours do not all read the same queues, so that one retry topic cannot serve them."""
        own = [member for member in self._dividing() if member.shares_by_topic]
        read = {topic for member in own for topic in member.subscription}
        if all(member.queues_of == read for member in own):
            return False
        return all(len(retry_topic_of(self.name, topic)) <= TOPIC_BYTES_MAX for topic in read)

    def retry_home(self, topic: str) -> str:
        """Return the topic that retries of a topic are to lie in now."""
        foreign = self.foreign_topics
        is_read = any(topic in member.subscription for member in self._dividing())
        home = retry_topic_of(self.name, topic)
        if topic in foreign or len(home) > TOPIC_BYTES_MAX or (foreign and not is_read):
            return retry_topic(self.name)
        return home if foreign or self.differs else retry_topic(self.name)

    def unread_retry_topics(self) -> list[str]:
        """Return the retry topics of this group that no member reads, though retries may lie there."""
        foreign = self.foreign_topics
        if foreign:
            popped = {topic for member in self._dividing() for topic in member.popped}
            return [retry_topic_of(self.name, topic) for topic in sorted(foreign - popped)]
        return [retry_topic(self.name)] if self.differs else []


def check_way(group: str, member: Member, own: Member | None, others: Iterable[Member]) -> None:
    """Refuse a member of ours that reads what others of the group read in a way that takes messages from them.

    Args:
        own: what this member was until now; where it goes on as before, others are not held against it.

    Raises:
        SubscriptionConflict: the message says of which topic.
    """
    for other in others:
        if other.model != member.model and (own is None or own.model != member.model):
            raise SubscriptionConflict(
                f'group "{group}" consumes {other.model}, this member {member.model}',
                hint="use the same model in every member, or choose another group name",
            )
        if not other.shares_by_topic:
            continue  # of a client of RocketMQ the broker cannot say whether it pops
        for topic in sorted(member.subscription.keys() & other.subscription.keys()):
            is_kept = own is not None and topic in own.subscription and _pops(own, topic) == _pops(member, topic)
            if _pops(member, topic) != _pops(other, topic) and not is_kept:
                ways = {False: "reads the queues", True: "takes messages as a simple consumer"}
                raise SubscriptionConflict(
                    f'group "{group}" {ways[_pops(other, topic)]} of topic "{topic}", this member '
                    f"{ways[_pops(member, topic)]}: both would get the same messages",
                    hint="consume the topic in one way in every member, or choose another group name",
                )


def _pops(member: Member, topic: str) -> bool:
    return topic in member.popped
