"""The machinery of the interop tests: entries of the cache, bare connections, and what a missing peer does."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.deadline import eventually
from tests.interop.peers import programs, registry
from tests.interop.peers.cache import DIRECTORY_VARIABLE, REQUIRE_VARIABLE, PeerMissing, entry, program, run
from tests.interop.peers.fetch import PEERS
from tests.interop.peers.process import Child
from tests.interop.peers.wire import Wire
from tests.interop.target import Target


@pytest.fixture(autouse=True)
def _private_cache(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if "target" not in request.fixturenames:
        monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path / "cache"))


def test_an_entry_is_built_once() -> None:
    built: list[Path] = []

    def build(scratch: Path) -> None:
        built.append(scratch)
        (scratch / "file").write_text("content")

    assert entry("thing", build) == entry("thing", build)
    assert (entry("thing", build) / "file").read_text() == "content" and len(built) == 1


def test_a_build_that_fails_leaves_nothing_and_is_tried_again() -> None:
    def fail(scratch: Path) -> None:
        run([sys.executable, "-c", "raise SystemExit('no registry')"], scratch, "thing")

    with pytest.raises(PeerMissing, match="no registry"):
        entry("thing", fail)
    assert entry("thing", lambda scratch: (scratch / "file").touch()).joinpath("file").exists()


def test_every_peer_of_the_tests_is_fetched_beforehand() -> None:
    started = {name for name in programs.CLIENTS if not name.startswith("java-")}
    assert PEERS.keys() == started | {*registry.SERVERS.values(), *registry.CLIENTS.values()}
    assert "python -m tests.interop.peers.fetch" in (Path(__file__).parents[2] / ".ci/run").read_text()


def test_a_missing_program_is_named_with_its_package() -> None:
    with pytest.raises(PeerMissing, match=r"no-such-tool.*apt-get install no-package"):
        program("no-such-tool", "no-package")


@pytest.mark.parametrize(("required", "outcome"), [("", "1 skipped"), ("1", "1 error")])
def test_a_missing_peer_skips_unless_interop_is_required(tmp_path: Path, required: str, outcome: str) -> None:
    test = f"{Path(__file__).parent / 'messages/test_java.py'}::test_a_send_to_an_unknown_topic_creates_it"
    environment = {**os.environ, "PATH": str(tmp_path), REQUIRE_VARIABLE: required}
    words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", f"{test}[java-4@ours]"]
    result = subprocess.run([sys.executable, *words], env=environment, capture_output=True, text=True, check=False)
    assert outcome in result.stdout, result.stdout


def test_a_child_dies_with_the_process_that_started_it(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from tests.interop.peers.process import Child\n"
        "child = Child([sys.executable, '-c', 'import signal; signal.pause()'], Path(sys.argv[1]) / 'log')\n"
        "print(child.process.pid, flush=True); import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    )
    root = Path(__file__).resolve().parents[2]
    words = [sys.executable, "-c", script, str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(root)}  # the working directory is no part of a safe path
    result = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert result.stdout, result.stderr
    pid = int(result.stdout)
    eventually(lambda: not _is_running(pid), "the child ends")


def test_a_stopped_child_is_gone(tmp_path: Path) -> None:
    with Child([sys.executable, "-c", "import signal; signal.pause()"], tmp_path / "log") as child:
        pid = child.process.pid
        assert _is_running(pid)
    assert not _is_running(pid)


def test_every_broker_answers_a_bare_frame(target: Target) -> None:
    with Wire(target.broker_address) as wire:
        reply = wire.ask(9999)
        assert reply is not None and reply.code == 3 and reply.remark == " request type 9999 not supported"


def _is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # the second when it ends between open and read
        return False
