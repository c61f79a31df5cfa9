"""Whether the C core that is loaded was built of the sources that lie here.

A checkout keeps its core between pulls: new Python then runs with an old core, which at best lacks a name and at worst
computes what it used to. So a build writes down a digest of its sources, which a checkout can compare.

    setup.py   digest(folder) ─▶ SHMQ_SOURCES ─▶ _core.SOURCES     is compared with digest(folder), see old_core.py

Invariant: where no sources lie, as in an installed package, nothing is compared.
"""

from __future__ import annotations

import hashlib
import os

_ENDINGS = (".c", ".h")


def digest(folder: str) -> str:
    """Return 16 hexadecimal digits that stand for all sources below a folder: their places and what is in them."""
    paths = (os.path.join(place, name) for place, _, names in os.walk(folder) for name in names)
    total = hashlib.sha256()
    for path in sorted(path for path in paths if path.endswith(_ENDINGS)):
        with open(path, "rb") as source:
            content = source.read()
        total.update(f"{os.path.relpath(path, folder)}\0{len(content)}\0".encode())
        total.update(content)
    return total.hexdigest()[:16]


def other_sources(folder: str, core_path: str, built_of: str | None) -> str:
    """Return what is wrong with a core that was built of other sources than those below a folder; "" if nothing is.

    Args:
        built_of: the digest it carries; "" for a core that was built without one, None for one of an older build.
    """
    try:
        if built_of == "" or not os.path.isdir(os.path.join(folder, "core")) or digest(folder) == built_of:
            return ""
    except OSError:  # a file that went away: nothing can be said
        return ""
    return f"the C core {core_path} was built of other sources than those in {folder}"
