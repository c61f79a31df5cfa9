"""The rooms of the broker stand on each other in one direction, as `shmq/daemon/broker/__init__.py` draws them."""

import ast
from graphlib import TopologicalSorter
from pathlib import Path

BROKER = Path(__file__).resolve().parent.parent.parent / "daemon" / "broker"
PACKAGE = ["shmq", "daemon", "broker"]
ROOMS = sorted(path.parent.name for path in BROKER.glob("*/__init__.py"))


def rooms_imported_by(room: str) -> set[str]:
    found = set()
    for path in (BROKER / room).glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                parts = node.module.split(".")
                if parts[:3] == PACKAGE and len(parts) > 4 and parts[3] != room:
                    found.add(parts[3])
    return found


def test_no_two_rooms_need_each_other() -> None:
    graph = {room: rooms_imported_by(room) for room in ROOMS}
    order = list(TopologicalSorter(graph).static_order())  # raises CycleError
    assert set(order) == set(ROOMS) and len(ROOMS) > 10


def test_no_room_composes_the_broker() -> None:
    for path in BROKER.glob("*/*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                assert node.module not in ("shmq.daemon.broker.broker", "shmq.daemon.broker.worker"), path
