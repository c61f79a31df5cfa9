"""The native extension; every other setting lives in setup.cfg."""

from glob import glob

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            name="shmq.bindings._core",
            sources=sorted(glob("bindings/**/*.c", recursive=True)),
            depends=sorted(glob("bindings/**/*.h", recursive=True)),
            include_dirs=["bindings"],
            define_macros=[("_GNU_SOURCE", None)],
            extra_compile_args=["-std=c11", "-O2", "-flto", "-Wall", "-Wextra", "-Werror", "-fvisibility=hidden"],
            extra_link_args=["-O2", "-flto"],
        )
    ]
)
