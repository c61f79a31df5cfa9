"""A slave whose disk is full is stuck, says why and what to do, and goes on when there is room; no byte is wrong."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("full_disk.py")
ROOT = Path(__file__).parents[3]


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
@pytest.mark.parametrize("percent", [100, 80], ids=["full", "refused-before-it-is-full"])
def test_a_slave_whose_disk_is_full_is_stuck_and_goes_on_when_there_is_room(percent: int) -> None:
    done = subprocess.run(
        ["unshare", "--mount", sys.executable, "-P", str(SCRIPT), str(percent)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    words = ["stuck", "sends-at-its-master", "stuck-again", "goes-on", "proven"]
    assert (done.returncode, done.stdout.split()) == (0, words), done.stdout + done.stderr
