"""Rules of benchmarks.features: each feature beside the stock broker that has it, and alone without a JVM."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from benchmarks import features
from benchmarks.brokers.contestants import OURS, Contestant, Contestants
from benchmarks.workload import Figure, PeerAbsent, Workload, measure
from benchmarks.workloads import filters, offsets, requests, timers, transactions
from benchmarks.workloads.beside import OverTcp, beside
from tests.interop.peers.cache import PeerMissing
from tests.interop.peers.registry import jars

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def ours() -> Iterator[Contestant]:
    with Contestants() as contestants:
        yield contestants.get(OURS)


class WithoutJvm(Contestants):
    """Where no JVM is."""

    def get(self, name: str) -> Contestant:
        if name != OURS:
            raise PeerMissing("java is not installed")
        return Contestant("127.0.0.1:1", "127.0.0.1:2", list)


def test_every_feature_a_stock_broker_has_is_measured_beside_it() -> None:
    with Contestants() as contestants:
        peers = {each.name: list(each.peers) for each in features.workloads(contestants)}
    assert peers == {
        "tag_filter": ["stock 4.9.7"],
        "sql_filter": ["stock 4.9.7"],
        "offsets_persist": ["stock 4.9.7"],
        "request_reply": ["stock 4.9.7"],
        "transactional_send": ["stock 4.9.7"],
        "timers": ["stock 5.3.3"],
    }


def test_bounds_are_those_of_shared_memory_and_a_stock_broker_has_none() -> None:
    with Contestants() as contestants:
        table = [figure for each in features.workloads(contestants) for figure in each.figures]
    assert not any(figure.musts for figure in table)
    assert all(bool(figure.limits) != figure.name.endswith(("_tcp", "_tcp_p50")) for figure in table)
    assert len({figure.name for figure in table}) == len(table) == 14


def test_every_feature_can_be_measured_over_tcp(ours: Contestant) -> None:
    assert filters.tag_filter_over_tcp(ours, 0.001)["units_per_s"] > 0
    assert filters.sql_filter_over_tcp(ours, 0.001)["us"] > 0
    assert transactions.transactional_send_over_tcp(ours, 0.001)["per_s"] > 0
    assert requests.request_reply_over_tcp(ours, 0.001)["p50_us"] > 0
    sample = timers.timers_over_tcp(ours, 0.001)
    assert sample["insert_us"] > 0 and sample["late_ms"] >= 0


def test_a_line_sets_shared_memory_and_tcp_beside_the_same_stock_figure() -> None:
    figure = Figure("speed_local", "per_s", "1/s", is_rate=True, limits={"limit": 50.0})
    local = Workload("speed", lambda effort: {"per_s": 100.0}, [figure])
    made = beside(local, OverTcp(lambda broker, effort: {"per_s": 10.0}, {"per_s": "speed_tcp"}), AllBrokers())
    results = measure(made, list(made.peers), 2, 1.0)
    lines = [line for each in made.figures for line in results.lines(each)]
    assert [(line.figure, line.ours, line.peer, line.peer_value, line.ratio, line.holds) for line in lines] == [
        ("speed_local", 100.0, "limit", 50.0, 2.0, True),
        ("speed_local", 100.0, "stock 4.9.7", 10.0, 10.0, None),
        ("speed_tcp", 10.0, "stock 4.9.7", 10.0, 1.0, None),
    ]


class AllBrokers(Contestants):
    """Where every broker runs."""

    def get(self, name: str) -> Contestant:
        return Contestant("127.0.0.1:1", "127.0.0.1:2", list)


def test_without_a_jvm_ours_is_measured_alone_and_it_is_said() -> None:
    figure = Figure("speed_local", "per_s", "1/s", is_rate=True, limits={"limit": 50.0})
    local = Workload("speed", lambda effort: {"per_s": 100.0}, [figure])
    made = beside(local, OverTcp(lambda broker, effort: {"per_s": 10.0}, {"per_s": "speed_tcp"}), WithoutJvm())
    results = measure(made, list(made.peers), 2, 1.0)
    lines = [line for each in made.figures for line in results.lines(each)]
    assert [(line.figure, line.ours, line.peer, line.holds) for line in lines] == [
        ("speed_local", 100.0, "limit", True),
        ("speed_tcp", 10.0, "", None),
    ]
    assert results.absent == {"stock 4.9.7": "java is not installed"}


def test_a_missing_program_is_an_absent_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    jars.cache_clear()
    with pytest.raises(PeerAbsent, match="java is not installed"):
        offsets.stock_offsets_persist(0.01)
