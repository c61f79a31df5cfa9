"""Logs in shared memory that are written in Java: Chronicle Queue, which is on disk, and Aeron IPC, which is not.

    parent     starts both ends · syncs Chronicle's files every 500 ms and removes those that are 10 s old
    consumer   a JVM that takes until the end      producer   a JVM that sends until the end

Both JVMs run for some seconds before the first that counts, so that what is measured is compiled. Each prints how many
messages it took or sent in each second; what the consumer took counts.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from benchmarks.workload import PeerAbsent
from shmq.measurement.measure import median
from tests.interop.peers.cache import PeerMissing, program
from tests.interop.peers.registry import DEFAULT_JDK, class_path, compiled, jars

HERE = Path(__file__).resolve().parent / "java"
POM = HERE / "pom.xml"
SYNC_SECONDS = 0.5
KEPT_SECONDS = 10.0
WARM_UP_SECONDS = 8
END_SECONDS_MAX = 30.0
# What Chronicle's own documentation asks of a JVM since 17.
_OPENED = [
    *("--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED", "--add-exports=java.base/sun.nio.ch=ALL-UNNAMED"),
    "--add-exports=jdk.unsupported/sun.misc=ALL-UNNAMED",
    "--add-exports=jdk.compiler/com.sun.tools.javac.file=ALL-UNNAMED",
    *("--add-opens=jdk.compiler/com.sun.tools.javac=ALL-UNNAMED", "--add-opens=java.base/java.lang=ALL-UNNAMED"),
    *("--add-opens=java.base/java.lang.reflect=ALL-UNNAMED", "--add-opens=java.base/java.io=ALL-UNNAMED"),
    *("--add-opens=java.base/java.util=ALL-UNNAMED", "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED"),
    *("--add-opens=java.base/java.nio=ALL-UNNAMED", "--add-opens=java.base/jdk.internal.misc=ALL-UNNAMED"),
]
PROGRAMS = {"chronicle queue": ("Chronicle", "chronicle-queue-2026.4"), "aeron ipc": ("AeronIpc", "aeron-1.51.0")}


@cache
def _command(name: str) -> list[str]:
    main, profile = PROGRAMS[name]
    try:
        libraries = [jars(each, POM) for _, each in PROGRAMS.values()]
        classes = compiled("rivals", sorted(HERE.glob("*.java")), class_path(*libraries))
        java = program("java", DEFAULT_JDK)
    except PeerMissing as reason:
        raise PeerAbsent(str(reason)) from None
    quiet = ["-Dchronicle.analytics.disable=true", "-Dchronicle.announcer.disable=true"]
    return [java, "-Xmx512m", *quiet, *_OPENED, "-cp", class_path(classes, jars(profile, POM)), main]


def sustained(name: str, seconds: int, size: int = 256) -> Mapping[str, float]:
    """Messages a second from one process to another: the mean, the median second and the worst.

    Raises:
        PeerAbsent: there is no JVM, or its libraries cannot be had.
    """
    command = _command(name)
    with tempfile.TemporaryDirectory(prefix="bench-java-", dir="/dev/shm" if name == "aeron ipc" else None) as place:
        begin = time.time() + WARM_UP_SECONDS
        words = [f"{place}/log", str(int(begin * 1000)), str(seconds), str(size)]
        ends = []
        for role in ("consume", "produce"):
            full = [*command, role, *words]
            ends.append(subprocess.Popen(full, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
            time.sleep(1.0 if role == "consume" else 0.0)  # Aeron's driver is in the consumer
        try:
            while any(end.poll() is None for end in ends) and time.time() < begin + seconds + END_SECONDS_MAX:
                time.sleep(SYNC_SECONDS)
                _care(Path(place, "log"))
            said = [end.communicate(timeout=1) for end in ends]
        finally:
            for end in ends:
                end.kill()
                end.wait()
    taken, complaint = said[0]
    if any(end.returncode for end in ends) or not taken.strip():
        raise PeerAbsent(f"{name} failed: {(complaint or said[1][1]).strip()[-400:]}")
    each = [float(word) for word in taken.split()[-seconds:]]
    return {"rate": sum(each) / len(each), "median": median(each), "worst": min(each)}


def _care(directory: Path) -> None:
    """Sync the newest files of a queue, and remove the old ones, as shmq's keeper does with its own."""
    files = sorted(directory.glob("*.cq4"))
    for file in files[-2:]:
        with contextlib.suppress(OSError):
            descriptor = os.open(file, os.O_RDWR)
            try:
                os.fdatasync(descriptor)
            finally:
                os.close(descriptor)
    for file in files[:-2]:
        with contextlib.suppress(OSError):
            if time.time() - file.stat().st_mtime > KEPT_SECONDS:
                file.unlink()
