"""Sets a feature that is measured in shared memory beside a stock broker in the same run.

A feature says how it is measured over TCP, at whatever broker, by one and the same client; from that come two kinds of
lines:

    tag_filter_1_percent        ours in shared memory, the stock broker over TCP: what a process of this host gains
    tag_filter_1_percent_tcp    both over TCP: the brokers alone

Rule: bounds stay with the figures in shared memory; beside a stock broker nothing is promised, ratios are shown.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from benchmarks.brokers.contestants import OURS, Contestant, Contestants, name_of
from benchmarks.workload import Figure, PeerAbsent, Sample, Workload
from tests.interop.peers.cache import PeerMissing

TCP = "tcp_"


@dataclass(frozen=True)
class OverTcp:
    """The measurement of a workload at a broker over TCP.

    Attributes:
        measure: takes the broker and the effort, gives the workload's metrics, or some of them.
        figures: name of the figure over TCP by metric.
        version: the stock broker that has the feature, "4" or "5".
    """

    measure: Callable[[Contestant, float], Sample]
    figures: Mapping[str, str]
    version: str = "4"


def beside(workload: Workload, over_tcp: OverTcp, contestants: Contestants) -> Workload:
    """Return the workload with a stock broker as its peer, and with its figures over TCP."""

    def ours(effort: float) -> Sample:
        return {**workload.ours(effort), **_over_tcp(over_tcp.measure(contestants.get(OURS), effort))}

    def stock(effort: float) -> Sample:
        try:
            contestant = contestants.get(over_tcp.version)
        except PeerMissing as reason:
            raise PeerAbsent(str(reason)) from reason
        sample = over_tcp.measure(contestant, effort)
        return {**sample, **_over_tcp(sample)}

    by_metric = {figure.metric: figure for figure in workload.figures}
    added = [_figure(by_metric[metric], name) for metric, name in over_tcp.figures.items()]
    return Workload(
        workload.name,
        ours,
        [*workload.figures, *added],
        {**workload.peers, name_of(over_tcp.version): stock},
    )


def _over_tcp(sample: Sample) -> dict[str, float]:
    return {TCP + metric: value for metric, value in sample.items()}


def _figure(local: Figure, name: str) -> Figure:
    return replace(local, name=name, metric=TCP + local.metric, limits={}, musts={})
