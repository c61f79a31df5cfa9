"""A real etcd of one member, and a certificate authority for it."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.deadline import eventually
from tests.interop.peers.process import Child, accepts
from tests.ports import free_ports

DEADLINE = 60


def needs_etcd() -> pytest.MarkDecorator:
    """A mark for tests that need the server."""
    return pytest.mark.skipif(shutil.which("etcd") is None, reason="etcd is not installed: apt-get install etcd-server")


class Certificates(NamedTuple):
    """Of an authority, a server at 127.0.0.1, and a client."""

    ca: Path
    server: tuple[Path, Path]
    client: tuple[Path, Path]


def make_certificates(folder: Path) -> Certificates:
    """Make them."""
    ca, ca_key = folder / "ca.pem", folder / "ca.key"
    ec = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    _openssl("req", "-x509", *ec, "-days", "2", "-subj", "/CN=test authority", "-keyout", ca_key, "-out", ca)
    pairs = []
    for name in ("server", "client"):
        cert, key, wish, more = (folder / f"{name}.{end}" for end in ("pem", "key", "csr", "ext"))
        more.write_text("subjectAltName=IP:127.0.0.1\nextendedKeyUsage=serverAuth,clientAuth\n")
        _openssl("req", *ec, "-subj", f"/CN={name}", "-keyout", key, "-out", wish)
        _openssl(
            "x509", "-req", "-in", wish, "-CA", ca, "-CAkey", ca_key, "-CAcreateserial", "-days", "2",
            "-extfile", more, "-out", cert,
        )  # fmt: skip
        pairs.append((cert, key))
    return Certificates(ca, pairs[0], pairs[1])


class EtcdServer:
    """One etcd on loopback; its data stay when it is stopped.

    Args:
        name: of the member.
        address: where it listens.
    """

    def __init__(
        self,
        folder: Path,
        certificates: Certificates | None = None,
        *,
        name: str = "one",
        address: str = "127.0.0.1",
    ) -> None:
        folder.mkdir(exist_ok=True)
        self._folder, self._name = folder, name
        self._port = free_ports()
        self._peer = f"http://{address}:{free_ports()}"
        self.member = f"{name}={self._peer}"
        self.cluster = self.member  # every member, as in etcd's configuration
        self._certificates = certificates
        self.scheme = "http" if certificates is None else "https"
        self.endpoint = f"{self.scheme}://{address}:{self._port}"
        self._life = 0
        self._child: Child | None = None

    def start(self) -> None:
        """Start it on its data, and wait until it serves."""
        self.begin()
        self.wait()

    def begin(self) -> None:
        """Start it on its data."""
        self._life += 1
        command: list[str | Path] = [
            "etcd", "--name", self._name, "--data-dir", self._folder / "data", "--listen-client-urls", self.endpoint,
            "--advertise-client-urls", self.endpoint, "--listen-peer-urls", self._peer,
            "--initial-advertise-peer-urls", self._peer, "--initial-cluster", self.cluster,
        ]  # fmt: skip
        if self._certificates is not None:
            cert, key = self._certificates.server
            command += ["--cert-file", cert, "--key-file", key]
            command += ["--client-cert-auth", "--trusted-ca-file", self._certificates.ca]
        self._child = Child(command, self._folder / f"etcd.{self._life}.log")

    def wait(self) -> None:
        """Wait until it serves."""
        eventually(self._is_ready, f"etcd at {self.endpoint} serves; log in {self._folder}", timeout=DEADLINE)

    def stop(self) -> None:
        """End it."""
        if self._child is not None:
            self._child.stop()
            self._child = None

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._child is not None
        return self._child.process

    def post(self, path: str, body: bytes, headers: dict[str, str] | None = None) -> bytes:
        """Ask it something that the client under test does not know."""
        request = urllib.request.Request(f"{self.endpoint}{path}", body, headers or {})
        with urllib.request.urlopen(request, timeout=DEADLINE) as answer:
            read: bytes = answer.read()
        return read

    def _is_ready(self) -> bool:
        if self._certificates is not None:
            return accepts(f"127.0.0.1:{self._port}")
        try:
            with urllib.request.urlopen(f"{self.endpoint}/health", timeout=DEADLINE) as answer:
                return b"true" in answer.read()
        except (urllib.error.URLError, OSError):
            return False


@contextlib.contextmanager
def three_members(folder: Path) -> Iterator[list[EtcdServer]]:
    """A cluster that goes on without one of them."""
    members = [EtcdServer(folder / name, name=name) for name in ("one", "two", "three")]
    with contextlib.ExitStack() as running:
        for member in members:
            member.cluster = ",".join(other.member for other in members)
            running.callback(member.stop)
            member.begin()
        for member in members:
            member.wait()
        yield members


def _openssl(*arguments: Any) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True, timeout=DEADLINE)
