"""The processors a wheel is built for: this host's own, and others through a cross compiler.

What differs is said to the build in its environment: the compiler, and the name that setuptools would take from this
host. The headers are those of the Python that builds; on 64-bit Linux with glibc they say the same for each processor.
"""

from __future__ import annotations

import platform
import shutil
from collections.abc import Mapping
from typing import Final, NamedTuple

from shmq.tools.release.steps import Failure

CROSS: Final = {"aarch64": ("aarch64-linux-gnu-gcc", "gcc-aarch64-linux-gnu libc6-dev-arm64-cross")}
"""The compiler for each other processor, and the packages of Debian that bring it."""
HERE: Final = platform.machine()


class Machine(NamedTuple):
    """A processor, as `uname -m` names it."""

    name: str = HERE

    def settings(self, version: str) -> Mapping[str, str]:
        """Return what the build for a version of Python has to know beside its environment.

        Raises:
            Failure: the compiler is not here; names its packages.
        """
        if self.name == HERE:
            return {}
        compiler, packages = CROSS[self.name]
        if shutil.which(compiler) is None:
            raise Failure(f"{compiler} is not on the path; on Debian: apt install {packages}")
        return {
            "CC": compiler,
            "LDSHARED": f"{compiler} -shared",
            "_PYTHON_HOST_PLATFORM": f"linux-{self.name}",
            "SETUPTOOLS_EXT_SUFFIX": f".cpython-{version.replace('.', '')}-{self.name}-linux-gnu.so",
        }
