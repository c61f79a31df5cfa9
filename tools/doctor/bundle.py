"""A file for a bug report: what doctor saw, and enough around it to understand it, without a message or a secret.

    report.txt doctor.json   the findings           segments.txt   /dev/shm and SysV objects
    snapshot.json            the observer's figures store.txt      files of the store: names, sizes, times
    options.json             the broker's settings  processes/*    status and limits of the broker's processes
    environment.json         versions, SHMQ_ names  logs/*         the last lines the broker wrote

Left out on purpose: message bodies, properties and keys (no log, unit or index file is packed), accounts and keys (only
the paths of such files appear), values of environment variables, command lines of clients.
"""

from __future__ import annotations

import io
import json
import os
import platform
import tarfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from shmq.errors import UsageError
from shmq.figures.quantity import iso_text
from shmq.figures.verdict import Finding
from shmq.plain_file import allocated_bytes, open_plain
from shmq.shm.core import ABI
from shmq.shm.segment import SHM_DIRECTORY
from shmq.tools.doctor.case import Case
from shmq.tools.doctor.report import document
from shmq.version import __version__

LOG_BYTES = 128 << 10
STORE_FILES_MAX = 5000
_PROC_FILES = ("status", "limits", "cgroup", "sched", "wchan")


def default_path(case: Case) -> Path:
    """Return where a bundle goes when no file is named."""
    return Path(f"shmq-{case.place.broker_name}-{time.strftime('%Y%m%d-%H%M%S')}.tar.gz")


def write_bundle(path: Path, case: Case, findings: Sequence[Finding], text: str) -> list[str]:
    """Write the bundle, readable for its owner alone, and return the names of its parts.

    Raises:
        UsageError: the file exists, or cannot be made.
    """
    parts = {
        "report.txt": text,
        "doctor.json": _json(document(case, findings)),
        "snapshot.json": _json(case.snapshot.document()),
        "options.json": _json(case.options),
        "environment.json": _json(_environment(case)),
        "segments.txt": _segments(case),
        "store.txt": _store(Path(case.store_path)),
        **_processes(case),
        **_logs(case),
    }
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise UsageError(f"{path} cannot be made: {error.strerror}", hint="shmq doctor --bundle FILE") from error
    with open(descriptor, "wb") as file, tarfile.open(fileobj=file, mode="w:gz") as archive:
        for name, content in parts.items():
            data = content.encode(errors="replace")
            entry = tarfile.TarInfo(f"{path.name.removesuffix('.tar.gz')}/{name}")
            entry.size, entry.mode, entry.mtime = len(data), 0o600, int(time.time())
            archive.addfile(entry, io.BytesIO(data))
    return list(parts)


def _json(value: Any) -> str:
    return json.dumps(value, indent=1, ensure_ascii=False, default=str) + "\n"


def _environment(case: Case) -> dict[str, Any]:
    return {
        "time": iso_text(int(time.time() * 1000)),
        "version": __version__,
        "abi": ABI,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "container": case.host.is_container,
        "variables": sorted(name for name in os.environ if name.startswith("SHMQ_")),
        "uid": os.geteuid(),
    }


def _segments(case: Case) -> str:
    lines = []
    for name in sorted(os.listdir(SHM_DIRECTORY)):
        if name.startswith(("shmq.", "sem.shmq.")):
            lines.append(_listed(SHM_DIRECTORY / name))
    kernel = (f"== {path}\n{case.host.text(path)}" for path in ("/proc/sysvipc/shm", "/proc/sysvipc/sem"))
    return "\n".join([f"== {SHM_DIRECTORY}", *lines, *kernel])


def _listed(path: Path) -> str:
    try:
        status = os.lstat(path)
    except OSError as error:
        return f"{path}: {error.strerror}"
    changed = iso_text(int(status.st_mtime * 1000))
    taken = allocated_bytes(status)
    return f"{status.st_mode:06o} {status.st_uid}:{status.st_gid} {status.st_size:>14} {taken:>14} {changed} {path}"


def _store(root: Path) -> str:
    lines, left = ["mode uid:gid size taken changed path"], STORE_FILES_MAX
    for directory, names, files in os.walk(root):
        names.sort()
        for name in sorted(files):
            left -= 1
            if left < 0:
                return "\n".join([*lines, f"… more than {STORE_FILES_MAX} files"]) + "\n"
            lines.append(_listed(Path(directory, name)))
    return "\n".join(lines) + "\n"


def _processes(case: Case) -> dict[str, str]:
    return {
        f"processes/{process.role}-{process.pid}.txt": "".join(
            f"== {name}\n{case.host.text(f'/proc/{process.pid}/{name}')}\n" for name in _PROC_FILES
        )
        for process in case.own_processes
    }


def _logs(case: Case) -> dict[str, str]:
    paths = {case.place.runtime_dir / "serve.log"}
    for process in case.own_processes:
        try:
            target = Path(os.readlink(f"/proc/{process.pid}/fd/2"))
        except OSError:
            continue
        if target.is_file():
            paths.add(target)
    logs = {f"logs/{path.name}": _tail(path) for path in sorted(paths) if path.is_file()}
    return logs or {"logs/none.txt": "no log file was found; see journalctl, or where stderr of shmq serve goes\n"}


def _tail(path: Path) -> str:
    try:
        with open(open_plain(path, os.O_RDONLY, follows_links=True), "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - LOG_BYTES))
            return file.read(LOG_BYTES).decode(errors="replace")
    except OSError as error:
        return f"{path}: {error.strerror}\n"
