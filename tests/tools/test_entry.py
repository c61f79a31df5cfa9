"""The command is one command whichever way it is started, and the quick parts stay quick because they import little."""

import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import shmq
from shmq.testing import SharedBroker
from tests.tools.shell import Shell

SLOW = ("asyncio", "rich", "psutil", "msgspec", "shmq.client.connection", "posix_ipc", "multiprocessing", "socket")


def test_version_says_what_is_installed() -> None:
    shell = Shell()
    document = shell.json("version", "version")
    assert document["version"] == shmq.__version__ and document["abi"] >= 1
    assert shell.ok("version").decode().startswith(f"shmq {shmq.__version__}  memory layout ")


@pytest.mark.parametrize("words", [["--version"], ["-V"], ["--no-color", "--version"]], ids=" ".join)
def test_the_option_that_other_programs_have_says_the_same(words: list[str]) -> None:
    shell = Shell()
    assert shell.ok(*words) == shell.ok("version")
    for line in (["--json", *words], [*words, "--json"]):
        assert shell.json("version", *line) == shell.json("version", "version")
    assert b"-V, --version" in shell.ok("--help")


def test_the_script_and_the_module_are_the_same_command() -> None:
    script = Path(sysconfig.get_path("scripts")) / "shmq"
    ways = ([str(script)], [sys.executable, "-m", "shmq"], [sys.executable, "-m", "shmq.tools"])
    outputs = {subprocess.run([*way, "--help"], capture_output=True, check=True).stdout for way in ways}
    assert len(outputs) == 1 and b"Usage: shmq" in outputs.pop()


@pytest.mark.parametrize("words", [["version"], ["--help"], ["completion", "show", "zsh"]], ids=" ".join)
def test_what_needs_no_broker_imports_nothing_slow(words: list[str]) -> None:
    result = imported(",".join(SLOW), words)
    assert (result.returncode, result.stderr) == (0, b"")


def imported(modules: str, words: list[str]) -> subprocess.CompletedProcess[bytes]:
    """Run a command and fail with the names of those of `modules` that it has imported."""
    code = (
        "import sys; from shmq.tools.cli import main; status = main(sys.argv[2:]); "
        "found = [name for name in sys.argv[1].split(',') if name in sys.modules]; sys.exit(' '.join(found) or status)"
    )
    return subprocess.run([sys.executable, "-c", code, modules, *words], capture_output=True, check=False)


@pytest.mark.parametrize("words", [["topic", "list"], ["group", "list"]], ids=" ".join)
def test_looking_at_memory_imports_no_part_of_the_control_plane(
    shmq_shared_broker: SharedBroker, words: list[str]
) -> None:
    modules = "asyncio,shmq.client.wire_shm.control,shmq.client.connection,rich"
    result = imported(modules, [*words, "-q", "-u", shmq_shared_broker.url])
    assert (result.returncode, result.stderr) == (0, b"")


@pytest.mark.parametrize("environment", [{}, {"NO_COLOR": "1"}, {"FORCE_COLOR": "1"}], ids=str)
def test_colour_is_for_terminals_unless_it_is_forced(environment: dict[str, str], tmp_path: Path) -> None:
    shell = Shell(SHMQ_RUNTIME_DIR=str(tmp_path), **environment)
    err = shell.run("topic", "list").err
    assert ("\x1b[" in err) is ("FORCE_COLOR" in environment)
    assert "\x1b[" not in shell.run("topic", "list", "--no-color").err
