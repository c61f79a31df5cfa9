"""The table of peers, and which of them can run here.

A peer's module is imported only when what it needs is installed.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from importlib.util import find_spec
from shutil import which

from benchmarks.peers.peer import Peer

# Python package, program beside it, our module with PEERS
NEEDS = (
    ("zmq", "", "benchmarks.peers.zmq"),
    ("iceoryx2", "", "benchmarks.peers.iceoryx2"),
    ("faster_fifo", "", "benchmarks.peers.fifo"),
    ("multiprocessing", "", "benchmarks.peers.multiprocessing"),
    ("redis", "redis-server", "benchmarks.peers.redis"),
)


@cache
def installed() -> tuple[dict[str, Peer], tuple[str, ...]]:
    """Peers that can run here by name, and one sentence for each that cannot."""
    peers: dict[str, Peer] = {}
    skipped: list[str] = []
    for package, program, module in NEEDS:
        if find_spec(package) is None:
            skipped.append(f"skipped: the Python package {package} is not installed  (pip install '.[bench]')")
        elif program and which(program) is None:
            skipped.append(f"skipped: the program {program} is not on the path")
        else:
            peers.update((peer.name, peer) for peer in import_module(module).PEERS)
    return peers, tuple(skipped)
