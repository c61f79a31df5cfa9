"""The door to named kernel objects: posix_ipc and sysv_ipc, which bring no types of their own.

Everything here is `Any` to a type checker; the callers convert what they take out.
"""

from __future__ import annotations

import posix_ipc  # type: ignore[import-untyped, import-not-found, unused-ignore]
import sysv_ipc  # type: ignore[import-untyped, import-not-found, unused-ignore]

__all__ = ["posix_ipc", "sysv_ipc"]
