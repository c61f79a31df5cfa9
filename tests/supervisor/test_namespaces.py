"""What docs/deploy promises of containers, with the kernel's own namespaces instead of a container engine."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.deadline import eventually

DEADLINE_SECONDS = 60.0
ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "docs/deploy"
_TOOLS = ("unshare", "nsenter", "mount")


def may_unshare() -> bool:
    if os.geteuid() != 0 or any(shutil.which(tool) is None for tool in _TOOLS):
        return False
    probe = ["unshare", "--mount", "--ipc", "--pid", "--fork", "--mount-proc", "true"]
    return subprocess.run(probe, capture_output=True, check=False, timeout=DEADLINE_SECONDS).returncode == 0


needs_namespaces = pytest.mark.skipif(not may_unshare(), reason="no rights to make namespaces here")


class Box:
    """A broker in namespaces of its own, with a /dev/shm of its own."""

    def __init__(self, directory: Path, shm_mebibytes: int) -> None:
        self.directory = directory
        self.ready = directory / "ready.json"
        serve = [sys.executable, "-m", "shmq", "serve", "--json", "--no-tcp", "--file-size", "4M"]
        serve += ["--runtime-dir", str(directory / "run/box"), "--name", "box", "--store", str(directory / "store")]
        mount = f"mount -t tmpfs -o size={shm_mebibytes}m,mode=1777 tmpfs /dev/shm"
        script = f'{mount} && exec "$@" > {self.ready} 2> {directory / "log"}'
        box = ["unshare", "--mount", "--ipc", "--pid", "--fork", "--mount-proc", "--kill-child=SIGTERM"]
        self.process = subprocess.Popen([*box, "sh", "-c", script, "sh", *serve])

    def wait(self) -> dict[str, Any]:
        """What the broker said at its start."""

        def said() -> str:
            assert self.process.poll() is None, log.read_text()
            return self.ready.read_text().strip() if self.ready.exists() else ""

        log = self.directory / "log"
        document: dict[str, Any] = json.loads(eventually(said, log.read_text))
        return document

    @property
    def init(self) -> int:
        """Process 1 of the box, as seen from outside."""
        [pid] = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return int(pid)

    def inside(self, *words: str, own_pids: bool = False) -> Any:
        """Run `shmq` in the namespaces of the box, or in all but that of the processes."""
        if own_pids:
            return self.in_some(("mount", "ipc"), *words, around=("unshare", "--pid", "--fork", "--mount-proc"))
        return self.in_some(("mount", "ipc", "pid"), *words)

    def in_some(self, namespaces: Sequence[str], *words: str, around: Sequence[str] = ()) -> Any:
        """Run `shmq` in these namespaces of the box and in our own else; `around` starts it."""
        enter = ["nsenter", "--target", str(self.init), *(f"--{each}" for each in namespaces)]
        command = [*enter, *around, sys.executable, "-m", "shmq", *words]
        environment = {**os.environ, "SHMQ_URL": f"shmq://{self.directory}/run/box"}
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=DEADLINE_SECONDS, check=False
        )

    def stop(self) -> None:
        if self.process.poll() is None:
            self.inside("stop")
            self.process.wait(DEADLINE_SECONDS)


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Box]:
    made = Box(tmp_path_factory.mktemp("box"), shm_mebibytes=64)
    yield made
    made.stop()


@pytest.mark.slow
@needs_namespaces
def test_docker_s_small_memory_is_enough_to_start_and_to_share(box: Box) -> None:
    assert box.wait()["broker"] == "box"
    assert box.inside("produce", "orders", "42 apples").returncode == 0
    consumed = box.inside("consume", "orders", "-n", "1", "--json")
    assert json.loads(consumed.stdout)["messages"][0]["body"] == "42 apples", consumed


@pytest.mark.slow
@needs_namespaces
def test_nothing_of_it_is_seen_outside(box: Box) -> None:
    box.wait()
    assert not [name for name in os.listdir("/dev/shm") if name.startswith("shmq.box.")]


@pytest.mark.slow
@needs_namespaces
def test_a_client_that_shares_the_memory_and_not_the_process_numbers_learns_what_is_missing(box: Box) -> None:
    box.wait()
    refused = box.inside("produce", "orders", "x", "--json", own_pids=True)
    document = json.loads(refused.stderr)
    assert refused.returncode != 0 and re.search("namespace", document["error"]), document
    assert "pid" in document["hint"]


SOME = [[], ["ipc"], ["mount"], ["mount", "ipc"], ["pid"], ["pid", "ipc"], ["pid", "mount"]]


@pytest.mark.slow
@needs_namespaces
@pytest.mark.parametrize("shared", SOME, ids=lambda shared: "+".join(shared) or "none")
def test_a_client_that_shares_only_some_namespaces_gets_the_reason_at_once(box: Box, shared: list[str]) -> None:
    box.wait()
    refused = box.in_some(shared, "produce", "orders", "x", "--json")
    document = json.loads(refused.stderr)
    assert refused.returncode == 77 and "namespace" in document["error"] and document["hint"], document


@pytest.mark.slow
@needs_namespaces
@pytest.mark.parametrize("shared", SOME, ids=lambda shared: "+".join(shared) or "none")
def test_health_calls_no_process_dead_that_it_cannot_see(box: Box, shared: list[str]) -> None:
    box.wait()
    for words in (["health", "--json"], ["health", "--fast", "--json"]):
        if set(shared) == {"pid", "mount"}:  # nothing is missing but the kernel's count of the attached
            well = eventually(lambda words=words: _if_well(box.in_some(shared, *words)), "the broker to be well")
            assert well["presence"]["counted"] is None, well
            continue
        looked = box.in_some(shared, *words)
        document = json.loads(looked.stdout)
        assert (looked.returncode, document["verdict"]) == (3, "UNKNOWN"), looked.stdout
        [unknown] = [found for found in document["findings"] if found["verdict"] == "UNKNOWN"]
        assert "PID namespace" in unknown["what"] and unknown["do"] and "serve" not in unknown["do"]
        assert document["processes"] == []


def _if_well(looked: subprocess.CompletedProcess[str]) -> Any:
    return json.loads(looked.stdout) if looked.returncode == 0 else None


@pytest.mark.slow
@needs_namespaces
def test_a_broker_whose_memory_lies_elsewhere_is_not_taken_for_one_that_does_not_run(box: Box) -> None:
    box.wait()
    elsewhere = ("unshare", "--mount", "sh", "-c", 'mount -t tmpfs tmpfs /dev/shm && exec "$@"', "sh")
    refused = box.in_some(("mount", "ipc", "pid"), "produce", "orders", "x", "--json", around=elsewhere)
    document = json.loads(refused.stderr)
    assert refused.returncode == 77 and 'broker "box" answers' in document["error"], document
    assert "--ipc=container" in document["hint"] and "serve" not in document["hint"]


@pytest.mark.slow
@needs_namespaces
@pytest.mark.parametrize(
    "words", [["produce", "orders", "x"], ["consume", "orders", "-n", "1"]], ids=lambda words: words[0]
)
def test_a_client_without_the_log_at_its_path_is_refused_before_its_first_message(box: Box, words: list[str]) -> None:
    box.wait()
    store = box.directory / "store"
    bare = ("unshare", "--mount", "sh", "-c", f'mount -t tmpfs tmpfs {store} && exec "$@"', "sh")
    refused = box.in_some(("mount", "ipc", "pid"), *words, "--json", around=bare)
    document = json.loads(refused.stderr)
    assert refused.returncode == 77 and f"{store}/commitlog" in document["error"], document
    assert f"mount {store} at the same path" in document["hint"]


@pytest.mark.slow
@needs_namespaces
def test_a_memory_that_is_too_small_is_a_sentence_at_the_start(tmp_path: Path) -> None:
    tiny = Box(tmp_path, shm_mebibytes=4)
    assert tiny.process.wait(DEADLINE_SECONDS) == 73
    said = tiny.ready.read_text() + (tmp_path / "log").read_text()
    assert "--shm-size" in said and "/dev/shm has" in said


def test_the_dockerfile_runs_what_there_is() -> None:
    text = (DEPLOY / "Dockerfile").read_text()
    assert re.search(r"^USER shmq$", text, re.M) and "root" not in text
    assert text.index("groupadd") < text.index("USER shmq") < text.index("ENTRYPOINT")
    [serve] = re.findall(r"^CMD (\[.*\])$", text, re.M)
    [program] = re.findall(r"^ENTRYPOINT (\[.*\])$", text, re.M)
    assert (json.loads(program), json.loads(serve)[0]) == (["shmq"], "serve")


def test_the_compose_file_shares_what_the_document_says() -> None:
    text = (DEPLOY / "compose.yaml").read_text()
    for line in ("ipc: shareable", 'ipc: "service:shmq"', 'pid: "service:shmq"', "shm_size: 2gb"):
        assert line in text, line
    broker, app = text.partition("\n  app:\n")[::2]
    for volume in ("- run:/run/shmq", "- store:/var/lib/shmq"):  # socket and log, at one path for both
        assert volume in broker and volume in app.partition("\nvolumes:")[0], volume
    pages = []
    for page in (ROOT / "README.md", *ROOT.glob("docs/**/*.md")):
        if found := re.findall(r"^  app:(?:.|\n)*?volumes: (\[.*?\])", page.read_text(), re.M):
            pages.append(page)
            assert all("run:/run/shmq" in each and "store:/var/lib/shmq" in each for each in found), page
    assert ROOT / "docs/operations.md" in pages
    built = re.search(r"^# docker build .* -t (\w+) \.$", (DEPLOY / "Dockerfile").read_text(), re.M)
    assert built is not None
    assert set(re.findall(r"^    image: (\S+)$", text, re.M)) == {built[1]}, "an image that cannot be pulled or built"
    assert re.findall(r"^    command: (\w+)", app, re.M) == ["tail"]  # it waits, as an application does
    [command] = re.findall(r"^    command: (.*)$", broker, re.M)
    options = command.split()
    known = subprocess.run(
        [sys.executable, "-m", "shmq", "serve", "--help"], capture_output=True, text=True, check=True, timeout=60
    ).stdout
    assert options[0] == "serve" and all(word in known for word in options if word.startswith("--"))
    published = re.findall(r'^      - "([^"]+)"$', text, re.M)
    assert published and all(each.startswith("127.0.0.1:") for each in published)


def test_links_of_the_document_lead_somewhere() -> None:
    page = ROOT / "docs/operations.md"
    linked = re.findall(r"\]\(([\w./-]+)(?:#[\w-]+)?\)", page.read_text())
    assert linked and [path for path in linked if not (page.parent / path).exists()] == []
