"""A test fails when a live broker of its says `internal.error`, unless the test asks for that by its marker.

    shmq.testing.Broker                     its log is read behind each test, and before the broker removes it
    LiveBridge, LiveNameServer, Served      give what they logged to `look_at` when they end

What is found when brokers of a module end is reported behind the next test, or at the end of the session.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest

from shmq.testing import Broker

MARKER: Final = "internal_error"
_EVENT: Final = "internal.error"

_read_bytes: weakref.WeakKeyDictionary[Broker, int] = weakref.WeakKeyDictionary()
_found: list[str] = []


def look_at(text: str) -> None:
    """Take note of the faults in a part of a log."""
    _found.extend(line for line in text.splitlines() if f" {_EVENT} " in line or f'"event": "{_EVENT}"' in line)


def look_at_log(broker: Broker) -> None:
    """Look at what a broker has logged since the last look."""
    path = broker.directory / "broker.log"
    if path.is_file():
        with path.open("rb") as file:
            file.seek(_read_bytes.get(broker, 0))
            data = file.read()
        _read_bytes[broker] = _read_bytes.get(broker, 0) + len(data)
        look_at(data.decode(errors="replace"))


def take_found() -> list[str]:
    """Look at the brokers that live; return what was found and not told yet."""
    for broker in list(_read_bytes):
        look_at_log(broker)
    found, _found[:] = list(_found), []
    return found


def _looked_at(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def whole(broker: Broker, *args: Any, **keywords: Any) -> Any:
        _read_bytes.setdefault(broker, 0)
        look_at_log(broker)
        return method(broker, *args, **keywords)

    return whole


class ToldFaults:
    """The plugin."""

    @pytest.fixture(autouse=True)
    def told_faults(self, request: pytest.FixtureRequest) -> Iterator[None]:
        """Set up before all brokers of the test, so it looks when they have ended."""
        yield
        if (found := take_found()) and request.node.get_closest_marker(MARKER) is None:
            pytest.fail("a broker had a fault of its own:\n" + "\n".join(found), pytrace=False)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if (found := take_found()) and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
            print("a broker had a fault of its own at its end:", *found, sep="\n")


def pytest_configure(config: pytest.Config) -> None:
    """Called by pytest when it loads this module as a plugin."""
    for name in ("start", "stop"):
        method = getattr(Broker, name)
        if not hasattr(method, "__wrapped__"):
            setattr(Broker, name, _looked_at(method))
    config.pluginmanager.register(ToldFaults(), "told-faults")
