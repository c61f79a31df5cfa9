"""What a process that is started says on stderr: greetings are dropped, the rest is heard, and ours is not touched."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from shmq.spark.jobs.driver.java_output import LEVEL_VARIABLE, listened
from tests.spark.jobs.killing import eventually

SAY = "import sys; sys.stderr.write('Setting default log level to \"WARN\".\\nwhat matters\\n')"


def test_greetings_are_dropped_and_the_rest_is_heard(capfd: pytest.CaptureFixture[str]) -> None:
    heard: list[str] = []
    with listened(heard.append):
        child = subprocess.Popen([sys.executable, "-c", SAY])
    os.write(2, b"our own\n")
    assert child.wait() == 0
    eventually(lambda: heard == ["what matters"], lambda: str(heard))
    assert capfd.readouterr().err == "our own\n"


def test_who_wants_to_see_everything_sees_it(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(LEVEL_VARIABLE, "WARN")
    with listened(lambda line: pytest.fail(line)):
        subprocess.run([sys.executable, "-c", SAY], check=True)
    assert capfd.readouterr().err.splitlines()[0].startswith("Setting default")
