"""The control plane as a client sees it: groups, topics, offsets and the broker's state.

Invariants:
 1. What was registered last, and accepted, is registered again after every reconnection, before the watcher is called.
 2. Every method raises the error the broker meant, by type.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import msgspec

from shmq.client.leader import Leader
from shmq.client.wire import warn_of_unsaved
from shmq.client.wire_shm.control_channel import ControlChannel
from shmq.errors import ShmqError, UsageError
from shmq.message import PERM_READ_WRITE
from shmq.protocol.body import ConsumerData, HeartbeatData, ProducerData, attribute_text, decode_body
from shmq.protocol.client_requests import (
    goodbye,
    group_creation,
    group_deletion,
    heartbeat,
    member_ids,
    member_list,
    topic_change,
    topic_deletion,
)
from shmq.protocol.codes import Request, Response, TopicKind
from shmq.protocol.command import Command
from shmq.protocol.failure import Answer
from shmq.shm.core import Store

_LEAVE_TIMEOUT = 1.0


def _groups_of(beat: HeartbeatData) -> set[str]:
    return {data.groupName for data in beat.consumerDataSet} | {data.groupName for data in beat.producerDataSet}


class _SlotsBody(msgspec.Struct):
    slots: list[tuple[int, int, int]]


class _Registered(NamedTuple):
    """The last heartbeat, and the groups that threads have left since."""

    beat: HeartbeatData
    left: set[str]

    @property
    def now(self) -> HeartbeatData:
        return HeartbeatData(
            clientID=self.beat.clientID,
            consumerDataSet=[data for data in self.beat.consumerDataSet if data.groupName not in self.left],
            producerDataSet=[data for data in self.beat.producerDataSet if data.groupName not in self.left],
        )


class ControlClient(ControlChannel):
    """A client of one broker's control plane; made by `connect`, usable from any thread."""

    _registered: _Registered | None = None
    leader: Leader | None = None

    def request(
        self, code: int, ext: Mapping[str, str] | None = None, body: bytes = b"", timeout: float | None = None
    ) -> Command:
        """Ask the broker, or the leader on another host what only that may do, and return the answer."""
        if self.leader is not None and self.leader.takes(code):
            return self.leader.request(code, ext, body, timeout)
        return super().request(code, ext, body, timeout)

    def ask(self, command: Command, timeout: float | None = None) -> Command:
        """The same, of a request that is made already."""
        return self.request(command.code, command.ext, command.body, timeout)

    def _register_again(self) -> ShmqError | None:
        if self._registered is None:
            return None
        told = self._registered.now
        try:
            self.ask(heartbeat(told))
            for group in _groups_of(told) - _groups_of(self._registered.now):  # left by another thread meanwhile
                self.ask(goodbye(self.client_id, group, group))
        except ShmqError as error:
            return error
        return None

    def heartbeat(self, producer_groups: Iterable[str], consumers: Iterable[ConsumerData]) -> None:
        """Register as a member of groups, all of them at once; repeated by itself after a reconnection.

        Groups registered before and not named here stay registered until `unregister`.

        Raises:
            SubscriptionConflict: the group's other members subscribe differently; nothing was registered.
        """
        beat = HeartbeatData(
            clientID=self.client_id,
            consumerDataSet=list(consumers),
            producerDataSet=[ProducerData(group) for group in producer_groups],
        )
        self.ask(heartbeat(beat))
        self._registered = _Registered(beat, set())

    def unregister(self, group: str) -> None:
        """Leave a group, as a consumer and as a producer; the broker notifies its other members.

        A broker that is away, or does not answer, is waited for a second: it finds out by the next registration.

        Raises:
            BrokerNotRunning, RequestTimeout: it has not answered.
        """
        if self._registered is not None:
            self._registered.left.add(group)
        self.ask(goodbye(self.client_id, group, group), _LEAVE_TIMEOUT)

    def leave(self, groups: Iterable[str]) -> None:
        """Leave groups before the connection ends; a broker that is away, or does not answer, finds out by itself."""
        answered = threading.Semaphore(0)
        asked = 0
        with contextlib.suppress(ShmqError):
            for group in groups:
                command = goodbye(self.client_id, group)
                self.begin(command.code, command.ext, then=lambda _: answered.release())
                asked += 1
        deadline = time.monotonic() + _LEAVE_TIMEOUT
        while asked and not self._is_reader and answered.acquire(timeout=max(0.0, deadline - time.monotonic())):
            asked -= 1

    def members(self, group: str, topic: str = "") -> list[str]:
        """Return the client ids of a consumer group, sorted; [] when it has none.

        Args:
            topic: only those that share its queues.
        """
        answer: Answer
        try:
            answer = self.ask(member_list(group, topic))
        except ShmqError as error:
            answer = error
        return member_ids(answer)

    def offset_slots(self, group: str, topic: str) -> list[tuple[int, int, int]]:
        """Return (queue id, queue index, offset slot) of every readable queue; the group is made if need be.

        Raises:
            TopicNotFound: the hint names what may have been meant.
        """
        reply = self.request(Request.OFFSET_SLOTS, {"group": group, "topic": topic})
        return decode_body(reply.body, _SlotsBody).slots

    def advance_clock(self, store: Store, seconds: float) -> None:
        """Move the broker's clock ahead from what it shows, where it was started to allow that.

        The request says from where, so one that is sent again moves it no farther.
        """
        moved_ms = store.clock_ms if store.clock_ahead_ms is None else store.clock_ahead_ms
        ext = {"from": str(moved_ms), "milliseconds": str(round(seconds * 1000))}
        self.request(Request.ADVANCE_CLOCK, ext)

    @property
    def default_queues(self) -> int:
        """Queues of a new topic."""
        return self.attachment.default_queues

    def create_topic(
        self,
        name: str,
        *,
        queues: int,
        read_queues: int | None = None,
        perm: int = PERM_READ_WRITE,
        kind: str = "normal",
        flush: str | None = None,
        only_if_missing: bool = False,
    ) -> bool:
        """Create a topic, or change it unless `only_if_missing`; return whether it is new.

        Args:
            read_queues: if others are read than are written.
            kind: "normal", "fifo", "delay" or "transaction".
            flush: "sync", "async" or "broker"; None leaves it as it is.

        Raises:
            InvalidName, UsageError: what cannot be created, and why.
        """
        if kind.upper() not in TopicKind.__members__:
            names = ", ".join(member.lower() for member in TopicKind.__members__)
            raise UsageError(f"kind={kind!r} does not exist", hint=f"one of {names}")
        reply = self.ask(
            topic_change(
                name,
                read_queues=queues if read_queues is None else read_queues,
                write_queues=queues,
                perm=perm,
                attributes=attribute_text(kind, flush),
                only_if_missing=only_if_missing,
            )
        )
        warn_of_unsaved(reply)
        return reply.ext.get("created") == "true"

    def delete_topic(self, name: str) -> None:
        """Delete a topic.

        Raises:
            TopicNotFound: there is none of this name.
        """
        self._delete(topic_deletion(name), Response.TOPIC_NOT_EXIST)

    def create_group(self, name: str) -> None:
        """Create a consumer group; harmless if it exists."""
        warn_of_unsaved(self.ask(group_creation(name)))

    def delete_group(self, name: str) -> None:
        """Delete a consumer group and its offsets; refused while it has members."""
        self._delete(group_deletion(name), Response.SUBSCRIPTION_GROUP_NOT_EXIST)

    def _delete(self, command: Command, gone: Response) -> None:
        try:
            warn_of_unsaved(self.ask(command))
        except ShmqError as error:
            if error.code != gone or not error.maybe_stored:  # else an earlier try has deleted it
                raise

    def status(self) -> dict[str, Any]:
        """Return what the broker says about itself and its members."""
        return decode_body(self.request(Request.STATUS).body, dict[str, Any])
