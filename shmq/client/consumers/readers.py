"""Readers for every kind of consumer: those of the wire, or those that pop where the brokers hide messages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from shmq.client.pop.poppers import Poppers, PopShare
from shmq.client.wire import Handed, HidingReader, MessageReader, QueueShare, QueueSlot, ReaderOwner

if TYPE_CHECKING:
    from shmq.client.spec import ConsumerSpec
    from shmq.shm.core import Message


class PoppingReaders:
    """Readers of one session."""

    def __init__(self, wired: Any, poppers: Poppers) -> None:
        """`wired` makes the readers of the wire, `poppers` those that pop."""
        self._wired = wired
        self._poppers = poppers

    def reader(self, owner: ReaderOwner, spec: ConsumerSpec) -> MessageReader:
        """Return the reader of a consumer."""
        if spec.invisible is not None and (popping := self._poppers.open(owner, spec)) is not None:
            return popping
        return self._wired.reader(owner, spec)  # type: ignore[no-any-return]

    def share(self, reader: Any, spec: ConsumerSpec, on_left: Callable[[int], None]) -> QueueShare:
        """Return the share that decides what such a reader reads."""
        if isinstance(reader, HidingReader):
            return PopShare()
        return self._wired.share(reader, spec, on_left)  # type: ignore[no-any-return]

    def assignment(self, spec: ConsumerSpec) -> tuple[list[QueueSlot], list[QueueSlot]]:
        """Return the queues a consumer is to read, and all of them; whoever pops sees all queues."""
        if self._poppers.of(spec):
            slots = self._poppers.slots(spec)
            return slots, slots
        return self._wired.assignment(spec)  # type: ignore[no-any-return]

    def why_unassigned(self, spec: ConsumerSpec, share: Any) -> str:
        """Say why a consumer has no queue."""
        return self._wired.why_unassigned(spec, share)  # type: ignore[no-any-return]

    def hand_over(self, spec: ConsumerSpec, message: Message) -> Handed | None:
        """Say that a broker is about to take a message over; None when its queue is another member's now."""
        return self._wired.hand_over(spec, message)  # type: ignore[no-any-return]

    def pull_reader(
        self, tags: Sequence[str], codec: Callable[[bytes], Any] | None, where: str | None = None
    ) -> MessageReader:
        """Return a reader for a consumer that decides itself where it reads."""
        return self._wired.pull_reader(tags, codec, where)  # type: ignore[no-any-return]
