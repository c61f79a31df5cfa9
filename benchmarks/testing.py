"""The command `python -m benchmarks.testing`: what a broker costs a test that uses `shmq.testing`.

pytest runs a file of tests, each of which sends one message and reads it back, as its user starts it; once with few
tests and once with more. The figure is the difference a test: what pytest and `import shmq` cost is in both.

    isolated   a test with `shmq_broker`: start, use and end of a broker of its own
    shared     a test with `shmq_shared_broker`: its connection, its topic and their end
    uncompiled `isolated`, in an environment that tells Python to write no byte code, from a checkout that has none

Each figure is processor time of the test and of all processes of its brokers; wall time says more about other work on
the machine.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.command import run
from benchmarks.workload import Figure, Workload

ISOLATED_LIMIT_MS, SHARED_LIMIT_MS = 1000.0, 50.0
FEW = 2
ISOLATED, SHARED = 8, 100
_TEST = """
import pytest
@pytest.mark.parametrize("number", range({count}))
def test_a_message_goes_through(number, {fixture}):
    with {fixture}.connect() as mq:
        mq.send(f"orders-{{number}}", b"3")
        assert {fixture}.expect(f"orders-{{number}}", timeout=60)[0].body == b"3"
"""


def isolated(effort: float) -> dict[str, float]:
    """Milliseconds of processor time a test that has a broker of its own."""
    with tempfile.TemporaryDirectory(prefix="shmq-benchmark-") as directory:
        compiled = {"PYTHONPYCACHEPREFIX": os.path.join(directory, "compiled")}
        return {"cpu_ms": _a_test(Path(directory), "shmq_broker", max(FEW + 1, int(ISOLATED * effort)), compiled)}


def shared(effort: float) -> dict[str, float]:
    """Milliseconds of processor time a test that shares its broker."""
    with tempfile.TemporaryDirectory(prefix="shmq-benchmark-") as directory:
        compiled = {"PYTHONPYCACHEPREFIX": os.path.join(directory, "compiled")}
        return {"cpu_ms": _a_test(Path(directory), "shmq_shared_broker", max(FEW + 1, int(SHARED * effort)), compiled)}


def uncompiled(effort: float) -> dict[str, float]:
    """The same as `isolated` where Python finds no byte code and may write none."""
    with tempfile.TemporaryDirectory(prefix="shmq-benchmark-") as directory:
        none = {"PYTHONPYCACHEPREFIX": os.path.join(directory, "none"), "PYTHONDONTWRITEBYTECODE": "1"}
        return {"cpu_ms": _a_test(Path(directory), "shmq_broker", max(FEW + 1, int(ISOLATED * effort)), none)}


def _a_test(directory: Path, fixture: str, count: int, variables: dict[str, str]) -> float:
    """Return what each test beyond the first few costs."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")} | variables
    _pytest(directory, fixture, 1, environment)  # what is compiled once
    few = _pytest(directory, fixture, FEW, environment)
    return (_pytest(directory, fixture, count, environment) - few) / (count - FEW) * 1000


def _pytest(directory: Path, fixture: str, count: int, environment: dict[str, str]) -> float:
    """Run so many tests; returns seconds of processor time, those of the brokers included."""
    (directory / "test_messages.py").write_text(_TEST.format(count=count, fixture=fixture))
    command = [sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", "."]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert f"{count} passed" in done.stdout, f"pytest ended with {done.returncode}: {done.stdout}{done.stderr}"
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def workloads() -> list[Workload]:
    """Return what is measured here."""
    isolated_limit, shared_limit = {"limit": ISOLATED_LIMIT_MS}, {"limit": SHARED_LIMIT_MS}
    return [
        Workload("isolated", isolated, [Figure("test_isolated_cpu", "cpu_ms", "ms", limits=isolated_limit)]),
        Workload("shared", shared, [Figure("test_shared_cpu", "cpu_ms", "ms", limits=shared_limit)]),
        Workload("uncompiled", uncompiled, [Figure("test_uncompiled_cpu", "cpu_ms", "ms", limits=isolated_limit)]),
    ]


def main(given: Sequence[str] | None = None) -> int:
    """Run what the command line asks for; returns the exit code."""
    return run("python -m benchmarks.testing", "what a broker costs a test", workloads(), given)


if __name__ == "__main__":
    sys.exit(main())
