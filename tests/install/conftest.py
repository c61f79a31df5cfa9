"""The archives of this checkout, built once for all tests here."""

from __future__ import annotations

import os
import shutil
import subprocess
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run(*command: str | os.PathLike[str], cwd: Path) -> str:
    """Run a command in an environment without settings of Python's; returns what it printed."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="session")
def archives(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """The source archive, the wheel that is built from it, and the checkout, in which nothing is built."""
    folder = tmp_path_factory.mktemp("archives")
    left_out = shutil.ignore_patterns(".*", "*.egg-info", "build", "dist", "*.so", "*.so.*", "__pycache__")
    tree = shutil.copytree(ROOT, folder / "tree", symlinks=True, ignore=left_out)  # as a clone, without what was built
    builder = folder / "builder"
    venv.create(builder, with_pip=True)
    run(builder / "bin/pip", "install", "-q", "build", cwd=folder)
    run(builder / "bin/python", "-m", "build", "--outdir", folder / "dist", tree, cwd=folder)
    [source], [wheel] = (folder / "dist").glob("*.tar.gz"), (folder / "dist").glob("*.whl")
    return source, wheel, tree
