"""Samples, and how they are written as OpenMetrics text.

The writer is our own because a scrape of 10,000 queues has tens of thousands of lines: prometheus-client, which checks
this text in the tests, makes an object of each line and takes ten times as long.

    # HELP name …        # TYPE name counter|gauge|histogram|info        # UNIT name seconds
    name_total{label="value",…} 3
    # EOF

Rules: (1) a family without samples is not written; (2) the count of a histogram is the sum of its buckets, whatever was
counted while it was read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from shmq.metrics.catalogue import FAMILIES
from shmq.metrics.family import HISTOGRAM, Family

CONTENT_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"

_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})


def label_text(labels: Iterable[tuple[str, str]]) -> str:
    """Return labels as they stand between the braces."""
    return ",".join([f'{name}="{value.translate(_ESCAPES)}"' for name, value in labels])


@dataclass
class Samples:
    """Values by family and labels (as text, without the base labels)."""

    values: dict[str, dict[str, int | float]] = field(default_factory=dict)
    histograms: dict[str, dict[str, Sequence[int]]] = field(default_factory=dict)

    def put(self, family: str, value: int | float, labels: str = "") -> None:
        """Set one value."""
        self.values.setdefault(family, {})[labels] = value

    def add(self, family: str, value: int | float, labels: str = "") -> None:
        """Add to one value."""
        table = self.values.setdefault(family, {})
        table[labels] = table.get(labels, 0) + value

    def value(self, family: str, labels: str = "") -> int | float:
        """Return one value, 0 where there is none yet."""
        return self.values.get(family, {}).get(labels, 0)

    def add_histogram(self, family: str, words: Sequence[int], labels: str = "") -> None:
        """Add counts of a histogram: one a bound, one above, and the sum."""
        table = self.histograms.setdefault(family, {})
        before = table.get(labels)
        table[labels] = [a + b for a, b in zip(before, words, strict=True)] if before is not None else words


def render(samples: Samples, base: Mapping[str, str]) -> str:
    """Return the text of all samples, each with the base labels."""
    fixed = label_text(base.items())
    lines: list[str] = []
    for name, family in FAMILIES.items():
        if family.kind == HISTOGRAM:
            table = samples.histograms.get(name)
            if table:
                _head(family, lines)
                for labels, words in table.items():
                    _histogram(family, _join(fixed, labels), words, lines)
        elif values := samples.values.get(name):
            _head(family, lines)
            begin = f"{family.sample}{{{fixed}"
            lines += [
                f"{begin},{labels}}} {value}" if labels else f"{begin}}} {value}" for labels, value in values.items()
            ]
    lines.append("# EOF\n")
    return "\n".join(lines)


def _head(family: Family, lines: list[str]) -> None:
    meaning = family.meaning.replace("\\", "\\\\").replace("\n", " ")
    lines += [f"# HELP {family.name} {meaning}", f"# TYPE {family.name} {family.kind}"]
    if family.unit:
        lines.append(f"# UNIT {family.name} {family.unit}")


def _histogram(family: Family, labels: str, words: Sequence[int], lines: list[str]) -> None:
    so_far = 0
    for bound, count in zip(family.bounds, words, strict=False):
        so_far += count
        lines.append(f'{family.name}_bucket{{{labels},le="{bound / family.scale}"}} {so_far}')
    so_far += words[len(family.bounds)]
    lines.append(f'{family.name}_bucket{{{labels},le="+Inf"}} {so_far}')
    lines.append(f"{family.name}_count{{{labels}}} {so_far}")
    lines.append(f"{family.name}_sum{{{labels}}} {words[len(family.bounds) + 1] / family.scale}")


def _join(fixed: str, labels: str) -> str:
    return f"{fixed},{labels}" if labels else fixed
