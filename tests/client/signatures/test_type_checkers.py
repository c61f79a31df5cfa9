"""A type checker finds what would be refused at run time, and has nothing against programs that are right.

`wrong.py` says in each line that is wrong what mypy calls it; `right.py` is what users write.
"""

import re
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).parent


@pytest.mark.slow
def test_mypy_finds_every_wrong_kind_and_nothing_else(tmp_path: Path) -> None:
    for name in ("right", "wrong"):  # as a user's own, from a folder of his own
        (tmp_path / f"{name}.py").write_text((PROGRAMS / f"{name}.py").read_text())
    options = ["--strict", "--no-pretty", "--cache-dir", str(tmp_path / "cache")]
    command = [sys.executable, "-m", "mypy", *options, "right.py", "wrong.py"]
    printed = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False).stdout
    found = {
        (name, int(line)): kind
        for name, line, kind in re.findall(r"^(\w+)\.py:(\d+): error: .*\[(.+)\]$", printed, re.M)
    }
    lines = (PROGRAMS / "wrong.py").read_text().splitlines()
    said = {("wrong", at): kind for at, line in enumerate(lines, 1) for kind in re.findall(r"# wrong: (\S+)$", line)}
    assert len(said) > 30
    assert found == said, printed
