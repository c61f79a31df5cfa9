"""Every installed peer carries messages completely and in order; a peer that is not installed is named, not needed."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.peers import table as peers
from benchmarks.peers.peer import latency, throughput

PEERS, SKIPPED = peers.installed()


@pytest.mark.parametrize("name", [name for name, peer in PEERS.items() if peer.sender])
def test_a_peer_delivers_from_one_and_from_two_producers(name: str) -> None:
    for producers in (1, 2):
        assert throughput(PEERS[name], producers, effort=0.001)["rate"] > 0


@pytest.mark.parametrize("name", list(PEERS))
def test_a_peer_answers_round_trips(name: str) -> None:
    times = latency(PEERS[name], trips=50)
    assert 0 < times["p50"] <= times["p99"] <= times["max"]


def test_no_peer_leaves_anything_in_shared_memory() -> None:
    before = set(Path("/dev/shm").glob("bench_*"))
    for name in PEERS:
        if name.startswith("iceoryx2"):
            latency(PEERS[name], trips=10)
    assert set(Path("/dev/shm").glob("bench_*")) <= before


def test_a_peer_that_is_not_installed_is_skipped_with_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "NEEDS", (("no_such_package", "", "x"), ("json", "no-such-program", "x")))
    peers.installed.cache_clear()
    try:
        found, sentences = peers.installed()
    finally:
        peers.installed.cache_clear()
    assert not found
    assert ["no_such_package" in sentences[0], "no-such-program" in sentences[1]] == [True, True]
