"""The findings of a proof of a store: disagreements and notes.

    disagreement    two parts of the store say different things, or one contradicts its checksum
    note            nothing is wrong, but worth knowing

Rule: everything is counted; the first KEPT_MAX of each are kept.
"""

from __future__ import annotations

from dataclasses import dataclass, field

KEPT_MAX = 1000
PARTS = ("log", "units", "sums", "index", "tables", "offsets", "transactions", "timers")


@dataclass(frozen=True)
class Finding:
    """One thing, said in one line.

    Attributes:
        part: one of PARTS.
        where: a log position, a queue with offsets, a file: what `shmq store inspect` can be asked about.
        cure: what to do, where that is no repair.
    """

    part: str
    where: str
    reason: str
    cure: str = ""


@dataclass
class Findings:
    """Everything that one proof found."""

    disagreements: list[Finding] = field(default_factory=list)
    notes: list[Finding] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(PARTS, 0))  # of disagreements

    @property
    def count(self) -> int:
        """How many disagreements there are, kept or not."""
        return sum(self.counts.values())

    def add(self, part: str, where: str, reason: str, cure: str = "") -> None:
        """Take a disagreement."""
        self.counts[part] += 1
        if len(self.disagreements) < KEPT_MAX:
            self.disagreements.append(Finding(part, where, reason, cure))

    def note(self, part: str, where: str, reason: str) -> None:
        """Take something that is only worth saying."""
        if len(self.notes) < KEPT_MAX:
            self.notes.append(Finding(part, where, reason))


@dataclass
class Damages:
    """Ranges of the log that hold no readable record, in rising order."""

    ranges: list[tuple[int, int]] = field(default_factory=list)

    def holds(self, position: int) -> bool:
        """Whether a log position lies in one of them."""
        return any(begin <= position < end for begin, end in self.ranges)


def offsets_text(first: int, end: int) -> str:
    """Say a range of queue offsets."""
    return f"offset {first}" if end == first + 1 else f"offsets {first} to {end - 1}"
