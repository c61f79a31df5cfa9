"""The asyncio twins of administration. What asks the broker is awaited; figures come from shared memory and are plain.

Over TCP figures have to be asked for, too: `await …fetch_…()` works everywhere, the plain properties refuse there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from shmq.aio.offload import offload
from shmq.client.administration.admin import Admin as SyncAdmin
from shmq.client.administration.admin import DeadLetter as SyncDeadLetter
from shmq.client.administration.admin import Health, Kind, TopicInfo
from shmq.client.administration.group import Group as SyncGroup
from shmq.client.administration.group import GroupLag, QueueLag, ResetStep
from shmq.client.position import PositionLike
from shmq.errors import UsageError
from shmq.shm.core import Message as SyncMessage
from shmq.shm.core import Receipt


def _refuse_remote(is_remote: bool, instead: str) -> None:
    if is_remote:
        raise UsageError("over TCP this has to be asked for, which may not hold the event loop up", hint=instead)


class Group:
    """One consumer group; see `shmq.Group`."""

    __slots__ = ("_is_remote", "_sync")

    def __init__(self, sync: SyncGroup, *, is_remote: bool) -> None:
        self._sync = sync
        self._is_remote = is_remote

    @property
    def name(self) -> str:
        """The group's name."""
        return self._sync.name

    @property
    def offsets(self) -> list[QueueLag]:
        """Every queue the group has an offset for."""
        _refuse_remote(self._is_remote, "await group.fetch_offsets()")
        return self._sync.offsets

    async def fetch_offsets(self) -> list[QueueLag]:
        """Ask for every queue the group has an offset for."""
        return await offload(lambda: self._sync.offsets)

    @property
    def lag(self) -> GroupLag:
        """How far the group is behind."""
        _refuse_remote(self._is_remote, "await group.fetch_lag()")
        return self._sync.lag

    async def fetch_lag(self) -> GroupLag:
        """Ask how far the group is behind."""
        return await offload(lambda: self._sync.lag)

    async def members(self) -> list[str]:
        """Client ids of the members the broker knows."""
        return await offload(lambda: self._sync.members)

    async def reset(self, topic: str, *, to: PositionLike, dry_run: bool = False) -> list[ResetStep]:
        """Move the group's offsets on a topic, and return what that does to each queue."""
        return await offload(self._sync.reset, topic, to=to, dry_run=dry_run)

    async def skip(self, topic: str, *, dry_run: bool = False) -> list[ResetStep]:
        """Leave out everything the group has not consumed of a topic."""
        return await offload(self._sync.skip, topic, dry_run=dry_run)

    async def clone(self, to: str, *, topic: str | None = None, dry_run: bool = False) -> dict[str, list[ResetStep]]:
        """Give another group the progress of this one."""
        return await offload(self._sync.clone, to, topic=topic, dry_run=dry_run)

    async def delete(self) -> None:
        """Forget the group and its offsets."""
        await offload(self._sync.delete)

    def __repr__(self) -> str:
        return f"<shmq.aio.Group {self.name!r}>"


class Groups(Mapping[str, Group]):
    """All groups of this host's broker by name."""

    __slots__ = ("_sync",)

    def __init__(self, sync: Mapping[str, SyncGroup]) -> None:
        self._sync = sync

    def __getitem__(self, name: str) -> Group:
        return Group(self._sync[name], is_remote=False)

    def __iter__(self) -> Iterator[str]:
        return iter(self._sync)

    def __len__(self) -> int:
        return len(self._sync)


class DeadLetter:
    """One message a group gave up on; see `shmq.DeadLetter`."""

    __slots__ = ("_sync",)

    def __init__(self, sync: SyncDeadLetter) -> None:
        self._sync = sync

    @property
    def group(self) -> str:
        """The group that gave it up."""
        return self._sync.group

    @property
    def message(self) -> SyncMessage:
        """The dead letter as it is stored."""
        return self._sync.message

    @property
    def body(self) -> bytes:
        """The body, as it was sent."""
        return self._sync.body

    @property
    def reason(self) -> str:
        """Why it was given up."""
        return self._sync.reason

    @property
    def origin_topic(self) -> str:
        """The topic it was sent to."""
        return self._sync.origin_topic

    @property
    def origin_message_id(self) -> str:
        """Its id there."""
        return self._sync.origin_message_id

    async def resend(self) -> Receipt:
        """Send it to its topic again."""
        return await offload(self._sync.resend)


class Admin:
    """What `mq.admin` offers, awaited."""

    __slots__ = ("_is_remote", "_sync")

    def __init__(self, sync: SyncAdmin, *, is_remote: bool) -> None:
        self._sync = sync
        self._is_remote = is_remote

    async def create_topic(self, name: str, *, queues: int | None = None, kind: Kind = "normal") -> TopicInfo:
        """Create a topic, or change the number of its queues, and return it."""
        return await offload(self._sync.create_topic, name, queues=queues, kind=kind)

    async def delete_topic(self, name: str) -> None:
        """Delete a topic."""
        await offload(self._sync.delete_topic, name)

    @property
    def topics(self) -> dict[str, TopicInfo]:
        """All topics by name."""
        _refuse_remote(self._is_remote, "await mq.admin.fetch_topics()")
        return self._sync.topics

    async def fetch_topics(self) -> dict[str, TopicInfo]:
        """Ask for all topics."""
        return await offload(lambda: self._sync.topics)

    @property
    def groups(self) -> Groups:
        """All consumer groups by name."""
        _refuse_remote(self._is_remote, "await mq.admin.fetch_groups()")
        return Groups(self._sync.groups)

    async def fetch_groups(self) -> dict[str, Group]:
        """Ask for all consumer groups."""
        found = await offload(lambda: dict(self._sync.groups.items()))
        return {name: Group(group, is_remote=self._is_remote) for name, group in found.items()}

    async def dlq(self, group: str, *, limit: int = 1000) -> list[DeadLetter]:
        """Return what a group gave up on, oldest first."""
        return [DeadLetter(letter) for letter in await offload(self._sync.dlq, group, limit=limit)]

    async def status(self) -> dict[str, Any]:
        """Return what the broker says about itself."""
        return await offload(self._sync.status)

    async def health(self) -> Health:
        """Look at the broker and say whether it is well."""
        return await offload(self._sync.health)

    def __repr__(self) -> str:
        return "<shmq.aio.Admin>"
