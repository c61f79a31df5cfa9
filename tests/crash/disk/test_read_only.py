"""A file system that turns read-only under an idle broker is found; nothing is called done until it is back."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("read_only.py")
ROOT = Path(__file__).parents[3]
PROGRAMS = ("losetup", "mkfs.ext4", "e2fsck", "findmnt", "mount", "unshare")


@pytest.mark.skipif(os.geteuid() != 0 or not all(map(shutil.which, PROGRAMS)), reason="mounting needs root")
@pytest.mark.parametrize("how", ["error", "bind"])
def test_a_file_system_that_turns_read_only_is_found_and_the_broker_comes_back_with_all(how: str) -> None:
    done = subprocess.run(
        ["unshare", "--mount", sys.executable, "-P", str(SCRIPT), how],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    words = ["busy", "critical", "logged", "refused", "not-created", "read", "back"]
    assert (done.returncode, done.stdout.split()) == (0, words), done.stdout + done.stderr
