"""Detects a checkout whose C core was built of other sources; see shmq.bindings.sources.

Reading all sources takes milliseconds, so no program that works pays for it: `shmq doctor` asks, and `shmq.shm.core`
does when the core lacks a name.
"""

from __future__ import annotations

import os

import shmq.bindings._core as _core
import shmq.bindings.sources as _sources

CURE = "pip install -e ."


def old_core() -> str:
    """Return what is wrong with the core that is loaded; "" where nothing is, and in every installed package."""
    folder = os.path.dirname(os.path.abspath(_sources.__file__))
    return _sources.other_sources(folder, _core.__file__, getattr(_core, "SOURCES", None))
