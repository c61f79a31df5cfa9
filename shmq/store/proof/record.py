"""A record of the log as the proofs see it: decoded once, for all of them."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from shmq.properties import parse_properties
from shmq.shm.core import record_decode

_TRANSACTION_MASK = 12
_NO_QUEUE_TYPES = (4, 12)
_ROLLBACK = 12


class WalkedRecord:
    """One whole record.

    Attributes:
        fields: names and values of the record as the core decodes them.
    """

    def __init__(self, position: int, data: bytes) -> None:
        self.position = position
        self.size = len(data)
        self.fields: dict[str, Any] = record_decode(data)
        self.topic = self.fields["topic"].decode(errors="surrogateescape")
        self.queue_id: int = self.fields["queue_id"]
        self.queue_offset: int = self.fields["queue_offset"]
        self.kind: int = self.fields["sys_flag"] & _TRANSACTION_MASK

    @property
    def end(self) -> int:
        """The log position behind it."""
        return self.position + self.size

    @property
    def has_queue(self) -> bool:
        """Whether it belongs to a queue at all."""
        return self.kind not in _NO_QUEUE_TYPES

    @cached_property
    def properties(self) -> dict[str, str]:
        """Its properties."""
        return parse_properties(self.fields["properties"].decode(errors="surrogateescape"))

    @property
    def keys(self) -> list[str]:
        """The keys under which the index has it."""
        if self.kind == _ROLLBACK:
            return []
        unique = self.properties.get("UNIQ_KEY")
        return [*([unique] if unique else []), *(word for word in self.properties.get("KEYS", "").split(" ") if word)]
