"""Checks of the clock: the cost of reading it, its time service, and whether it was set back.

Store times, delays, timed messages and retention by age follow it.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Iterator
from pathlib import Path

from shmq.figures.quantity import age_text
from shmq.figures.verdict import Finding
from shmq.shm.access import Access
from shmq.store.checkpoint import read_checkpoint
from shmq.store.layout import StoreLayout
from shmq.tools.doctor.case import Case
from shmq.tools.doctor.finding import ok, warn

_SLOW = frozenset({"hpet", "acpi_pm", "jiffies", "refined-jiffies", "pit"})
_UNSYNCHRONISED = 0x40  # STA_UNSYNC
_READS = 2000
_FUTURE_WARN_SECONDS = 2.0


class _Timex(ctypes.Structure):
    """The front of struct timex, and room for the rest."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_char * 512),
    )


def check_clock_source(case: Case) -> Iterator[Finding]:
    """The counter that the kernel reads, and the cost of one reading."""
    source = case.host.text("/sys/devices/system/clocksource/clocksource0/current_clocksource").strip() or "unknown"
    begin = time.perf_counter_ns()
    for _ in range(_READS):
        time.clock_gettime_ns(time.CLOCK_REALTIME)
    cost_ns = (time.perf_counter_ns() - begin) // _READS
    text = f"clock source {source}, a reading from Python costs {cost_ns} ns"
    if source in _SLOW:
        fix = "see dmesg for why the kernel gave up tsc; clocksource=tsc on its command line"
        yield warn("machine.clock", f"{text}: a system call each time", fix, source=source, cost_ns=cost_ns)
    else:
        yield ok("machine.clock", text, source=source, cost_ns=cost_ns)


def check_clock_kept(case: Case) -> Iterator[Finding]:
    """Whether a time service keeps the clock right."""
    timex = _Timex()
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "adjtimex") or libc.adjtimex(ctypes.byref(timex)) < 0:
        yield ok("machine.clock_kept", "the kernel does not say whether the clock is kept right")
    elif timex.status & _UNSYNCHRONISED:
        text = "the clock is not kept right (the kernel calls it unsynchronised): timed messages follow it"
        yield warn("machine.clock_kept", text, "timedatectl set-ntp true, or run chronyd", status=timex.status)
    else:
        yield ok(
            "machine.clock_kept", f"the clock is kept right to {timex.maxerror / 1000:.0f} ms", status=timex.status
        )


def check_clock_went_back(case: Case) -> Iterator[Finding]:
    """Whether what was stored last is younger than now."""
    try:
        newest_ms = read_checkpoint(StoreLayout(Path(case.store_path), Access(-1))).physic_ms
    except OSError:
        return
    if not newest_ms:
        return
    ahead = newest_ms / 1000 - time.time()
    if ahead > _FUTURE_WARN_SECONDS:
        text = f"the newest message was stored {age_text(ahead)} ahead of the clock, which was set back"
        fix = "set the clock right; store times stand still until it catches up"
        yield warn("machine.clock_back", text, fix, ahead_seconds=round(ahead, 3))
    else:
        yield ok("machine.clock_back", "no message is younger than the clock", ahead_seconds=round(min(ahead, 0.0), 3))
