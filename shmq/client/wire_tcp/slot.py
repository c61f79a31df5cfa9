"""Owns a body that is written in place before it is sent: the remote stand-in for a slot of shared memory.

It does not know how it is sent; it calls `publish(body, properties)` once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Self

from shmq.errors import UsageError
from shmq.shm.core import BODY_BYTES_MAX, Receipt

Publish = Callable[[memoryview, Mapping[str, str]], Receipt]


class RemoteSlot:
    """As `shmq.Slot`, in memory of this process: `with mq.reserve(…) as slot:` sends at the end of the block."""

    def __init__(self, size: int, publish: Publish, properties: Mapping[str, str] | None) -> None:
        if not 0 < size <= BODY_BYTES_MAX:
            raise UsageError(f"a body of {size} bytes is not possible", hint=f"1 to {BODY_BYTES_MAX}")
        self._memory = bytearray(size)
        self._publish = publish
        self._open = True
        self.view = memoryview(self._memory)
        self.size = size
        self.properties: dict[str, str] = dict(properties or {})
        self.receipt: Receipt | None = None

    def commit(self) -> Receipt:
        """Send the first `size` bytes.

        Raises:
            UsageError: it was committed or aborted before, or `size` grew.
        """
        if not self._open or not 0 <= self.size <= len(self._memory):
            raise UsageError("the slot is over, or its size grew", hint="reserve another one")
        self._open = False
        self.receipt = self._publish(memoryview(self._memory)[: self.size], self.properties)
        return self.receipt

    def abort(self) -> None:
        """Send nothing; twice is harmless."""
        self._open = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *exc: object) -> None:
        if kind is not None:
            self.abort()
        elif self._open:
            self.commit()
