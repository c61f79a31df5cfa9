"""Checks of what is installed: the C core, the layout it shares with the broker, what clients run, packages."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from shmq.figures.verdict import Finding
from shmq.shm.core import ABI, Store
from shmq.shm.old_core import CURE, old_core
from shmq.tools.doctor.case import Case
from shmq.tools.doctor.finding import fail, ok, warn
from shmq.version import __version__

# distribution: what it is for, and how it comes
_OPTIONAL = {
    "uvloop": ("a quicker event loop of the bridge", "pip install uvloop"),
    "lz4": ("LZ4 bodies", "pip install 'shmq[compression]'"),
    "zstandard": ("ZSTD bodies", "pip install 'shmq[compression]'"),
    "pyarrow": ("Spark", "pip install 'shmq[spark]'"),
    "pyspark": ("Spark", "pip install 'shmq[spark]'"),
}
_CORE = re.compile(r"\s(?P<path>/\S.*/bindings/_core\.[^/]*\.so)(?P<gone> \(deleted\))?$", re.M)


def check_core(case: Case) -> Iterator[Finding]:
    """The C core: which file, built for which Python."""
    path = Path(str(sys.modules[Store.__module__].__file__))
    built = "the stable ABI" if ".abi3." in path.name else f"{sys.implementation.name} {platform.python_version()}"
    text = f"shmq {__version__}, layout {ABI}, C core for {built}"
    figures = {"version": __version__, "abi": ABI, "core": str(path), "python": platform.python_version()}
    if text_of_old := old_core():
        yield fail("installation.core", text_of_old, f"build it again: {CURE} in the checkout", **figures)
    else:
        yield ok("installation.core", text, **figures)


def check_versions(case: Case) -> Iterator[Finding]:
    """The layout of this library against the segments', and the versions of broker and clients."""
    broker = case.snapshot.broker
    if case.instance is None:
        return
    own = {process.pid for process in case.own_processes}
    local = [client for client in case.snapshot.clients if client.pid is not None and client.pid not in own]
    clients = Counter(client.version for client in local if client.alive)
    shown = ", ".join(f"{version or 'version unknown'} ({count})" for version, count in sorted(clients.items()))
    text = f"versions: broker {broker.version} layout {broker.abi}, this library {__version__} layout {ABI}"
    text += f", clients {shown}" if shown else ""
    figures = {"broker": broker.version, "abi": broker.abi, "library_abi": ABI, "clients": dict(clients)}
    if broker.abi != ABI:
        fix = f"install shmq {broker.version} here, or restart the broker with {__version__}"
        yield fail("installation.versions", f"{text}: they cannot share segments", fix, **figures)
    elif broker.version != __version__ or set(clients) - {broker.version, ""}:
        yield warn("installation.versions", f"{text}: compatible, but not the same", "restart what is older", **figures)
    else:
        yield ok("installation.versions", text, **figures)


def check_libraries(case: Case) -> Iterator[Finding]:
    """Processes that still run a library that was replaced under them."""
    seen: dict[str, list[int]] = {}
    replaced = []
    for process in (*case.own_processes, *case.clients):
        found = _CORE.search(case.host.text(f"/proc/{process.pid}/maps"))
        if found is not None:
            seen.setdefault(found["path"], []).append(process.pid)
            if found["gone"]:
                replaced.append(process.pid)
    figures = {"libraries": seen, "replaced": replaced}
    if replaced:
        pids = ", ".join(map(str, replaced))
        text = f"the library was replaced under running processes: pid {pids}"
        yield warn("installation.libraries", text, "restart them: they run the old code until then", **figures)
    elif seen:
        count = sum(map(len, seen.values()))
        # In a checkout this library was found through a link; the kernel names the file.
        ours = list(seen) == [os.path.realpath(str(sys.modules[Store.__module__].__file__))]
        which = "the same as this command" if ours else ", ".join(sorted(seen))
        yield ok("installation.libraries", f"C core of the {count} processes that take part: {which}", **figures)


def check_packages(case: Case) -> Iterator[Finding]:
    """Optional packages, and what is missing without them."""
    present, missing = {}, {}
    for name, (purpose, command) in _OPTIONAL.items():
        try:
            present[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            missing[name] = f"{name} for {purpose} ({command})"
    text = "packages: " + (", ".join(f"{name} {version}" for name, version in present.items()) or "none optional")
    text += f"; not installed: {', '.join(missing.values())}" if missing else ""
    yield ok("installation.packages", text, present=present, missing=sorted(missing))
