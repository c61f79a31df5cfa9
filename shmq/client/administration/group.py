"""Administration of consumer groups: offsets, lag, members, resets.

Invariants:
    1. Figures are each exact at their moment, together not one snapshot; what is in flight is what the broker wrote
       down last, up to a second ago.
    2. While members read, a reset is refused and nothing is changed: their next acknowledgement would undo it.
"""

from __future__ import annotations

import time
from collections.abc import ItemsView, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from shmq.client.edge import edge
from shmq.client.kinds import refuse_wrong
from shmq.client.position import PositionLike, parse_position
from shmq.errors import ConsumeError, UsageError
from shmq.figures.model import QueueLag
from shmq.message import check_consumer_group, check_group, missing_group
from shmq.shm.pickling import stays_here

if TYPE_CHECKING:
    from shmq.client.administration.interface import Figures, ResetStep


class GroupLag(NamedTuple):
    """Progress of a group on all its queues; `oldest_age` is in seconds, 0 when nothing waits."""

    total: int
    offsets: tuple[QueueLag, ...]
    oldest_age: float

    def __int__(self) -> int:
        return self.total


class Group:
    """One consumer group. Made by `mq.admin.groups[name]`."""

    __slots__ = ("_figures", "name")
    __reduce_ex__ = stays_here("hand over its name and the connection: mq.admin.groups[name]")

    def __init__(self, figures: Figures, name: str) -> None:
        self._figures = figures
        self.name = name

    @property
    def offsets(self) -> list[QueueLag]:
        """Every queue the group has an offset for, by topic and queue; owners are known in shared memory only."""
        return self._figures.progress(self.name).get(self.name, [])

    @property
    def lag(self) -> GroupLag:
        """How far the group is behind: in all, queue by queue, and how old the oldest waiting message is."""
        lags = self.offsets
        waiting = [(lag.topic, lag.queue_id, lag.backlog.next_offset) for lag in lags if lag.waiting]
        stored_ms = [message.store_ms for message in self._figures.queues.messages_at(waiting)] if waiting else []
        age = max(0.0, time.time() - min(stored_ms) / 1000) if stored_ms else 0.0
        return GroupLag(sum(lag.behind for lag in lags), tuple(lags), age)

    @property
    def members(self) -> list[str]:
        """Client ids of the members the brokers know, local and remote."""
        return self._figures.members(self.name)

    @edge
    def reset(self, topic: str, *, to: PositionLike, dry_run: bool = False) -> list[ResetStep]:
        """Move the group's offsets on a topic, and return what that does to each queue.

        Args:
            to: "begin", "end", an offset, "-2h", or a time.
            dry_run: only say what would happen.

        Raises:
            ConsumeError: a member reads now, over TCP whatever topic it is; stop the members first.
            TopicNotFound: there is no such topic.
        """
        refuse_wrong({"topic": topic})
        position, queues = parse_position(to), self._figures.queues
        wanted = {
            queue.queue_id: queues.place_in(topic, queue, position)
            for queue in queues.read_queues(topic, must_exist=True)
        }
        return self._figures.move(self.name, topic, wanted, dry_run=dry_run)

    @edge
    def skip(self, topic: str, *, dry_run: bool = False) -> list[ResetStep]:
        """Leave out everything the group has not consumed of a topic: `reset(topic, to="end")`. Raises as that does."""
        return self.reset(topic, to="end", dry_run=dry_run)

    @edge
    def clone(self, to: str, *, topic: str | None = None, dry_run: bool = False) -> dict[str, list[ResetStep]]:
        """Give another group the progress of this one, and return what that does to each of its topics.

        Args:
            to: the other group; it comes into being by this.
            topic: only this one; None takes every topic this group has an offset for.
            dry_run: only say what would happen.

        Raises:
            ConsumeError: a member of the other group reads now; topics before that one are done.
            UsageError: it is the same group, or this one has no offset there.
        """
        if topic is not None:
            refuse_wrong({"topic": topic})
        if check_consumer_group(to) == self.name:
            raise UsageError(f'group "{to}" cannot be cloned to itself', hint="name another group")
        progress: dict[str, dict[int, int]] = {}
        for entry in self.offsets:
            if entry.committed >= 0 and topic in (None, entry.topic) and not entry.topic.startswith("%"):
                progress.setdefault(entry.topic, {})[entry.queue_id] = entry.committed
        if not progress:
            if topic is not None:
                self._figures.queues.read_queues(topic, must_exist=True)
            where = "any topic" if topic is None else f'topic "{topic}"'
            raise UsageError(f'group "{self.name}" has no offset in {where}', hint="see its `offsets`")
        move = self._figures.move
        return {name: move(to, name, wanted, dry_run=dry_run) for name, wanted in sorted(progress.items())}

    @edge
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
        self._figures.delete_group(self.name)

    def __repr__(self) -> str:
        return f"<shmq.Group {self.name!r}>"


class Groups(Mapping[str, Group]):
    """All groups of the broker or cluster by name."""

    __slots__ = ("_figures",)
    __reduce_ex__ = stays_here("hand over the connection, or a list of the names")

    def __init__(self, figures: Figures) -> None:
        self._figures = figures

    def __getitem__(self, name: str) -> Group:
        if not isinstance(name, str):
            check_group(name)
        if not self._figures.has_group(name):
            figures = self._figures
            raise missing_group(name, figures.place, figures.group_names(), "see: list(mq.admin.groups)")
        return Group(self._figures, name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._figures.group_names())

    def __len__(self) -> int:
        return len(self._figures.group_names())

    def items(self) -> ItemsView[str, Group]:
        """All groups, asked for once."""
        return {name: Group(self._figures, name) for name in self._figures.group_names()}.items()
