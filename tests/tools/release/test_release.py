"""What is given to others: which Pythons it is built for, and what is refused."""

import hashlib
import sys
import zipfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from shmq.tools.release.__main__ import release
from shmq.tools.release.archives import checked, checksums
from shmq.tools.release.interpreters import Interpreter, found
from shmq.tools.release.steps import Failure, run


def program(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_a_name_on_the_path_that_does_not_run_is_no_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path / "python3.11", "exit 127")
    program(tmp_path / "python3.13", f'exec {sys.executable} "$@"')
    monkeypatch.setenv("PATH", str(tmp_path))
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    assert found(()) == [Interpreter(version, tmp_path / "python3.13")]


def test_another_implementation_is_not_built_for(tmp_path: Path) -> None:
    assert found([str(program(tmp_path / "pypy", "echo 3.11 pypy /usr"))]) == []


def test_a_step_that_fails_says_which_and_what_it_printed(tmp_path: Path) -> None:
    with pytest.raises(Failure, match="exit status 3 of sh -c echo no; exit 3\nno"):
        run("sh", "-c", "echo no; exit 3", cwd=tmp_path)


def test_a_step_knows_nothing_of_this_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/somewhere")
    monkeypatch.setenv("SHMQ_URL", "shmq://other")
    assert run("sh", "-c", "echo $PYTHONPATH$SHMQ_URL", cwd=tmp_path) == "\n"


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        (["shmq/bindings/_core.so"], "libshmq"),
        (["shmq/bindings/_core.so", "shmq/bindings/libshmq.so.1", "shmq.libs/libz.so"], "library of this host"),
    ],
)
def test_a_wheel_that_lacks_a_library_or_brings_a_foreign_one_is_refused(
    tmp_path: Path, names: list[str], reason: str
) -> None:
    wheel = tmp_path / "shmq.whl"
    with zipfile.ZipFile(wheel, "w") as made:
        for name in names:
            made.writestr(name, b"")
    with pytest.raises(Failure, match=reason):
        checked(wheel)


def test_the_checksums_are_those_of_the_files(tmp_path: Path) -> None:
    (tmp_path / "one").write_bytes(b"1")
    assert checksums([tmp_path / "one"]) == f"{hashlib.sha256(b'1').hexdigest()}  one\n"


def test_another_folder_than_a_checkout_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(release, ["--to", "dist"])
    assert (result.exit_code, "is no checkout of shmq" in result.output) == (1, True)
    assert not (tmp_path / "dist").exists()
