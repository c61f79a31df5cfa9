"""Which processors a wheel is built for, and where it is tried."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from shmq.tools.release.__main__ import release
from shmq.tools.release.machines import CROSS, HERE, Machine
from shmq.tools.release.steps import Failure, run
from shmq.tools.release.trial import place

OTHER = next(iter(CROSS))


def test_this_hosts_processor_needs_no_settings() -> None:
    assert Machine(HERE).settings("3.11") == {}


def test_another_processor_has_its_compiler_and_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = tmp_path / CROSS[OTHER][0]
    compiler.write_text("#!/bin/sh\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    settings = Machine(OTHER).settings("3.12")
    assert settings["CC"] == compiler.name
    assert settings["SETUPTOOLS_EXT_SUFFIX"] == f".cpython-312-{OTHER}-linux-gnu.so"


def test_a_compiler_that_is_not_there_names_its_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/none")
    with pytest.raises(Failure, match=f"apt install {CROSS[OTHER][1]}"):
        Machine(OTHER).settings("3.11")


def test_a_command_sees_a_folder_where_its_place_says(tmp_path: Path) -> None:
    (tmp_path / "here").write_text("")
    there = place(tmp_path, None)
    assert run(*there.enter, "ls", there.inner, cwd=tmp_path) == "here\n"


@pytest.mark.parametrize("system", ["aarch64", "aarch64=", "aarch64=/nowhere", "vax=/tmp"])
def test_a_system_is_a_processor_and_a_folder(system: str) -> None:
    result = CliRunner().invoke(release, ["--system", system])
    assert result.exit_code == 2
    assert "is not MACHINE=DIR of aarch64" in result.output
