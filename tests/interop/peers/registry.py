"""Owns what is fetched for the tests with real peers, and where it is afterwards.

It does not know how a peer is started. Versions are here and in `pom.xml`, `go/go.mod`, `node/package.json` only.
"""

from __future__ import annotations

import hashlib
import shutil
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from tests.interop.peers.cache import PeerMissing, entry, program, run

HERE = Path(__file__).resolve().parent
PROGRAMS = HERE.parent
POM = HERE / "pom.xml"
CPP_CLIENT = "rocketmq==0.4.4"

SERVERS = {"4": "server-4.9.7", "5": "server-5.3.3"}
CLIENTS = {"4": "client-4.9.8", "5": "client-5.3.3"}
EXAMPLE = "example-5.5.0"
DEFAULT_JDK = "default-jdk-headless"


@cache
def jars(profile: str, pom: Path = POM) -> Path:
    """Return the directory with every jar of one profile of `pom.xml`."""

    def build(scratch: Path) -> None:
        program("java", DEFAULT_JDK)
        maven = program("mvn", "maven")
        words = ["-q", "-B", "-f", pom, f"-P{profile}", "dependency:copy-dependencies", f"-DoutputDirectory={scratch}"]
        run([maven, *words], scratch, f"jars of {profile}")
        if not any(scratch.glob("*.jar")):
            raise PeerMissing(f"jars of {profile}: maven copied nothing")

    program("java", DEFAULT_JDK)
    return entry(f"{profile}-{_digest(pom)}", build)


def class_path(*places: Path) -> str:
    """Return what java wants after -cp: directories of jars are taken whole."""
    return ":".join(f"{place}/*" if any(place.glob("*.jar")) else str(place) for place in places)


@cache
def java_program(version: str) -> str:
    """Compile `java/` for one client line, "4" or "5", and return the class path it runs with."""
    libraries = jars(CLIENTS[version])
    sources = sorted((PROGRAMS / "java").glob("*.java"))
    return class_path(compiled(f"java-{CLIENTS[version]}", sources, class_path(libraries)), libraries)


def compiled(name: str, sources: Sequence[Path], libraries: str) -> Path:
    """Compile Java sources against a class path and return the directory of their classes."""

    def build(scratch: Path) -> None:
        compiler = program("javac", DEFAULT_JDK)
        run([compiler, "-nowarn", "-d", scratch, "-cp", libraries, *sources], scratch, "java program")

    return entry(f"{name}-{_digest(*sources)}", build)


@cache
def python_of_cpp_client() -> Path:
    """Return the Python of a venv that has the C++ client and nothing else."""

    def build(scratch: Path) -> None:
        run([sys.executable, "-m", "venv", scratch], scratch, "C++ client")
        run([scratch / "bin" / "python", "-m", "pip", "install", "-q", CPP_CLIENT], scratch, "C++ client")

    return (
        entry(f"python-{CPP_CLIENT.replace('==', '-')}-{sys.version_info[0]}.{sys.version_info[1]}", build)
        / "bin"
        / "python"
    )


@cache
def node_program() -> list[str]:
    """Return the command that runs `node/client.js` with its packages."""
    node = program("node", "nodejs")
    sources = [PROGRAMS / "node" / name for name in ("package.json", "client.js")]

    def build(scratch: Path) -> None:
        for source in sources:
            shutil.copy(source, scratch)
        run([program("npm", "npm"), "install", "--silent", "--no-audit", "--no-fund"], scratch, "npm packages")

    return [node, str(entry(f"node-{_digest(*sources)}", build) / "client.js")]


@cache
def go_program() -> Path:
    """Return the program built from `go/`."""
    sources = sorted((PROGRAMS / "go").glob("*.*"))

    def build(scratch: Path) -> None:
        go = program("go", "golang-go")
        for source in sources:
            shutil.copy(source, scratch)
        run([go, "mod", "tidy"], scratch, "go program", GOFLAGS="-mod=mod")
        run([go, "build", "-o", scratch / "client", "."], scratch, "go program", GOFLAGS="-buildvcs=false")

    return entry(f"go-{_digest(*sources)}", build) / "client"


def _digest(*files: Path) -> str:
    content = hashlib.sha256()
    for file in files:
        content.update(file.name.encode() + b"\0" + file.read_bytes())
    return content.hexdigest()[:12]
