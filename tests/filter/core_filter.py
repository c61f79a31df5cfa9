"""The core's filter functions through ctypes, where a test needs all four outcomes and not only whether it matches."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from functools import cache

from tests.bindings.c_core import load_core

SOURCES = ("filter/filter.c", "filter/run.c", "filter/number.c")


@cache
def core() -> ctypes.CDLL:
    return declare(load_core(*SOURCES))


def declare(library: ctypes.CDLL) -> ctypes.CDLL:
    library.shmq_filter_load.argtypes = [ctypes.c_char_p, ctypes.c_size_t, ctypes.POINTER(ctypes.c_char_p)]
    library.shmq_filter_load.restype = ctypes.c_void_p
    library.shmq_filter_free.argtypes = [ctypes.c_void_p]
    library.shmq_filter_free.restype = None
    library.shmq_filter_run.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t]
    library.shmq_text_double.argtypes = [ctypes.c_char_p, ctypes.c_size_t, ctypes.POINTER(ctypes.c_double)]
    library.shmq_text_double.restype = ctypes.c_bool
    library.shmq_text_integer.argtypes = [
        ctypes.c_char_p,
        ctypes.c_size_t,
        ctypes.c_int64,
        ctypes.c_int64,
        ctypes.POINTER(ctypes.c_int64),
    ]
    library.shmq_text_integer.restype = ctypes.c_bool
    return library


def text_of(properties: Mapping[str, str]) -> bytes:
    return "".join(f"{name}\x01{value}\x02" for name, value in properties.items()).encode()


class Loaded:
    """A program in the core; `reason` says why it is none."""

    def __init__(self, program: bytes) -> None:
        reason = ctypes.c_char_p()
        self._handle = core().shmq_filter_load(program, len(program), ctypes.byref(reason))
        self.reason = None if self._handle else (reason.value or b"").decode()

    def outcome(self, text: bytes) -> int:
        return int(core().shmq_filter_run(self._handle, text, len(text)))

    def __del__(self) -> None:
        core().shmq_filter_free(self._handle)
