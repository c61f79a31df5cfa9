"""A broker that may not open enough files refuses to start at once and says how many it needs, or helps itself."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from shmq.daemon.descriptors import NEEDED, WANTED
from tests.supervisor.conftest import SMALL, daemon_words

_LIMITED = """
import os, resource, sys
soft, hard = map(int, sys.argv[1:3])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
os.execv(sys.executable, sys.argv[3:])
"""


def start(directory: Path, soft: int, hard: int, **settings: Any) -> "subprocess.Popen[str]":
    places = {"broker_name": f"limited-{os.getpid()}", "runtime_dir": directory / "run", "store": directory / "store"}
    words = daemon_words("serve", **places, **SMALL, **settings)
    return subprocess.Popen(
        [sys.executable, "-P", "-c", _LIMITED, str(soft), str(hard), *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def announced(process: "subprocess.Popen[str]") -> dict[str, Any]:
    assert process.stdout is not None
    found: dict[str, Any] = json.loads(process.stdout.readline())
    return found


@pytest.mark.parametrize("most", [20, 32, 48, 64, 128, NEEDED - 1])
def test_too_few_are_refused_at_once_with_what_is_needed(tmp_path: Path, most: int) -> None:
    with start(tmp_path, most, most) as process:
        told = announced(process)
        assert process.wait(60) == 78  # configuration
    assert told["ready"] is False
    assert f"{most} open files" in told["error"] and str(NEEDED) in told["error"]
    assert f"ulimit -n {WANTED}" in told["hint"]
    assert not (tmp_path / "store").exists() or not list((tmp_path / "store").rglob("*"))


@pytest.mark.parametrize(("soft", "hard"), [(32, NEEDED), (64, 2 * WANTED), (NEEDED, NEEDED)])
def test_a_soft_limit_is_raised_and_the_broker_serves(tmp_path: Path, soft: int, hard: int) -> None:
    with start(tmp_path, soft, hard, listen="127.0.0.1:0", nameserver_listen="127.0.0.1:0") as process:
        try:
            assert announced(process)["ready"] is True
        finally:
            process.terminate()
            assert process.wait(60) == 0
