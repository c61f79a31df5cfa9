"""The asyncio faces of a message and of a reserved slot.

Everything that is read is read from the sync object; what settles is awaited,
so that code reads the same whether settling waits or not. An acknowledgement never blocks and runs inline; what may ask
a broker, such as giving back, runs in a thread, and is done also when its task is cancelled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from shmq.aio.offload import carried_out, read_through
from shmq.aio.opening import Opening
from shmq.shm.core import Message as SyncMessage

if TYPE_CHECKING:
    from collections.abc import Callable

    from shmq.shm.core import Receipt
    from shmq.shm.core import Slot as SyncSlot

AWAITED = ("ack", "extend", "nack")
"""Methods of a message that are awaited here; everything else is read as it is."""


class Message:
    """One received message; attributes as `shmq.Message`, and `await message.ack()`."""

    __slots__ = ("_sync",)

    if TYPE_CHECKING:
        topic: str
        queue_id: int
        offset: int
        body: bytes
        view: memoryview
        size: int
        tag: str | None
        key: str | None
        keys: list[str]
        properties: dict[str, str]
        message_group: str | None
        born_ms: int
        store_ms: int
        sys_flag: int
        flag: int
        reconsume_times: int
        log_position: int
        record_bytes: int
        message_id: str
        offset_message_id: str
        attempt: int
        settled: bool
        value: Any

        def verify(self) -> bool:
            """Whether body CRC and record CRC hold."""

    def __init__(self, sync: SyncMessage) -> None:
        self._sync = sync

    async def ack(self) -> None:
        """Mark consumed; the group's offset moves over every prefix of acknowledged messages."""
        self._sync.ack()

    async def nack(self, after: float | None = None) -> None:
        """Give back: delivered again after `after` seconds, or RocketMQ's next delay."""
        await carried_out(self._sync.nack, after)

    async def extend(self, seconds: float) -> None:
        """Keep the message hidden for `seconds` from now."""
        await carried_out(self._sync.extend, seconds)

    async def __aenter__(self) -> Self:
        self._sync.__enter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        if exc[0] is None:
            self._sync.__exit__(*exc)
        else:
            await carried_out(self._sync.__exit__, *exc)

    def __repr__(self) -> str:
        return repr(self._sync)


read_through(
    Message, SyncMessage, [name for name in dir(SyncMessage) if not name.startswith("_") and name not in AWAITED]
)


class Slot:
    """Memory inside the log, to be filled in an `async with` block; see `shmq.Slot`."""

    __slots__ = ("_reserve", "_sync")

    def __init__(self, reserve: Callable[[], SyncSlot]) -> None:
        self._reserve = reserve
        self._sync: SyncSlot | None = None

    @property
    def view(self) -> memoryview:
        """Writable memory of the body."""
        return self._slot.view

    @property
    def properties(self) -> dict[str, str]:
        """Properties to be stored with it."""
        return self._slot.properties

    @property
    def size(self) -> int:
        """Body bytes; may be lowered before the end of the block."""
        return self._slot.size

    @size.setter
    def size(self, size: int) -> None:
        self._slot.size = size

    @property
    def receipt(self) -> Receipt | None:
        """Where it was stored; None before."""
        return self._slot.receipt

    async def commit(self) -> Receipt:
        """Publish it now."""
        return await carried_out(self._slot.commit)

    async def abort(self) -> None:
        """Give the space back."""
        await carried_out(self._slot.abort)

    async def __aenter__(self) -> Self:
        self._sync = await Opening(self._reserve, lambda slot: slot.abort()).begin().wait()
        assert self._sync is not None, "only this task waits for it"
        self._sync.__enter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await carried_out(self._slot.__exit__, *exc)

    @property
    def _slot(self) -> SyncSlot:
        assert self._sync is not None, "a slot is used inside its `async with` block"
        return self._sync
