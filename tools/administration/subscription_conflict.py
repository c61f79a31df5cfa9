"""Shows for `shmq group show` how members of a group subscribe differently: topics, members, since when.

The source is the broker's STATUS, which lists local and stock members alike. Over TCP RocketMQ's brokers tell one
subscription for a whole group, so a conflict cannot be seen there.

Members that want other tags or another expression of one topic lose messages to each other, because a topic's queues
are shared out among all of them. Different topics are a disagreement only where a TCP member is among them: RocketMQ's
clients divide the queues of every topic among the whole group (broker/subscriptions.py has the rule).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from shmq.message import RETRY_PREFIX

_LOCAL = "shm"
_NOTHING = "–"


class Member(NamedTuple):
    """One member of a group: `subscription` is {topic: tags or expression}, `transport` "shm" or "tcp"."""

    client: str
    transport: str
    subscription: Mapping[str, str]


class Conflict(NamedTuple):
    """A disagreement between the members of a group.

    Attributes:
        group: its name.
        seconds: for how long they have; None when not noticed yet.
        refused: how many local members were turned away for it since the broker started.
        topics: {topic: {what is wanted of it: client ids}}; "–" stands for members that do not read it.
    """

    group: str
    seconds: float | None
    refused: int
    topics: dict[str, dict[str, list[str]]]

    @property
    def document(self) -> dict[str, Any]:
        """The same as JSON carries it, without the name of the group."""
        topics = [
            {
                "topic": topic,
                "wanted": [{"subscription": wanted, "clients": who} for wanted, who in sorted(ways.items())],
            }
            for topic, ways in sorted(self.topics.items())
        ]
        return {"seconds": self.seconds, "refused": self.refused, "topics": topics}

    @property
    def text(self) -> str:
        """One line for people."""
        parts = []
        for topic, ways in sorted(self.topics.items()):
            sides = " / ".join(f'"{wanted}" ({len(clients)})' for wanted, clients in sorted(ways.items()))
            parts.append(f"{topic}: {sides}")
        refused = f"; {self.refused} members were refused" if self.refused else ""
        since = "" if self.seconds is None else f" for {self.seconds:.0f} s"
        return f"members subscribe differently{since} ({'; '.join(parts)}){refused}; messages are lost to its queues"


def conflict_of_status(name: str, entry: Mapping[str, Any]) -> Conflict | None:
    """Return the conflict of one group in the body of a broker's STATUS; None while its members agree."""
    members = [
        Member(client, member["transport"], member["subscription"]) for client, member in entry["members"].items()
    ]
    differs_ms = entry["differsSinceMs"]
    seconds = None if differs_ms is None else differs_ms / 1000
    return conflict_of(name, members, seconds=seconds, refused=entry["conflicts"])


def conflict_of(
    name: str, members: Iterable[Member], *, seconds: float | None = None, refused: int = 0
) -> Conflict | None:
    """Return what members disagree about; None while they agree."""
    present = list(members)
    whole = any(member.transport != _LOCAL for member in present)
    topics = {}
    for topic in {topic for member in present for topic in member.subscription}:
        if topic.startswith(RETRY_PREFIX):
            continue  # the broker's own affair
        ways: dict[str, list[str]] = {}
        for member in present:
            wanted = member.subscription.get(topic)
            if wanted is not None or whole:
                ways.setdefault(_NOTHING if wanted is None else wanted, []).append(member.client)
        if len(ways) > 1:
            topics[topic] = ways
    return Conflict(name, seconds, refused, topics) if topics else None
