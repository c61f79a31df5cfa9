"""A broker's log as a row of records, each the epoch it was written in and a number; the disk is a prefix of it."""

from __future__ import annotations

NUMBER_BITS = 32
Record = int
"""The epoch above NUMBER_BITS bits, the number of the record below."""


def epoch_of(record: Record) -> int:
    """The epoch in which it was written."""
    return record >> NUMBER_BITS


class LogModel:
    """One store's log, and the epochs it knows: (epoch, where it began)."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.durable = 0
        self.epochs: list[tuple[int, int]] = []
        self.confirmed_on_disk = 0

    @property
    def end(self) -> int:
        return len(self.records)

    @property
    def epoch(self) -> int:
        return self.epochs[-1][0] if self.epochs else 0

    def begin_epoch(self, epoch: int) -> None:
        """An epoch of this host begins at the end of its log."""
        self.epochs.append((epoch, self.end))

    def lose_unflushed(self) -> None:
        """The host has lost its power."""
        del self.records[self.durable :]
        self.epochs = [(epoch, start) for epoch, start in self.epochs if start <= self.end]

    def common_end(self, epochs: list[tuple[int, int]], end: int) -> int:
        """Return where another log ends that agrees with this one: where the newest epoch ends that both have."""
        mine = {epoch: (start, after) for epoch, start, after in _spans(self.epochs, self.end)}
        for epoch, start, after in reversed(_spans(epochs, end)):
            if epoch in mine and mine[epoch][0] == start:
                return min(after, mine[epoch][1])
        return 0

    def cut(self, position: int, epochs: list[tuple[int, int]]) -> list[Record]:
        """Cut the log, take over the leader's epochs, and return what was cut off."""
        tail = self.records[position:]
        del self.records[position:]
        self.durable = min(self.durable, position)
        self.epochs = [(epoch, start) for epoch, start in epochs if start <= position]
        return tail


def _spans(epochs: list[tuple[int, int]], end: int) -> list[tuple[int, int, int]]:
    after = [*(start for _, start in epochs[1:]), *([end] if epochs else [])]
    return [(epoch, start, behind) for (epoch, start), behind in zip(epochs, after, strict=True)]
