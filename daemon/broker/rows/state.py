"""What the marks of staged rows add up to: open attempts, what was committed, what is still to be copied.

Marks go in, tables come out; the same marks make the same tables.

    chunk ──▶ attempts   open: not visible
    commit ─▶ units      what a writer's last batch was, so that it is not written twice
           ─▶ pending    in the order of their commits: what has to be copied before they are done
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from shmq.protocol.staged_rows import WHOLE, StagedPart
from shmq.protocol.system_topics.row_marks import BeginMark, ChunkMark, CommitMark, DoneMark, Mark


class AttemptKey(NamedTuple):
    """One try to write one partition of a batch."""

    writer: str
    batch: int
    partition: int
    attempt: str


class UnitKey(NamedTuple):
    """What becomes visible together: a partition of a writer's batches, or all of them."""

    writer: str
    unit: int


@dataclass(slots=True)
class Attempt:
    """Offsets of its chunks in the rows' queue, and when the last one came."""

    chunks: list[int] = field(default_factory=list)
    used_ms: int = 0


@dataclass(slots=True)
class Unit:
    """The last batch of a unit; `end` is the log position behind its mark."""

    batch: int
    rows: int
    checksum: int
    used_ms: int
    end: int = 0


@dataclass(slots=True)
class Pending:
    """A unit whose rows are being copied: chunk `next` is the next, `begun` what was said of it by a predecessor."""

    commit: CommitMark
    chunks: list[int]
    next: int = 0
    begun: BeginMark | None = None


class RowState:
    """The sum of all marks."""

    def __init__(self) -> None:
        self.attempts: dict[AttemptKey, Attempt] = {}
        self.units: dict[UnitKey, Unit] = {}
        self.pending: dict[UnitKey, Pending] = {}

    def take(self, mark: Mark, now_ms: int) -> None:
        """Add one mark; what contradicts those before it is left out, since any process that may append wrote it."""
        if isinstance(mark, ChunkMark):
            self._chunk(mark, now_ms)
        elif isinstance(mark, CommitMark):
            self._commit(mark)
        elif isinstance(mark, BeginMark):
            pending = self.pending.get(UnitKey(mark.w, mark.u))
            if pending is not None and pending.next <= mark.i < len(pending.chunks):
                pending.next, pending.begun = mark.i, mark
        elif isinstance(mark, DoneMark):
            self.pending.pop(UnitKey(mark.w, mark.u), None)
            self.units[UnitKey(mark.w, mark.u)] = Unit(mark.b, mark.r, mark.s, mark.t)
        else:
            self.attempts.pop(AttemptKey(mark.w, mark.b, mark.p, mark.a), None)

    def _chunk(self, mark: ChunkMark, now_ms: int) -> None:
        attempt = self.attempts.setdefault(AttemptKey(mark.w, mark.b, mark.p, mark.a), Attempt())
        attempt.used_ms = now_ms
        if mark.n == len(attempt.chunks):
            attempt.chunks.append(mark.o)
        elif 0 <= mark.n < len(attempt.chunks):
            attempt.chunks[mark.n] = mark.o  # said again, because it went elsewhere

    def _commit(self, mark: CommitMark) -> None:
        chunks: list[int] = []
        for part in mark.parts:
            attempt = self.attempts.get(AttemptKey(mark.w, mark.b, part.partition, part.attempt))
            chunks += attempt.chunks[: part.chunks] if attempt is not None else []
        key = UnitKey(mark.w, mark.u)
        self.units[key] = Unit(mark.b, mark.r, mark.s, mark.t)
        self.pending[key] = Pending(mark, chunks)
        for other in self.superseded(mark.w, mark.b, mark.u):
            del self.attempts[other]

    def superseded(self, writer: str, batch: int, unit: int) -> list[AttemptKey]:
        """Return the attempts that count for nothing once a unit of a batch is committed: its own among them."""
        return [
            key
            for key in self.attempts
            if key.writer == writer and key.batch <= batch and unit in (WHOLE, key.partition)
        ]

    def missing(self, writer: str, batch: int, parts: list[StagedPart]) -> StagedPart | None:
        """Return a part that is not there in full, None when all are."""
        for part in parts:
            attempt = self.attempts.get(AttemptKey(writer, batch, part.partition, part.attempt))
            if part.chunks != (len(attempt.chunks) if attempt is not None else 0):
                return part
        return None

    def marks(self) -> Iterator[Mark]:
        """Yield marks that add up to the same, while nothing is pending: for a successor that begins to read here."""
        for key, unit in self.units.items():
            yield DoneMark(key.writer, unit.batch, key.unit, unit.rows, unit.checksum, unit.used_ms)
        for attempt_key, attempt in self.attempts.items():
            for number, offset in enumerate(attempt.chunks):
                yield ChunkMark(*attempt_key, number, offset)

    @property
    def size(self) -> int:
        """About how many marks these are."""
        chunks = sum(len(attempt.chunks) for attempt in self.attempts.values())
        return len(self.units) + chunks
