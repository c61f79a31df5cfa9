"""The second look of `.ci/run`: the few tests that failed run once more, one after another in a process of their own.

    python -m tests.second_look        after a pytest that ended with exit status 1

Which tests failed is what pytest's cache says. Exit status 0: there are at most FAILED_MAX and each of them passes; a
line `flaked: NODEID` names each. Exit status 1: anything else, among it a test that is skipped now, one that is not
found, or none that failed. A flaked test has a cause, in the product or in the test, which the next change finds.
"""

import json
import sys
from pathlib import Path
from typing import Final

import pytest

FAILED_MAX: Final = 5
_LAST_FAILED: Final = Path(".pytest_cache/v/cache/lastfailed")


class Outcomes:
    """A plugin that remembers which tests failed, and which passed from set-up to tear-down."""

    def __init__(self) -> None:
        self._called: set[str] = set()
        self.failed: set[str] = set()

    @property
    def passed(self) -> set[str]:
        return self._called - self.failed

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed.add(report.nodeid)
        elif report.when == "call" and report.passed:
            self._called.add(report.nodeid)


def second_look(failed: list[str]) -> int:
    """Run these tests alone, say which have flaked, and return the exit status."""
    if not 0 < len(failed) <= FAILED_MAX:
        print(f"no second look: {len(failed)} tests failed, 1 to {FAILED_MAX} may have", flush=True)
        return 1
    outcomes = Outcomes()
    status = pytest.main(["--suite", "gate", "-n", "0", "--reruns", "0", *failed], plugins=[outcomes])
    if status != pytest.ExitCode.OK or outcomes.passed != {*failed}:
        return 1
    for nodeid in failed:
        print(f"flaked: {nodeid}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(second_look(sorted(json.loads(_LAST_FAILED.read_text())) if _LAST_FAILED.exists() else []))
