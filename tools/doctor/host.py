"""Small texts of the kernel and of the system's configuration, read below one root directory.

A file that is missing or may not be read is an empty text; the check says then what it could not see. Tests give a root
of their own; `/` is the host.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from shmq.store.mounts import MOUNTS, Mount, mount_of

_READ_BYTES_MAX = 1 << 20
_CONTAINER_GROUPS = ("docker", "kubepods", "containerd", "libpod", "lxc")
UNLIMITED = -1


@dataclass(frozen=True)
class Host:
    """The host whose `/` is `root`."""

    root: Path = Path("/")

    def text(self, path: str) -> str:
        """Return the text of a file, "" when there is none to be read."""
        try:
            with open(self.root / path.lstrip("/"), errors="replace") as file:
                return file.read(_READ_BYTES_MAX)
        except OSError:
            return ""

    def number(self, path: str) -> int | None:
        """Return the first number of a file, None when there is none."""
        words = self.text(path).split()
        return int(words[0]) if words and re.fullmatch(r"-?\d+", words[0]) else None

    def exists(self, path: str) -> bool:
        """Say whether there is such a file or directory."""
        try:
            return (self.root / path.lstrip("/")).exists()
        except OSError:
            return False

    def texts(self, directory: str, pattern: str) -> Iterator[str]:
        """Yield the texts of the files of a directory, by name."""
        for path in sorted((self.root / directory.lstrip("/")).glob(pattern)):
            yield self.text(str(path.relative_to(self.root)))

    def limits(self, pid: int | str = "self", *, hard: bool = False) -> dict[str, int]:
        """Return the soft or hard limits of a process by the kernel's names ("Max open files"); UNLIMITED is -1."""
        found = {}
        for line in self.text(f"/proc/{pid}/limits").splitlines()[1:]:
            name, *values = re.split(r"\s{2,}", line.strip())
            if len(values) > 1:
                found[name] = UNLIMITED if values[hard] == "unlimited" else int(values[hard])
        return found

    def mount_of(self, path: str) -> Mount | None:
        """Return the file system that holds an absolute path, None when the kernel does not say."""
        return mount_of(path, self.text(MOUNTS))

    @property
    def is_container(self) -> bool:
        """Whether this looks like the inside of a container."""
        groups = self.text("/proc/1/cgroup")
        return (
            self.exists("/.dockerenv")
            or self.exists("/run/.containerenv")
            or any(name in groups for name in _CONTAINER_GROUPS)
        )
