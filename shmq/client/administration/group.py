"""Owns what can be seen and changed of consumer groups: offsets, lag, members, resets.

It does not know who is reading, beyond what shared memory says about the owners of queues.

Rules:
    (1) figures are read from shared memory, each exact at its moment, together not one snapshot; what is in flight is
        what the broker wrote down last, up to a second ago;
    (2) a reset changes a queue only while it owns the queue, so a member that reads cannot undo it by its next
        acknowledgement; while members read, a reset is refused and nothing is changed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from shmq.client.position import PositionLike, parse_position
from shmq.client.wire_shm.share import start_offset
from shmq.errors import ConsumeError, UsageError
from shmq.message import check_group
from shmq.progress import Backlog
from shmq.protocol.roster import popped_messages
from shmq.shm.core import Reader

if TYPE_CHECKING:
    from shmq.client.link import Link
    from shmq.client.wire_shm.session import Session
    from shmq.shm.core import Store


class QueueLag(NamedTuple):
    """Progress of a group on one queue; `committed` is -1 when it never committed, `owner` -1 when nobody reads."""

    topic: str
    queue_id: int
    committed: int
    offset_min: int
    offset_max: int
    owner: int
    updated_ms: int
    in_flight: int = 0  # of those before `committed`: in hand, hidden by the broker until they are settled

    @property
    def backlog(self) -> Backlog:
        """The same offsets, and what they come to."""
        return Backlog(self.committed, self.offset_min, self.offset_max, self.in_flight)

    @property
    def waiting(self) -> int:
        """Messages from `committed` on."""
        return self.backlog.waiting

    @property
    def behind(self) -> int:
        """Messages that are stored and not acknowledged."""
        return self.backlog.lag


class GroupLag(NamedTuple):
    """Progress of a group on all its queues; `oldest_age` is in seconds, 0 when nothing waits."""

    total: int
    offsets: tuple[QueueLag, ...]
    oldest_age: float

    def __int__(self) -> int:
        return self.total


class ResetStep(NamedTuple):
    """What a reset does to one queue; `now` is -1 when the group never committed there."""

    queue_id: int
    now: int
    new: int

    @property
    def again(self) -> int:
        """Messages that will be delivered again."""
        return max(0, self.now - self.new)

    @property
    def skipped(self) -> int:
        """Messages that will not be delivered."""
        return max(0, self.new - max(0, self.now))


class Group:
    """One consumer group. Made by `mq.admin.groups[name]`."""

    __slots__ = ("_link", "name")

    def __init__(self, link: Link, name: str) -> None:
        self._link = link
        self.name = name

    @property
    def offsets(self) -> list[QueueLag]:
        """Every queue the group has an offset for, by topic and queue."""
        return queue_lags(self._link._local(), self.name)

    @property
    def lag(self) -> GroupLag:
        """How far the group is behind: in all, queue by queue, and how old the oldest waiting message is."""
        session = self._link._local()
        store, offsets = session.store, queue_lags(session, self.name)
        oldest_ms = _oldest_ms(store, offsets)
        age = max(0.0, time.time() - oldest_ms / 1000) if oldest_ms else 0.0
        return GroupLag(sum(entry.behind for entry in offsets), tuple(offsets), age)

    @property
    def members(self) -> list[str]:
        """Client ids of the members the broker knows, local and remote."""
        return sorted(self._link._local().control.members(self.name))

    def reset(self, topic: str, *, to: PositionLike, dry_run: bool = False) -> list[ResetStep]:
        """Move the group's offsets on a topic, and return what that does to each queue.

        Args:
            to: "begin", "end", an offset, "-2h", or a time.
            dry_run: only say what would happen.

        Raises:
            ConsumeError: a member reads the topic now; stop the members first.
            TopicNotFound: there is no such topic.
        """
        session = self._link._local()
        position = parse_position(to)
        store = session.store
        wanted = {
            queue.queue_id: start_offset(store, queue.queue_index, position)
            for queue in session.read_queues(topic, must_exist=True)
        }
        return self._move(topic, wanted, dry_run=dry_run)

    def skip(self, topic: str, *, dry_run: bool = False) -> list[ResetStep]:
        """Leave out everything the group has not consumed of a topic: `reset(topic, to="end")`. Raises as that does."""
        return self.reset(topic, to="end", dry_run=dry_run)

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
        if check_group(to) == self.name:
            raise UsageError(f'group "{to}" cannot be cloned to itself', hint="name another group")
        progress: dict[str, dict[int, int]] = {}
        for entry in self.offsets:
            if entry.committed >= 0 and topic in (None, entry.topic) and not entry.topic.startswith("%"):
                progress.setdefault(entry.topic, {})[entry.queue_id] = entry.committed
        if not progress:
            where = "any topic" if topic is None else f'topic "{topic}"'
            raise UsageError(f'group "{self.name}" has no offset in {where}', hint="see its `offsets`")
        target = self._sibling(to)
        return {name: target._move(name, wanted, dry_run=dry_run) for name, wanted in sorted(progress.items())}

    def _sibling(self, name: str) -> Group:
        return Group(self._link, name)

    def _move(self, topic: str, wanted: Mapping[int, int], *, dry_run: bool) -> list[ResetStep]:
        """Let the group go on at these offsets of a topic, or say what that would do."""
        session = self._link._local()
        store = session.store
        if dry_run and store.group_find(self.name) < 0:
            return [ResetStep(queue_id, -1, offset) for queue_id, offset in sorted(wanted.items())]
        slots = {queue_id: slot for queue_id, _, slot in session.control.offset_slots(self.name, topic)}
        steps = [
            ResetStep(queue_id, store.offset_get(slots[queue_id]), offset)
            for queue_id, offset in sorted(wanted.items())
            if queue_id in slots
        ]
        if not dry_run:
            self._apply(store, topic, [slots[step.queue_id] for step in steps], steps)
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
        self._link._local().control.delete_group(self.name)

    def _apply(self, store: Store, topic: str, slots: list[int], steps: list[ResetStep]) -> None:
        taken: list[int] = []
        try:
            for slot in slots:
                if not store.offset_take(slot):
                    raise ConsumeError(
                        f'group "{self.name}" reads topic "{topic}" now (client slot {store.offset_owner(slot)})',
                        hint="stop its members, reset, and start them again",
                    )
                taken.append(slot)
            for slot, step in zip(slots, steps, strict=True):
                store.offset_set(slot, step.new)
        finally:
            for slot in taken:
                store.offset_leave(slot)

    def __repr__(self) -> str:
        return f"<shmq.Group {self.name!r}>"


class Groups(Mapping[str, Group]):
    """All groups of the broker by name."""

    __slots__ = ("_link",)

    def __init__(self, link: Link) -> None:
        self._link = link

    def __getitem__(self, name: str) -> Group:
        try:
            is_known = self._link._local().store.group_find(name) >= 0
        except UsageError:
            is_known = False  # no group can have this name
        if not is_known:
            raise KeyError(f'group "{name}" does not exist on broker "{self._link.broker_name}"')
        return Group(self._link, name)

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(name for _, name in self._link._local().store.groups()))

    def __len__(self) -> int:
        return len(self._link._local().store.groups())


def queue_lags(session: Session, group: str) -> list[QueueLag]:
    """Return the progress of a group on every queue it has an offset for."""
    store = session.store
    popped = popped_messages(session.place.roster_path, session.instance.generation)
    index = store.group_find(group)
    if index < 0:
        return []
    found = []
    for _, entry_group, queue, committed, owner, updated_ms in store.offsets():
        if entry_group != index:
            continue
        offset_min, offset_max, _, topic, queue_id, _ = store.queue(queue)
        name = str(store.topic(topic)["name"])
        held = popped.get((group, name, queue_id), 0)
        found.append(QueueLag(name, queue_id, committed, offset_min, offset_max, owner, updated_ms, held))
    return sorted(found)


def _oldest_ms(store: Store, offsets: list[QueueLag]) -> int:
    """When the oldest waiting message was stored; 0 when none waits."""
    waiting = [entry for entry in offsets if entry.waiting]
    if not waiting:
        return 0
    reader = Reader(store)
    try:
        oldest = []
        for entry in waiting:
            topic = store.topic_find(entry.topic)
            queue = store.queue_index(topic, entry.queue_id) if topic >= 0 else -1
            if queue < 0:
                continue
            reader.assign(entry.topic, queue, entry.queue_id, entry.backlog.next_offset)
            oldest += [message.store_ms for message in reader.poll(1)]
            reader.revoke(queue)
        return min(oldest, default=0)
    finally:
        reader.close()
