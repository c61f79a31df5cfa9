"""The form of a comparison: workloads that are measured, figures drawn from them, and lines that are printed.

    workload   one thing measured, by us and by peers      -> {metric: value} per run
    figure     one metric of a workload, its unit, and what it must reach against which peer
    line       one figure against one peer: medians of all runs, their ratio, and whether the must holds

(1) Runs are interleaved: ours, every peer, ours, every peer …, so a slow minute of the machine hits all.
(2) A must compares medians. `factor` is ours / peer: at least for rates, at most for times.
(3) A limit is a peer that is a number.
(4) A peer that cannot be had is left out with the reason, and the others are measured.
(5) Rounds before the first that counts are for contestants that run in a virtual machine, which compiles what it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field

from shmq.measurement.measure import median

Sample = Mapping[str, float]
Measure = Callable[[float], Sample]  # of the effort: 1 is a full run, less is quicker and rougher


@dataclass(frozen=True)
class Figure:
    """One metric of a workload and its promises.

    Attributes:
        is_rate: whether more is better.
        musts: factor by peer name.
        limits: absolute bounds, by the words that say where each comes from.
    """

    name: str
    metric: str
    unit: str
    is_rate: bool = False
    musts: Mapping[str, float] = field(default_factory=dict)
    limits: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Workload:
    """One thing to measure, the same way for shmq and its rivals."""

    name: str
    ours: Measure
    figures: Sequence[Figure]
    peers: Mapping[str, Measure] = field(default_factory=dict)
    rounds_before: int = 0


@dataclass(frozen=True)
class Line:
    """One figure against one peer; `ours` is None when only the peers were measured."""

    figure: str
    unit: str
    ours: float | None
    peer: str
    peer_value: float | None
    ratio: float | None
    must: str | None
    holds: bool | None
    runs: int
    min: float | None
    max: float | None

    def as_json(self) -> dict[str, object]:
        """The promised fields, in order."""
        return asdict(self)


class PeerAbsent(Exception):
    """A peer cannot be had here; the text says why."""


class Results:
    """Samples of one workload, per contestant, one entry a run.

    Attributes:
        absent: why a peer has no samples, by its name.
    """

    def __init__(self) -> None:
        self.ours: list[Sample] = []
        self.peers: dict[str, list[Sample]] = {}
        self.absent: dict[str, str] = {}

    def lines(self, figure: Figure) -> list[Line]:
        """Every line of one figure: its limits, then the peers with a must, then the others."""
        ours = [sample[figure.metric] for sample in self.ours]
        made = [_line(figure, ours, name, [value], 1.0) for name, value in figure.limits.items()]
        named = sorted(self.peers, key=lambda name: name not in figure.musts)
        for name in named:
            values = [sample[figure.metric] for sample in self.peers[name] if figure.metric in sample]
            if values:
                made.append(_line(figure, ours, name, values, figure.musts.get(name)))
        return made or [_line(figure, ours, "", [], None)]


def measure(workload: Workload, peers: Sequence[str], runs: int, effort: float, *, with_ours: bool = True) -> Results:
    """Measure a workload `runs` times, ours and the named peers in turn."""
    results = Results()
    for number in range(-workload.rounds_before, runs):
        if with_ours:
            sample = workload.ours(effort)
            if number >= 0:
                results.ours.append(sample)
        for name in peers:
            if name in workload.peers and name not in results.absent:
                try:
                    sample = workload.peers[name](effort)
                except PeerAbsent as reason:
                    results.absent[name] = str(reason)
                    continue
                if number >= 0:
                    results.peers.setdefault(name, []).append(sample)
    return results


def _line(figure: Figure, ours: Sequence[float], peer: str, values: Sequence[float], factor: float | None) -> Line:
    our_value = median(ours) if ours else None
    peer_value = median(values) if values else None
    ratio = our_value / peer_value if our_value is not None and peer_value else None
    holds = None
    if factor is not None and ratio is not None:
        holds = ratio >= factor if figure.is_rate else ratio <= factor
    return Line(
        figure=figure.name,
        unit=figure.unit,
        ours=our_value,
        peer=peer,
        peer_value=peer_value,
        ratio=ratio,
        must=None if factor is None else f"{'>=' if figure.is_rate else '<='} {factor:g}",
        holds=holds,
        runs=len(ours or values),
        min=min(ours or values, default=None),
        max=max(ours or values, default=None),
    )
