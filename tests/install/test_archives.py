"""The checkout, an editable install, the wheel and the source archive are the same package.

The root folders are found in `shmq/` through links, so Python imports the same files whichever of them it runs from.
"""

from __future__ import annotations

import sys
import sysconfig
import tarfile
import venv
import zipfile
from collections import Counter
from pathlib import Path

import pytest

from tests.install.conftest import ROOT, run
from tests.test_layout import python_files

_FIRST_PROGRAM = """
import shmq, shmq.bindings, shmq.daemon, shmq.spark, shmq.tools
from shmq.testing import Broker
with Broker() as broker, broker.connect() as mq:
    mq.send("orders", b"42 apples")
    print(bytes(next(iter(mq.subscribe("orders", group="billing"))).body).decode())
print(shmq.__file__)
"""
_TYPED_PROGRAM = """
import shmq

with shmq.connect() as mq:
    reveal_type(mq.send("orders", b"42 apples"))
    reveal_type(shmq.__version__)
"""


@pytest.mark.slow
def test_the_wheel_that_is_built_from_the_source_archive_has_each_file_once(archives: tuple[Path, Path, Path]) -> None:
    source, wheel, _ = archives
    with zipfile.ZipFile(wheel) as opened:
        names = Counter(opened.namelist())
    assert [name for name, count in names.items() if count > 1] == []
    modules = {f"{module.replace('.', '/')}" for _, module in python_files()}
    found = {name.removesuffix(".py").removesuffix("/__init__") for name in names if name.endswith(".py")}
    assert found == modules
    assert {"shmq/py.typed", "shmq/bindings/shmq.h", "shmq/bindings/_core.pyi"} <= set(names)
    console = {str(path.relative_to(ROOT)) for path in (ROOT / "tools/console").rglob("*.*") if path.suffix != ".pyc"}
    assert {f"shmq/{name}" for name in console} <= set(names)
    assert any(name.startswith("shmq/bindings/_core.") and name.endswith(".so") for name in names)
    assert {name.split("/")[0] for name in names if ".dist-info" not in name} == {"shmq", "pyspark_shmq"}
    with tarfile.open(source) as opened:
        inside = [member.name.partition("/")[2] for member in opened if member.isfile()]
    assert len(inside) == len(set(inside))
    assert not [name for name in inside if name.startswith(("bindings/", "daemon/", "spark/", "tools/"))]


@pytest.mark.slow
def test_the_wheel_works_alone_and_from_within_the_checkout(archives: tuple[Path, Path, Path], tmp_path: Path) -> None:
    _, wheel, tree = archives
    place = tmp_path / "installed"
    venv.create(place, with_pip=True)
    libraries = sysconfig.get_paths(vars={"base": str(place), "platbase": str(place)})["purelib"]
    others = [path for path in sys.path if path.endswith("site-packages")]
    (Path(libraries) / "libraries.pth").write_text("\n".join(others))  # everything but shmq itself
    run(place / "bin/pip", "install", "-q", "--no-deps", wheel, cwd=tmp_path)
    printed = run(place / "bin/python", "-c", _FIRST_PROGRAM, cwd=tmp_path)
    assert printed.splitlines() == ["42 apples", f"{libraries}/shmq/__init__.py"]
    printed = run(place / "bin/python", "-c", _FIRST_PROGRAM, cwd=tree)
    assert printed.splitlines() == ["42 apples", f"{tree}/shmq/__init__.py"]
    assert run(place / "bin/shmq", "--version", cwd=ROOT) == run(
        place / "bin/python", "-m", "shmq", "--version", cwd=ROOT
    )


def test_python_that_runs_in_the_checkout_finds_the_whole_package() -> None:
    printed = run(sys.executable, "-c", _FIRST_PROGRAM, cwd=ROOT)
    assert printed.splitlines() == ["42 apples", f"{ROOT}/shmq/__init__.py"]


def test_a_type_checker_sees_the_installed_package(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(_TYPED_PROGRAM)
    cache = tmp_path / "cache"
    printed = run(sys.executable, "-m", "mypy", "--strict", "--cache-dir", cache, program, cwd=tmp_path)
    revealed = [line.rpartition('"')[0].rpartition(".")[2].rpartition('"')[2] for line in printed.splitlines()[:2]]
    assert revealed == ["Receipt", "str"], printed
