"""The asyncio twins of administration. What asks the broker is awaited; figures come from shared memory and are plain.

Over TCP figures have to be asked for, too: `await …fetch_…()` works everywhere, the plain properties refuse there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from shmq.aio.offload import Twin, awaited, offload, read_through
from shmq.client.administration.admin import Admin as SyncAdmin
from shmq.client.administration.admin import DeadLetter as SyncDeadLetter
from shmq.client.administration.group import Group as SyncGroup
from shmq.client.administration.group import GroupLag
from shmq.errors import UsageError
from shmq.figures.model import QueueLag, TopicInfo

if TYPE_CHECKING:
    from shmq.shm.core import Message as SyncMessage


def _refuse_asking(sync: SyncAdmin | SyncGroup, instead: str) -> None:
    if sync._figures.is_asked:
        raise UsageError("over TCP this has to be asked for, which may not hold the event loop up", hint=instead)


class Group(Twin[SyncGroup]):
    """One consumer group; see `shmq.Group`."""

    __slots__ = ()

    @property
    def name(self) -> str:
        """The group's name."""
        return self._sync.name

    @property
    def offsets(self) -> list[QueueLag]:
        """Every queue the group has an offset for."""
        _refuse_asking(self._sync, "await group.fetch_offsets()")
        return self._sync.offsets

    async def fetch_offsets(self) -> list[QueueLag]:
        """Ask for every queue the group has an offset for."""
        return await offload(lambda: self._sync.offsets)

    @property
    def lag(self) -> GroupLag:
        """How far the group is behind."""
        _refuse_asking(self._sync, "await group.fetch_lag()")
        return self._sync.lag

    async def fetch_lag(self) -> GroupLag:
        """Ask how far the group is behind."""
        return await offload(lambda: self._sync.lag)

    async def members(self) -> list[str]:
        """Client ids of the members the broker knows."""
        return await offload(lambda: self._sync.members)

    reset = awaited(SyncGroup.reset)
    skip = awaited(SyncGroup.skip)
    clone = awaited(SyncGroup.clone)
    delete = awaited(SyncGroup.delete)

    def __repr__(self) -> str:
        return f"<shmq.aio.Group {self.name!r}>"


class Groups(Mapping[str, Group]):
    """All groups of this host's broker by name."""

    __slots__ = ("_sync",)

    def __init__(self, sync: Mapping[str, SyncGroup]) -> None:
        self._sync = sync

    def __getitem__(self, name: str) -> Group:
        return Group(self._sync[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._sync)

    def __len__(self) -> int:
        return len(self._sync)


class DeadLetter(Twin[SyncDeadLetter]):
    """One message a group gave up on; see `shmq.DeadLetter`."""

    __slots__ = ()

    if TYPE_CHECKING:
        group: str
        message: SyncMessage
        body: bytes
        reason: str
        origin_topic: str
        origin_message_id: str

    resend = awaited(SyncDeadLetter.resend)


read_through(DeadLetter, SyncDeadLetter, ("group", "message", "body", "reason", "origin_topic", "origin_message_id"))


class Admin(Twin[SyncAdmin]):
    """`mq.admin`, awaited."""

    __slots__ = ()

    create_topic = awaited(SyncAdmin.create_topic)
    update_topic = awaited(SyncAdmin.update_topic)
    delete_topic = awaited(SyncAdmin.delete_topic)
    status = awaited(SyncAdmin.status)
    health = awaited(SyncAdmin.health)

    @property
    def topics(self) -> dict[str, TopicInfo]:
        """All topics by name."""
        _refuse_asking(self._sync, "await mq.admin.fetch_topics()")
        return self._sync.topics

    async def fetch_topics(self) -> dict[str, TopicInfo]:
        """Ask for all topics."""
        return await offload(lambda: self._sync.topics)

    @property
    def groups(self) -> Groups:
        """All consumer groups by name."""
        _refuse_asking(self._sync, "await mq.admin.fetch_groups()")
        return Groups(self._sync.groups)

    async def fetch_groups(self) -> dict[str, Group]:
        """Ask for all consumer groups."""
        found = await offload(lambda: dict(self._sync.groups.items()))
        return {name: Group(group) for name, group in found.items()}

    async def dlq(self, group: str, *, limit: int = 1000) -> list[DeadLetter]:
        """Return what a group gave up on, oldest first."""
        return [DeadLetter(letter) for letter in await offload(self._sync.dlq, group, limit=limit)]

    def __repr__(self) -> str:
        return "<shmq.aio.Admin>"
