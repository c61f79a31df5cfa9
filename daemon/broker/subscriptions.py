"""When two subscriptions of one group agree, and what happens when they do not.

Owns the conflict rule for local members. It does not know connections, groups or time: `now_ms` is handed in.

A group divides the queues of its topics among all its members, so a member that does not want a topic, or wants other
tags of it, silently loses its share of the messages. A local member whose subscription differs is therefore refused:

    joins with              while all agree                     while members differ (a rolling update is under way)
    the same                accepted                            accepted
    a superset              accepted, the update begins         accepted until the grace time is over
    what another member has accepted (is the same)              accepted until the grace time is over
    anything else           refused                             refused

"the same" and "superset" are judged against the group's current subscription: that of the update's newest side. A
member that repeats what it has is never refused. Retry topics are the broker's own affair and are not compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from shmq.errors import SubscriptionConflict
from shmq.message import RETRY_PREFIX
from shmq.protocol.body import SubscriptionData

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


def subscription_of(entries: Iterable[SubscriptionData]) -> Subscription:
    """Return the comparable form of what a heartbeat lists for one group."""
    return {entry.topic: _interest(entry) for entry in entries if not entry.topic.startswith(RETRY_PREFIX)}


def _interest(entry: SubscriptionData) -> Interest:
    language = entry.expressionType or _TAG
    if language != _TAG:
        return Interest(language, frozenset({entry.subString}))
    tags = frozenset(tag.strip() for tag in entry.subString.split("||")) - {""}
    return Interest(_TAG, _EVERYTHING if not tags or "*" in tags else tags)


def covers(wide: Subscription, narrow: Subscription) -> bool:
    """Say whether `wide` selects every message that `narrow` selects."""
    return all(topic in wide and wide[topic].covers(interest) for topic, interest in narrow.items())


class Agreement:
    """What the members of one group agree on, and since when they do not."""

    def __init__(self) -> None:
        self.current: Subscription = {}
        self.differs_since_ms: int | None = None

    def judge(
        self, group: str, wanted: Subscription, others: Iterable[Subscription], *, now_ms: int, grace_ms: int
    ) -> None:
        """Judge a local member that joins or changes; changes nothing itself.

        Raises:
            SubscriptionConflict: it differs and may not.
        """
        present = list(others)
        if not present or wanted == self.current:
            return
        since = now_ms if self.differs_since_ms is None else self.differs_since_ms
        in_time = now_ms - since < grace_ms
        wider = covers(wanted, self.current)
        if not in_time or not (wider or wanted in present):
            raise _conflict(group, self.current, wanted, widened_late=wider and not in_time, grace_ms=grace_ms)

    def adopt(self, wanted: Subscription) -> None:
        """Make the subscription of an accepted local member the current one if it is the wider."""
        if covers(wanted, self.current):
            self.current = wanted

    def settle(self, present: Iterable[Subscription], *, now_ms: int) -> None:
        """Look at the subscriptions of all members after one came, changed or left."""
        subscriptions = list(present)
        if not subscriptions:
            self.current, self.differs_since_ms = {}, None
        elif all(subscription == subscriptions[0] for subscription in subscriptions):
            self.current, self.differs_since_ms = subscriptions[0], None
        else:
            if self.current not in subscriptions:
                self.current = subscriptions[0]
            if self.differs_since_ms is None:
                self.differs_since_ms = now_ms


def _conflict(
    group: str, current: Subscription, wanted: Subscription, *, widened_late: bool, grace_ms: int
) -> SubscriptionConflict:
    topics = sorted(topic for topic in {*current, *wanted} if current.get(topic) != wanted.get(topic))
    shown = "; ".join(f"{topic}: {_shown(current, topic)} / {_shown(wanted, topic)}" for topic in topics[:4])
    more = f" and {len(topics) - 4} more topics" if len(topics) > 4 else ""
    if widened_late:
        hint = f"members have differed for more than {grace_ms / 1000:g} s; end the update that is under way first"
    else:
        hint = "subscribe to the same topics and tags in every member, or choose another group name"
    return SubscriptionConflict(
        f'group "{group}" subscribes differently (the group / this member): {shown}{more}', hint=hint
    )


def _shown(subscription: Subscription, topic: str) -> str:
    return f'"{subscription[topic]}"'[:200] if topic in subscription else "not subscribed"
