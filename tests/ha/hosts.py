"""Hosts of their own on this one: namespaces for network, mounts, processes and memory, joined by a virtual cable.

    Host("10.0.0.4")  veth ─────────── veth  Host("10.0.0.5")        each has its own /dev/shm, /run and store

A host dies as a whole: its first process is killed, and the kernel ends everything in it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deadline import eventually

DEADLINE_SECONDS = 60.0
_TOOLS = ("unshare", "nsenter", "mount", "ip", "sleep")
_UNSHARE = ("unshare", "--net", "--mount", "--ipc", "--pid", "--fork", "--mount-proc", "--kill-child=SIGKILL")
_MOUNTS = "mount -t tmpfs -o size=512m,mode=1777 tmpfs /dev/shm && mount -t tmpfs tmpfs /run && exec sleep infinity"


def may_make_hosts() -> bool:
    """Whether this user may make namespaces of every kind here."""
    if os.geteuid() != 0 or any(shutil.which(tool) is None for tool in _TOOLS):
        return False
    command = [*_UNSHARE, "ip", "link", "set", "lo", "up"]
    return subprocess.run(command, capture_output=True, check=False, timeout=DEADLINE_SECONDS).returncode == 0


needs_hosts = pytest.mark.skipif(not may_make_hosts(), reason="no rights to make namespaces here, or no iproute2")


class Host:
    """One host; `directory` holds its store and what its programs print."""

    def __init__(self, address: str, directory: Path) -> None:
        directory.mkdir()
        self.address = address
        self.directory = directory
        self.programs: list[subprocess.Popen[bytes]] = []
        self._outer = subprocess.Popen([*_UNSHARE, "sh", "-c", _MOUNTS], stdin=subprocess.DEVNULL)
        children = Path(f"/proc/{self._outer.pid}/task/{self._outer.pid}/children")
        self.first_pid = int(eventually(lambda: children.read_text().split(), lambda: "no process in the host")[0])
        sleeps = Path(f"/proc/{self.first_pid}/comm")
        eventually(lambda: sleeps.read_text().strip() == "sleep", lambda: "the host's mounts are not made")
        self._network = os.open(f"/proc/{self.first_pid}/ns/net", os.O_RDONLY)  # its end of the cable outlives it

    def command(self, text: str) -> list[str]:
        """What a command of this host's shell is here."""
        kinds = ("--net", "--mount", "--ipc", "--pid")
        where = f"--wd={self.directory}"  # in another mount namespace it would be /
        return ["nsenter", "--target", str(self.first_pid), *kinds, where, "sh", "-c", text]

    @property
    def environment(self) -> dict[str, str]:
        """That of a user of this host, whose `shmq` is the one that is tested."""
        names = ("PYTEST_ADDOPTS", "PYTHONSAFEPATH", "SHMQ_URL", "SHMQ_RUNTIME_DIR", "XDG_RUNTIME_DIR")
        kept = {name: value for name, value in os.environ.items() if name not in names}
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        return {**kept, "PATH": path, "SHMQ_STORE": str(self.directory / "store"), "HOME": str(self.directory)}

    def start(self, text: str) -> Path:
        """Run a command beside the others; returns the file with what it prints."""
        log = self.directory / f"program-{len(self.programs)}"
        with log.open("wb") as file:
            self.programs.append(
                subprocess.Popen(
                    self.command(f"exec {text}"),
                    cwd=self.directory,
                    env=self.environment,
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                )
            )
        return log

    def run(self, text: str, *, status: int = 0) -> str:
        """Run a command to its end; returns what it prints."""
        done = subprocess.run(
            self.command(text),
            cwd=self.directory,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=DEADLINE_SECONDS,
            check=False,
        )
        assert done.returncode == status, (text, done.returncode, done.stdout, done.stderr)
        return done.stdout

    def die(self) -> None:
        """Cut the cable, and end everything that runs on the host at once; the other host keeps its address."""
        self.run("ip link set cable down")
        self.end()

    def end(self) -> None:
        """End everything that runs on the host."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.first_pid, signal.SIGKILL)
        self._outer.wait(DEADLINE_SECONDS)
        for program in self.programs:
            program.wait(DEADLINE_SECONDS)

    def close(self) -> None:
        """End it, and let go of its network."""
        self.end()
        os.close(self._network)


@contextlib.contextmanager
def two_hosts(directory: Path, first: str, second: str) -> Iterator[tuple[Host, Host]]:
    """Two hosts that are joined by a cable; both are gone afterwards."""
    with contextlib.ExitStack() as living:
        hosts = []
        for number, address in enumerate((first, second)):
            hosts.append(Host(address, directory / f"host-{number}"))
            living.callback(hosts[-1].close)
        ours, theirs = hosts
        cable = f"ip link add cable netns {ours.first_pid} type veth peer name cable netns {theirs.first_pid}"
        subprocess.run(cable.split(), check=True, timeout=DEADLINE_SECONDS)
        for host in hosts:
            host.run(f"ip link set lo up && ip address add {host.address}/24 dev cable && ip link set cable up")
        yield ours, theirs
