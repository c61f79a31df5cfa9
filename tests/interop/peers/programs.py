"""Owns which program speaks for each client.

It does not know what a command means.
"""

from __future__ import annotations

from collections.abc import Callable

from tests.interop.peers.java import JavaClient, LineClient
from tests.interop.peers.registry import PROGRAMS, go_program, node_program, python_of_cpp_client


def _cpp() -> LineClient:
    return LineClient([str(python_of_cpp_client()), "-u", str(PROGRAMS / "python" / "cpp_client.py")])


def _go() -> LineClient:
    return LineClient([str(go_program())])


def _node() -> LineClient:
    return LineClient(node_program())


CLIENTS: dict[str, Callable[[], LineClient]] = {
    "java-4": lambda: JavaClient("4"),
    "java-5": lambda: JavaClient("5"),
    "cpp": _cpp,
    "go": _go,
    "node": _node,
}
"""By name; calling one starts it, and raises PeerMissing when it cannot be had."""
