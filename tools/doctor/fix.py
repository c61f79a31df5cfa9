"""`shmq doctor --fix`: removes memory that is proven to be unused, and nothing else.

No process is stopped, started or signalled, and no store is touched.
"""

from __future__ import annotations

from dataclasses import dataclass

from shmq.shm.holders import StillHeld
from shmq.shm.leftovers import Leftover, remove_leftover
from shmq.shm.place import Place
from shmq.tools.doctor.case import Case


@dataclass(frozen=True)
class Removal:
    """The outcome of the removal of one generation."""

    generation: str
    bytes: int
    removed: tuple[str, ...]
    refused: str  # why nothing was removed, "" when it was

    def document(self) -> dict[str, object]:
        """Return it as JSON carries it."""
        return {
            "generation": self.generation,
            "bytes": self.bytes,
            "removed": list(self.removed),
            "refused": self.refused,
        }


def removable(case: Case) -> list[Leftover]:
    """Return what `fix` would try to remove."""
    return [leftover for leftover in case.leftovers if leftover.state == "dead"]


def fix(place: Place, leftovers: list[Leftover]) -> list[Removal]:
    """Remove dead generations; each is proven dead once more just before. The caller has let go of them."""
    return [_remove(place, leftover) for leftover in leftovers]


def _remove(place: Place, leftover: Leftover) -> Removal:
    name = f"shmq.{leftover.broker_name}.{leftover.generation:016x}"
    try:
        removed = remove_leftover(place, leftover)
    except StillHeld as error:
        return Removal(name, leftover.size_bytes, (), str(error))
    return Removal(name, leftover.size_bytes, tuple(removed), "")
