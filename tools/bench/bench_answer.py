"""The answer of `shmq bench`: its tables, its conditions, reasons for doubt, and the comparison with a saved one.

A result that is not to be believed is printed and saved like another; the doubts stand below it, on stderr.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

from shmq.figures.quantity import rate_text
from shmq.measurement.conditions import condition_text, doubts, present_conditions
from shmq.measurement.saved_bench import (
    FIGURES,
    Figure,
    Saved,
    all_differences,
    check_savable,
    compared,
    load,
    save,
    taken_now,
)
from shmq.tools.terminal.output import Field, Terminal


@dataclass(frozen=True)
class Files:
    """The files of one call: where to save its result, and what to compare it with."""

    save: str | None
    against: str | None


class Answer:
    """The answer of one measurement. Made before the measurement: files are refused and the load is taken then."""

    def __init__(self, terminal: Terminal, kind: str, files: Files) -> None:
        self._terminal, self._kind, self._files = terminal, kind, files
        self._base = None if files.against is None else load(files.against, kind)
        if files.save is not None:
            check_savable(files.save)
        self._conditions = present_conditions()

    def give(self, document: dict[str, Any], rows: list[dict[str, Any]], *, text: Callable[[], None]) -> None:
        """Write the result for people or programs, compare it, and save it.

        Args:
            text: prints the tables of the result.
        """
        fresh = next((row["fresh"] for row in rows if "fresh" in row), None)
        conditions = replace(self._conditions, fresh=fresh)
        now, warnings = taken_now(self._kind, conditions, document), doubts(conditions, lasts=self._kind == "sustained")
        shown = {**document, "conditions": asdict(conditions), "warnings": warnings}
        figures: list[Figure] = []
        if self._base is not None:
            figures = compared(self._base, now)
            shown["against"] = _document(self._base, now, figures)
            rows = shown["against"]["figures"]

        def print_all() -> None:
            text()
            self._terminal.line(condition_text(conditions))
            if self._base is not None:
                self._print(self._base, now, figures)

        self._terminal.answer(shown, rows, text=print_all)
        for warning in warnings:
            self._terminal.warn(warning)
        if self._files.save is not None:
            save(self._files.save, now)  # last: a full disk does not cost what was measured

    def _print(self, base: Saved, now: Saved, figures: list[Figure]) -> None:
        self._terminal.line(f"beside {self._files.against}, saved {base.saved_at}")
        self._terminal.listing(_FIELDS, figures)
        for difference in all_differences(base, now):
            self._terminal.warn(f"the two were not measured alike – {difference}")


def _document(base: Saved, now: Saved, figures: list[Figure]) -> dict[str, Any]:
    return {
        "saved_at": base.saved_at,
        "conditions": asdict(base.conditions),
        "differences": all_differences(base, now),
        "figures": [{**asdict(figure), "ratio": figure.ratio, "better": figure.better} for figure in figures],
    }


def _value_text(figure: str, value: float | None) -> str:
    if value is None:
        return "–"
    return rate_text(value) if FIGURES[figure][1] else f"{value:.1f}"


_WORDS = {True: "better", False: "worse", None: ""}
_FIELDS: tuple[Field[Figure], ...] = (
    Field("measurement", lambda figure: figure.name),
    Field("figure", lambda figure: FIGURES[figure.figure][0]),
    Field("saved", lambda figure: _value_text(figure.figure, figure.saved), right=True),
    Field("now", lambda figure: _value_text(figure.figure, figure.now), right=True),
    Field("now / saved", lambda figure: "–" if figure.ratio is None else f"{figure.ratio:.2f}", right=True),
    Field("", lambda figure: _WORDS[figure.better]),
)
