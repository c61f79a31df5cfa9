"""The programs in docs/clients.md run as they are printed."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.interop.peers.cache import PeerMissing, program
from tests.interop.peers.registry import (
    CLIENTS,
    DEFAULT_JDK,
    PROGRAMS,
    class_path,
    go_program,
    jars,
    python_of_cpp_client,
)
from tests.interop.target import Target, missing, start_ours

PAGE = Path(__file__).resolve().parents[3] / "docs" / "clients.md"
ADDRESS = "127.0.0.1:9876"
TIMEOUT = 180.0
Command = list[str]


def _snippet(language: str) -> str:
    found = re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(found) == 1, f"one program in {language} is expected, there are {len(found)}"
    return str(found[0])


def _java(version: str) -> Callable[[str, Path], Command]:
    def command(text: str, folder: Path) -> Command:
        (folder / "Orders.java").write_text(text)
        libraries = class_path(jars(CLIENTS[version]))
        compiler = program("javac", DEFAULT_JDK)
        subprocess.run([compiler, "-cp", libraries, "Orders.java"], cwd=folder, check=True, timeout=TIMEOUT)
        return [program("java", DEFAULT_JDK), "-Duser.home=.", "-cp", f"{libraries}:{folder}", "Orders"]

    return command


def _go(text: str, folder: Path) -> Command:
    go_program()  # fetches what the module needs
    shutil.copy(PROGRAMS / "go" / "go.mod", folder)
    (folder / "main.go").write_text(text)
    tool = program("go", "golang-go")
    for words in (["mod", "tidy"], ["build", "-buildvcs=false", "-o", "orders", "."]):
        subprocess.run([tool, *words], cwd=folder, check=True, timeout=TIMEOUT, capture_output=True)
    return [str(folder / "orders")]


def _cpp(text: str, folder: Path) -> Command:
    (folder / "orders.py").write_text(text)
    return [str(python_of_cpp_client()), "orders.py"]


@pytest.fixture
def fresh() -> Iterator[Target]:
    """A broker of ours that has no topic yet, as a reader of the page has it."""
    with start_ours() as target:
        yield target


@pytest.mark.parametrize(
    ("language", "prepare"),
    [
        pytest.param("java", _java("4"), id="java-4.9.8"),
        pytest.param("java", _java("5"), id="java-5.3.3"),
        pytest.param("go", _go, id="go"),
        pytest.param("python", _cpp, id="cpp"),
    ],
)
def test_the_program_sends_an_order_and_receives_it(
    fresh: Target, tmp_path: Path, language: str, prepare: Callable[[str, Path], Command]
) -> None:
    text = _snippet(language)
    assert ADDRESS in text
    try:
        command = prepare(text.replace(ADDRESS, fresh.name_server), tmp_path)
    except PeerMissing as reason:
        missing(reason)
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    result = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=TIMEOUT, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert re.search(r"SEND_OK|^OK$|sendStatus=0", result.stdout, re.MULTILINE), result.stdout + result.stderr
    assert "order-42 42 apples" in result.stdout, result.stdout + result.stderr
