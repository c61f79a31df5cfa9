"""Progress of a group on one queue: messages that wait, are in its members' hands, or were lost to cleaning.

Every place that shows lag builds a `Backlog` from the numbers it has and shows this class's answers: the client's group
views, `shmq group`, `topic`, `health` and `top`, the metrics, Spark's view `groups` and the broker's own statistics.

    0          committed     begin         handed          end        queue offsets
    |              |           |              |              |
    |   settled    |   lost    |  in flight   |    ready     |        popped messages lie below `committed`
                               |           waiting           |        and are in flight beside these

    waiting    stored messages from the group's offset on: end - max(committed, begin)
    lag        stored and not settled: waiting + popped. So a message in hand counts, whether it was popped (the group's
               offset is behind it) or read (the offset moves when it is acknowledged). RocketMQ 5's metric
               rocketmq_consumer_lag_messages is the same sum
    in flight  the part of the lag that members have in hand: popped, and read up to `handed` where that is known
    ready      the rest of the lag: lag - in flight
    lost       deleted by cleaning before the group had acknowledged them: as many as were counted when they were
               deleted, or begin - committed where that is more

RocketMQ's brokers send offsets, and its tools subtract them: mqadmin's "Diff Total" is end - committed. That is `lag`
where nothing is popped or lost, and always lag - popped + lost.

Invariants: none of the figures is negative; lag == in_flight + ready.
"""

from __future__ import annotations

from typing import NamedTuple


class Backlog(NamedTuple):
    """A group's offsets on one queue, and what follows from them."""

    committed: int
    """Queue offset the group goes on at; negative when it never committed, which counts as 0."""
    begin: int
    """First offset still stored."""
    end: int
    """Offset after the last message."""
    popped: int = 0
    """Messages that members popped and have not settled."""
    handed: int = 0
    """Offset after the last message a reader was given; 0 where unknown, which counts as nothing in its hands."""
    cleaned: int = 0
    """Messages counted as lost when they were deleted; they stay counted when the group has gone on behind them."""

    @property
    def next_offset(self) -> int:
        """The offset of the oldest waiting message; `end` or more when none waits."""
        return max(self.committed, self.begin)

    @property
    def waiting(self) -> int:
        """Stored messages from the group's offset on."""
        return max(0, self.end - self.next_offset)

    @property
    def lag(self) -> int:
        """Messages that are stored and not settled."""
        return self.waiting + self.popped

    @property
    def in_flight(self) -> int:
        """Messages that members have in hand."""
        return self.popped + max(0, min(self.handed, self.end) - self.next_offset)

    @property
    def ready(self) -> int:
        """Messages of the lag that no reader has in hand."""
        return self.lag - self.in_flight

    @property
    def lost(self) -> int:
        """Messages that cleaning deleted before the group had acknowledged them."""
        return max(self.cleaned, self.begin - max(0, self.committed), 0)
