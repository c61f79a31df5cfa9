"""Owns which client is tested with which broker, and which feature a test stands for.

It does not know what a test does. `results` is what ran in this session; `compatibility.py` makes the table of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest

from tests.interop.target import OURS, STOCK_4, STOCK_5

CLIENTS = {
    "java-4": "Java 4.9.8",
    "java-5": "Java 5.3.3",
    "go": "Go 2.1.2",
    "cpp": "C++ (PyPI rocketmq 0.4.4)",
    "node": "JavaScript (ali-ons 3.12.0)",
}
"""Columns of the table."""

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]
results: dict[tuple[str, str], bool] = {}
"""By client and feature: whether every test with our broker passed in this session."""
_passed: dict[tuple[str, str], dict[str, bool]] = {}  # and each test by its id, the last time that it ran


def on_pairs(
    *clients: str, stock: tuple[str, ...] | None = None, pending: Mapping[str, str] | None = None
) -> Decorator:
    """Run a test with each client against our broker, and against a stock one, which shows that the test is right.

    Args:
        stock: the clients that try it on a stock broker; all, if it is None.
        pending: client -> what our broker lacks; a strict xfail.
    """
    checked = clients if stock is None else stock
    missing = {client: pytest.mark.xfail(reason=reason, strict=True) for client, reason in (pending or {}).items()}
    pairs = [
        pytest.param(f"{client}@{OURS}", marks=[missing[client]] if client in missing else []) for client in clients
    ]
    pairs += [f"{client}@{STOCK_5 if client == 'java-5' else STOCK_4}" for client in checked]
    return pytest.mark.parametrize("pair", pairs, indirect=True)


def covers(*features: str) -> Decorator:
    """Say which rows of the compatibility table a test stands for."""
    return pytest.mark.covers(*features)


def record(item: pytest.Item, passed: bool) -> None:
    """Remember the outcome of a test that stands for a feature; one that is repeated has its last one."""
    for key in _cells(item):
        tests = _passed.setdefault(key, {})
        tests[item.nodeid] = passed
        results[key] = all(tests.values())


def covered(items: Iterable[pytest.Item]) -> set[tuple[str, str]]:
    """Return client and feature of every test with our broker among these."""
    return {key for item in items for key in _cells(item)}


def _cells(item: pytest.Item) -> list[tuple[str, str]]:
    marker = item.get_closest_marker("covers")
    callspec = getattr(item, "callspec", None)
    pair = callspec.params.get("pair", "") if callspec is not None else ""
    if marker is None or not pair.endswith(f"@{OURS}"):
        return []
    return [(pair.split("@")[0], feature) for feature in marker.args]
