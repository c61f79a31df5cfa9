"""Judges whether the subscriptions of one group agree, and what happens when they do not.

Members of ours may read different topics: they divide a topic's queues among those that read it. Clients of RocketMQ
divide every topic that they read among all that the broker names to them (`consumer_group.py`).

A member that wants other tags of a topic than the others silently loses messages, so a local member whose tags differ
is refused; which topics a member reads is its own affair. RocketMQ wants all members of a group to read the same
topics, so with one of its clients in the group different topics are a disagreement too: it is noticed here
(`differs_since_ms`), and no member is refused for it. Per topic:

    joins with              while all agree                     while members differ (a rolling update is under way)
    the same                accepted                            accepted
    a superset              accepted, the update begins         accepted until the grace time is over
    what another member has accepted (is the same)              accepted until the grace time is over
    anything else           refused                             refused

"the same" and "superset" are judged against what the group currently wants of the topic: the tags of the update's
newest side. A member that repeats what it has is never refused. The group's own retry topic is the broker's affair and
is not compared; that of another group is a topic like others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum, auto
from typing import NamedTuple

from shmq.errors import SubscriptionConflict
from shmq.message import retry_topic
from shmq.protocol.body import SubscriptionData
from shmq.words import tags_in

_TAG = "TAG"
_EVERYTHING = frozenset({"*"})


class Interest(NamedTuple):
    """What a member wants of one topic: tags, or one expression of another language."""

    language: str
    terms: frozenset[str]

    def covers(self, other: Interest) -> bool:
        """Whether everything `other` selects is selected here too."""
        if self.language == _TAG and self.terms == _EVERYTHING:
            return True
        if self.language != other.language:
            return False
        return self.terms >= other.terms if self.language == _TAG else self.terms == other.terms

    def __str__(self) -> str:
        text = " || ".join(sorted(self.terms))
        return text if self.language == _TAG else f"{self.language} {text}"


Subscription = Mapping[str, Interest]


def subscription_of(group: str, entries: Iterable[SubscriptionData]) -> Subscription:
    """Return the comparable form of what a heartbeat lists for a group."""
    return {entry.topic: _interest(entry) for entry in entries if entry.topic != retry_topic(group)}


def _interest(entry: SubscriptionData) -> Interest:
    language = entry.expressionType or _TAG
    if language != _TAG:
        return Interest(language, frozenset({entry.subString}))
    tags = frozenset(tags_in(entry.subString)) - {""}
    return Interest(_TAG, _EVERYTHING if not tags or "*" in tags else tags)


class Verdict(Enum):
    """What becomes of a local member, for one topic."""

    ACCEPTED = auto()
    REFUSED = auto()
    TOO_LATE = auto()  # a superset, but the grace time of the update under way is over


class Agreement:
    """What the members of one group that read one topic agree on, and since when they do not."""

    def __init__(self) -> None:
        self.current: Interest | None = None
        self.differs_since_ms: int | None = None

    def judge(self, wanted: Interest, others: Iterable[Interest], *, now_ms: int, grace_ms: int) -> Verdict:
        """Judge a local member that joins or changes; changes nothing itself."""
        present = list(others)
        if not present or wanted == self.current:
            return Verdict.ACCEPTED
        since = now_ms if self.differs_since_ms is None else self.differs_since_ms
        in_time = now_ms - since < grace_ms
        wider = self._is_covered_by(wanted)
        if in_time and (wider or wanted in present):
            return Verdict.ACCEPTED
        return Verdict.TOO_LATE if wider and not in_time else Verdict.REFUSED

    def adopt(self, wanted: Interest) -> None:
        """Make the interest of an accepted local member the current one if it is the wider."""
        if self._is_covered_by(wanted):
            self.current = wanted

    def settle(self, present: Iterable[Interest], *, now_ms: int) -> None:
        """Look at the interests of all members that read the topic, one at least, after one came, changed or left."""
        interests = list(present)
        if self.current not in interests:
            self.current = interests[0]
        differs = any(interest != interests[0] for interest in interests)
        self.differs_since_ms = _since(self.differs_since_ms, differs, now_ms)

    def _is_covered_by(self, wanted: Interest) -> bool:
        return self.current is None or wanted.covers(self.current)


class GroupAgreement:
    """What the members of one group agree on, topic by topic, and since when they do not."""

    def __init__(self) -> None:
        self._topics: dict[str, Agreement] = {}
        self._topics_differ_since_ms: int | None = None

    @property
    def current(self) -> Subscription:
        """What the group currently wants of each topic that a member reads."""
        return {topic: agreed.current for topic, agreed in self._topics.items() if agreed.current is not None}

    @property
    def differs_since_ms(self) -> int | None:
        """Since when the members differ in anything; None while they agree."""
        times = [agreed.differs_since_ms for agreed in self._topics.values()]
        return min((since for since in (*times, self._topics_differ_since_ms) if since is not None), default=None)

    def judge(
        self, group: str, wanted: Subscription, others: Iterable[Subscription], *, now_ms: int, grace_ms: int
    ) -> None:
        """Judge a local member that joins or changes; changes nothing itself.

        Args:
            wanted: what is new to this member; a topic it goes on reading as before is not judged again.

        Raises:
            SubscriptionConflict: it differs in a topic and may not.
        """
        present = list(others)
        refused = {}
        for topic in wanted.keys() & self._topics.keys():
            verdict = self._topics[topic].judge(
                wanted[topic], _interests(topic, present), now_ms=now_ms, grace_ms=grace_ms
            )
            if verdict is not Verdict.ACCEPTED:
                refused[topic] = verdict
        if refused:
            raise _conflict(group, self.current, wanted, refused, grace_ms=grace_ms)

    def adopt(self, wanted: Subscription) -> None:
        """Make the interests of an accepted local member the current ones where they are the wider."""
        for topic, interest in wanted.items():
            self._topics.setdefault(topic, Agreement()).adopt(interest)

    def settle(self, present: Iterable[Subscription], *, now_ms: int, same_topics: bool) -> None:
        """Look at the subscriptions of all members after one came, changed or left.

        Args:
            same_topics: whether members that read different topics disagree, as beside a client of RocketMQ.
        """
        subscriptions = list(present)
        read = {topic for subscription in subscriptions for topic in subscription}
        for topic in self._topics.keys() - read:
            del self._topics[topic]
        for topic in read:
            self._topics.setdefault(topic, Agreement()).settle(_interests(topic, subscriptions), now_ms=now_ms)
        differs = same_topics and any(subscription.keys() != read for subscription in subscriptions)
        self._topics_differ_since_ms = _since(self._topics_differ_since_ms, differs, now_ms)


def _since(before_ms: int | None, differs: bool, now_ms: int) -> int | None:
    if not differs:
        return None
    return now_ms if before_ms is None else before_ms


def _interests(topic: str, subscriptions: Iterable[Subscription]) -> list[Interest]:
    return [subscription[topic] for subscription in subscriptions if topic in subscription]


def _conflict(
    group: str, current: Subscription, wanted: Subscription, refused: Mapping[str, Verdict], *, grace_ms: int
) -> SubscriptionConflict:
    topics = sorted(refused)
    shown = "; ".join(f"{topic}: {_shown(current[topic])} / {_shown(wanted[topic])}" for topic in topics[:4])
    more = f" and {len(topics) - 4} more topics" if len(topics) > 4 else ""
    if Verdict.TOO_LATE in refused.values():
        hint = f"members have differed for more than {grace_ms / 1000:g} s; end the update that is under way first"
    else:
        hint = "subscribe to the topic with the same tags and expression in every member, or choose another group name"
    return SubscriptionConflict(
        f'group "{group}" subscribes differently (the group / this member): {shown}{more}', hint=hint
    )


def _shown(interest: Interest) -> str:
    return f'"{interest}"'[:200]
