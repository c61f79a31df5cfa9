"""What ruff and mypy say of the whole tree, at once: lines, format and types.

    python -m tests.lint

Exit status 1: one of them has found something. The source for Spark is type checked where pyspark is installed.
"""

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
_COMMANDS: Final = (
    ("ruff", "check", "--no-cache", "."),
    ("ruff", "format", "--no-cache", "--check", "."),
    ("mypy", "--config-file", "setup.cfg", "--cache-dir", "/dev/null", "-p", "shmq"),
)


def lint() -> int:
    """Run each and return the worst of their exit statuses."""
    left_out = () if importlib.util.find_spec("pyspark") else ("--exclude", "/spark/")
    statuses = []
    for module, *words in _COMMANDS:
        more = left_out if module == "mypy" else ()
        done = subprocess.run([sys.executable, "-P", "-m", module, *words, *more], cwd=ROOT, check=False)
        statuses.append(done.returncode)
    return max(statuses)


if __name__ == "__main__":
    sys.exit(lint())
