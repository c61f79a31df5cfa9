"""Ends the programs that tests share as soon as the rest of the tests of this process have no use for them.

A fixture for the whole session lives until the last test of its process, whatever that is: stock brokers and Spark
burnt a sixth of the processors after the last test that used them, beside tests that time decides.

    GUESTS      the fixtures that are meant, below the folder whose conftest.py has them
    a unit      what a process of xdist gets as a whole: a file, or a folder of TOGETHER

(1) A guest lives while the next test is of a unit that names it: as an argument, or as a parameter ("stock-4",
"java-4@stock-5") by which a fixture finds it. (2) What is asked for again starts again, so a unit whose use of a guest
is not to be seen costs time alone. (3) What was made from a guest ends before it, by the rules of pytest.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Generator, Iterator
from typing import Any, Final

import pytest

TOGETHER: Final = ("tests/spark/", "tests/install/")
"""Folders whose files share what takes long to start."""
GUESTS: Final = {
    "tests/interop": {"stock_4", "stock_5", "ours", "client_of"},
    "tests/spark": {"spark", "broker", "cluster", "driver"},
}


def unit_of(nodeid: str) -> str:
    """Return the file of a test, or the folder that stays together."""
    return next((folder for folder in TOGETHER if nodeid.startswith(folder)), nodeid.partition("::")[0])


def _names(item: pytest.Item) -> Iterator[str]:
    yield from getattr(item, "fixturenames", ())
    callspec = getattr(item, "callspec", None)
    for value in callspec.params.values() if callspec is not None else ():
        if isinstance(value, str):
            yield from value.replace("-", "_").split("@")


class Guests:
    """Who lives in this process, and which units name whom."""

    def __init__(self) -> None:
        self._named: dict[str, set[str]] = defaultdict(set)
        self._living: dict[pytest.FixtureDef[Any], pytest.FixtureRequest] = {}

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        for item in session.items:
            self._named[unit_of(item.nodeid)].update(_names(item))

    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest) -> None:
        if fixturedef.argname in GUESTS.get(fixturedef.baseid, ()):
            self._living[fixturedef] = request

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self, nextitem: pytest.Item | None) -> Generator[None, None, None]:
        yield
        if nextitem is None:
            return  # the session ends, and all that is left with it
        for guest in [guest for guest in self._living if not self._is_used(guest, nextitem)]:
            guest.finish(self._living.pop(guest))  # type: ignore[arg-type]

    def _is_used(self, guest: pytest.FixtureDef[Any], item: pytest.Item) -> bool:
        is_here = item.nodeid.startswith(f"{guest.baseid}/")
        return is_here and guest.argname in self._named[unit_of(item.nodeid)]
