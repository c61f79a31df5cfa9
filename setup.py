"""The native code; every other setting lives in setup.cfg.

The extension holds the whole core, compiled with its Python face. libshmq.so is the core alone, for programs in C; its
number is SHMQ_ABI, so a program never runs with a library whose layouts are not those it was compiled with.
"""

import os
import re
import runpy
import shutil
import sysconfig
from glob import glob
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import PlatformError

ABI = re.search(r"^#define SHMQ_ABI (\d+)u", Path("shmq/bindings/shmq.h").read_text(), re.M)[1]
LIBRARY = f"libshmq.so.{ABI}"
SOURCES = runpy.run_path("shmq/bindings/sources.py")["digest"]("shmq/bindings")
OPTIONS = ["-std=c11", "-O2", "-flto", "-Wall", "-Wextra", "-fvisibility=hidden"]
# A compiler of tomorrow may warn of what is right; only .ci/run makes that an error, an installation goes on.
if os.environ.get("SHMQ_WERROR"):
    OPTIONS.append("-Werror")


class BuildLibrary(build_ext):
    """Builds the library like an extension, under its own name and without Python in it."""

    def get_ext_filename(self, fullname):
        if fullname.endswith(".libshmq") or fullname == "libshmq":
            return str(Path(*fullname.split(".")).with_name(LIBRARY))
        return super().get_ext_filename(fullname)

    def build_extensions(self):
        compiler = self.compiler.compiler_so[0]
        header = Path(sysconfig.get_path("include"), "Python.h")
        for is_here, what in ((shutil.which(compiler), f"{compiler}, a C compiler"), (header.exists(), header)):
            if not is_here:
                raise PlatformError(
                    f"a checkout of shmq is compiled, and this host has no {what}; "
                    "on Debian: apt install gcc libc6-dev python3-dev. A wheel needs neither"
                )
        super().build_extensions()


def native(name, folder, define, link):
    return Extension(
        name=f"shmq.bindings.{name}",
        sources=sorted(glob(f"shmq/bindings/{folder}**/*.c", recursive=True)),
        depends=sorted(glob("shmq/bindings/**/*.h", recursive=True)),
        include_dirs=["shmq/bindings"],
        define_macros=[("_GNU_SOURCE", None), ("SHMQ_SOURCES", f'"{SOURCES}"'), *define],
        extra_compile_args=OPTIONS,
        extra_link_args=["-O2", "-flto", *link],
    )


setup(
    cmdclass={"build_ext": BuildLibrary},
    ext_modules=[
        native("_core", "", [], []),
        native("libshmq", "core/", [("SHMQ_LIBRARY", None)], [f"-Wl,-soname,{LIBRARY}", "-Wl,-Bsymbolic-functions"]),
    ],
)
