"""README's first five minutes as printed, from the wheel alone: no compiler, no checkout, a small /dev/shm of its own.

    broker's user   group shmq, which /etc/group has
    member          another user of that group: goes through shared memory too
    stranger        a user of no such group: its error says how to get in, and TCP lets it in

All of them live in one set of namespaces, as in a container: mounts, processes, IPC and network. Only pip runs outside,
for it needs the index.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deadline import eventually
from tests.install.conftest import ROOT
from tests.supervisor.test_namespaces import needs_namespaces

BROKER, MEMBER, STRANGER = 10911, 20001, 20002
VERSION = f"python{sys.version_info[0]}.{sys.version_info[1]}"
PROGRAMS = ("bash", "sh", "cat", "env", "sleep", "tail", "ldconfig", "uname")
"""What a host without a compiler has."""
SECONDS = 180.0
LOOPBACK_UP = "import fcntl, socket, struct; fcntl.ioctl(socket.socket(), 0x8914, struct.pack('16sh14x', b'lo', 1))"
BOX = """
mount -t tmpfs -o size=64m,mode=1777 tmpfs /dev/shm && mount -t tmpfs -o mode=755 tmpfs /run &&
mount --bind "$1/group" /etc/group && mkdir -m 750 /run/shmq && chown 10911:10911 /run/shmq &&
"$2" -c "$3" && touch "$1/ready" && exec sleep infinity
"""
pytestmark = [needs_namespaces, pytest.mark.slow, pytest.mark.timeout(900)]


def command_of(user: int, groups: str) -> list[str]:
    """What stands before a command of a user; setpriv still looks for its program as root, env does not."""
    return ["setpriv", f"--reuid={user}", f"--regid={groups.partition(',')[0]}", f"--groups={groups}", "env"]


def interpreter() -> str:
    """A Python of our version that any user may run, and that makes environments."""
    for candidate in (sys.executable, shutil.which(VERSION, path="/usr/local/bin:/usr/bin")):
        test = [*command_of(STRANGER, str(STRANGER)), candidate or "false", "-c", "import ensurepip, venv"]
        if subprocess.run(test, capture_output=True, check=False, cwd="/").returncode == 0:
            return os.path.realpath(candidate or "")
    pytest.skip(f"no {VERSION} that every user may run")


class Host:
    """A host with nothing but Python, and shmq from its wheel in an environment of the broker's user."""

    def __init__(self, folder: Path, wheel: Path) -> None:
        self._folder = folder
        python = interpreter()
        folder.chmod(0o755)
        (folder / "programs").mkdir(mode=0o755)
        for name in PROGRAMS:
            if found := shutil.which(name):
                (folder / "programs" / name).symlink_to(found)
        (folder / "group").write_text(Path("/etc/group").read_text() + f"shmq:x:{BROKER}:\n")
        for user in (BROKER, MEMBER, STRANGER):
            home = self.home(user)
            home.mkdir()
            shutil.copy(ROOT / "README.md", home)
            for path in (home, home / "README.md"):
                os.chown(path, user, user)
        shutil.copy(wheel, folder)
        (folder / wheel.name).chmod(0o644)
        self._outside(python, "-m", "venv", str(folder / "home-10911/venv"))
        self._outside("python", "-m", "pip", "install", "-q", str(folder / wheel.name))
        self.home(BROKER).chmod(0o755)  # the programs are for all users
        box = ["unshare", "--mount", "--ipc", "--pid", "--net", "--fork", "--mount-proc", "--kill-child=SIGKILL"]
        self._box = subprocess.Popen([*box, "sh", "-c", BOX, "sh", str(folder), sys.executable, LOOPBACK_UP])
        eventually((folder / "ready").exists, "the namespaces are there")

    def home(self, user: int) -> Path:
        return self._folder / f"home-{user}"

    def _environment(self, user: int) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if name.startswith("PIP_") or "PROXY" in name.upper()}
        path = f"{self.home(BROKER)}/venv/bin:{self._folder}/programs"
        return {**kept, "HOME": str(self.home(user)), "PATH": path, "LANG": "C.UTF-8", "PYTHONUNBUFFERED": "1"}

    def _outside(self, *command: str) -> None:
        """Run a command as the broker's user, with the network."""
        done = subprocess.run(
            [*command_of(BROKER, str(BROKER)), *command],
            env={**self._environment(BROKER), "PATH": f"{self._environment(BROKER)['PATH']}:{os.environ['PATH']}"},
            cwd=self.home(BROKER),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def start(self, user: int, command: str, *, groups: str = "", **environment: str) -> subprocess.Popen[str]:
        """Start a command as a user; its output is one stream."""
        [init] = Path(f"/proc/{self._box.pid}/task/{self._box.pid}/children").read_text().split()
        enter = ["nsenter", f"--target={init}", "--mount", "--ipc", "--pid", "--net", f"--wdns={self.home(user)}"]
        known = [f"{name}={value}" for name, value in {**self._environment(user), **environment}.items()]
        return subprocess.Popen(
            [*enter, *command_of(user, groups or str(user)), "-i", *known, "bash", "-c", command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def do(self, user: int, command: str, *, groups: str = "", **environment: str) -> str:
        """Run a command as a user; returns what it printed, and its exit status in the last line."""
        started = self.start(user, f"{command}\necho $?", groups=groups, **environment)
        return started.communicate(timeout=SECONDS)[0].rstrip("\n")

    def close(self) -> None:
        """End everything that runs there."""
        self._box.kill()
        self._box.wait(SECONDS)


@pytest.fixture(scope="module")
def host(archives: tuple[Path, Path, Path]) -> Iterator[Host]:
    """The broker runs, started as README says."""
    with tempfile.TemporaryDirectory(prefix="shmq-install-", dir="/tmp") as folder:
        made = Host(Path(folder), archives[1])
        try:
            serve = made.start(BROKER, "exec shmq serve", SHMQ_RUNTIME_DIR="/run/shmq")
            assert serve.stdout is not None
            until(serve, "ready in")
            yield made
            press_ctrl_c(serve)
        finally:
            made.close()


def until(process: subprocess.Popen[str], words: str) -> str:
    """What a process prints up to a line with these words."""
    assert process.stdout is not None
    printed = ""
    for line in process.stdout:
        printed += line
        if words in line:
            return printed
    raise AssertionError(f"{words!r} is not in\n{printed}")


def press_ctrl_c(process: subprocess.Popen[str]) -> None:
    """Interrupt what runs in the namespaces, too: the process that entered them waits for it in its group."""
    os.killpg(process.pid, signal.SIGINT)
    process.communicate(timeout=SECONDS)


def section() -> str:
    return (ROOT / "README.md").read_text().partition("## The first five minutes")[2].partition("\n## ")[0]


def commands() -> list[str]:
    [block] = re.findall(r"^```console\n(.*?)^```$", section(), re.M | re.S)
    return [re.sub(r"\s+#\s.*$", "", line[2:]) for line in block.splitlines() if line.startswith("$ ")]


def five_minutes(host: Host, user: int, groups: str = "") -> None:
    """Paste the section; the measurement, which takes long, shows its options only."""
    last = (ROOT / "README.md").read_text().splitlines()[-1]
    for command in commands():
        if command == "shmq consume hello":
            consuming = host.start(user, f"exec {command}", groups=groups)
            until(consuming, last)
            press_ctrl_c(consuming)
            continue
        printed = host.do(user, command + (" --help" if command == "shmq bench" else ""), groups=groups)
        assert printed.splitlines()[-1] == "0", f"{command}\n{printed}"
    [program] = re.findall(r"^```python\n(.*?)^```$", section(), re.M | re.S)
    (host.home(user) / "orders.py").write_text(program)
    running = host.start(user, "exec python orders.py", groups=groups)
    assert "order-42 fruit b'42 apples'" in until(running, "42 apples")
    press_ctrl_c(running)


def test_the_broker_s_user_has_his_first_five_minutes(host: Host) -> None:
    assert "no gcc" in host.do(BROKER, "type gcc cc clang >/dev/null 2>&1 || echo no gcc")
    five_minutes(host, BROKER)


def test_another_user_of_the_group_has_the_same(host: Host) -> None:
    five_minutes(host, MEMBER, f"{MEMBER},{BROKER}")
    assert "<shmq.Connection shmq:///run/shmq/default" in host.do(
        MEMBER, "python -c 'import shmq; print(shmq.connect())'", groups=f"{MEMBER},{BROKER}"
    )


def test_a_stranger_gets_how_to_get_in_and_gets_in_over_tcp(host: Host) -> None:
    refused = host.do(STRANGER, "shmq produce hello x")
    assert refused.splitlines()[-1] == "77" and "usermod -aG shmq" in refused, refused
    [url] = re.findall(r"rocketmq://[\w.:]+", refused)
    assert host.do(STRANGER, "shmq produce hello x", SHMQ_URL=url).splitlines()[-1] == "0"


def test_a_missing_extra_is_named_in_the_error(host: Host) -> None:
    for command, extra in (
        ("shmq query 'select 1'", "sql"),
        ("shmq console", "console"),
        ("python -c 'import shmq.contrib.kombu'", "celery"),
        ("python -c 'import shmq.contrib.faststream'", "faststream"),
    ):
        assert f"pip install 'shmq[{extra}]'" in host.do(BROKER, command), command
