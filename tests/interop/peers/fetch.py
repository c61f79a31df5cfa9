"""Fetches and builds every peer before the tests that need them, so that no test waits for a registry.

    python -m tests.interop.peers.fetch

What cannot be had is said; its tests say so again.
"""

from collections.abc import Callable
from functools import partial
from typing import Final

from tests.interop.peers.cache import PeerMissing
from tests.interop.peers.registry import CLIENTS, SERVERS, go_program, jars, java_program, node_program
from tests.interop.peers.registry import python_of_cpp_client as cpp_client

PEERS: Final[dict[str, Callable[[], object]]] = {
    **{name: partial(jars, name) for name in SERVERS.values()},
    **{name: partial(java_program, version) for version, name in CLIENTS.items()},
    "go": go_program,
    "node": node_program,
    "cpp": cpp_client,
}

if __name__ == "__main__":
    for name, peer in PEERS.items():
        try:
            peer()
        except PeerMissing as error:
            print(f"{name}: {error}", flush=True)
        else:
            print(f"{name}: ready", flush=True)
