"""The conditions under which figures of speed were measured, and what makes them worse than they need to be.

    machine, processor, processors, memory_bytes, kernel, python, version   must be equal for figures to be compared
    load                     mean over the minute before the measurement; what the measurement adds is not in it
    fresh                    share of the log's pages that the writer was the first to touch, None: not measured

Invariant: only `present_conditions` looks at the machine. Everything else is a function of what it found.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shmq.figures.quantity import plural
from shmq.version import __version__

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
LOAD_OF_PROCESSORS = 0.25  # others' share of the processors from which on figures are not believed
FRESH_SHARE = 0.5  # from here on the memory counts as cold
RECORD_OVERHEAD_BYTES = 128  # of a message in the log: head, topic, properties; some bytes more or less do not matter
NUMBER_MAX = 1e18  # of anything that is measured; what is beyond it was not written by a measurement
_SAME = ("machine", "processor", "processors", "memory_bytes", "kernel", "python", "version")


@dataclass(frozen=True)
class Conditions:
    """The place and the time of a measurement."""

    machine: str
    processor: str
    processors: int
    memory_bytes: int
    kernel: str
    python: str
    version: str
    load: float
    fresh: float | None = None

    @property
    def is_loaded(self) -> bool:
        """Whether others used so much of the machine that figures are worse for it."""
        return self.load > self.quiet_load

    @property
    def quiet_load(self) -> float:
        """The load up to which the machine counts as quiet."""
        return self.processors * LOAD_OF_PROCESSORS

    @property
    def is_cold(self) -> bool:
        """Whether most of the log's memory was touched for the first time while it was measured."""
        return self.fresh is not None and self.fresh >= FRESH_SHARE

    @property
    def memory(self) -> str:
        """The state of the log's memory in a word."""
        return "not looked at" if self.fresh is None else "cold" if self.is_cold else "present"


def present_conditions() -> Conditions:
    """Return what this machine is and how busy it has been; `fresh` is for the measurement to tell."""
    return Conditions(
        machine=platform.node(),
        processor=_processor(),
        processors=len(os.sched_getaffinity(0)),
        memory_bytes=os.sysconf("SC_PHYS_PAGES") * PAGE_BYTES,
        kernel=platform.release(),
        python=platform.python_version(),
        version=__version__,
        load=round(os.getloadavg()[0], 2),
    )


def fresh_share(faults: int, count: int, size: int) -> float:
    """Return the share of pages first touched, of all that `count` bodies of `size` bytes take in the log."""
    pages = count * (size + RECORD_OVERHEAD_BYTES) / PAGE_BYTES
    return round(min(1.0, faults / pages), 3)


def conditions_of(saved: Mapping[str, Any]) -> Conditions:
    """Return conditions that were saved.

    Raises:
        ValueError: a condition is missing, or has another type.
    """
    number = (int, float)
    types: dict[str, Any] = {name: str for name in ("machine", "processor", "kernel", "python", "version")}
    types |= {"processors": int, "memory_bytes": int, "load": number, "fresh": (*number, type(None))}
    for name, kind in types.items():
        value = saved.get(name, ...)
        if not isinstance(value, kind) or (isinstance(value, number) and not 0 <= value < NUMBER_MAX):
            raise ValueError(f"conditions.{name} is missing, or is no {name}")
    return Conditions(**{name: saved[name] for name in types})


def condition_text(conditions: Conditions) -> str:
    """Return what was measured, for people."""
    fresh = "" if conditions.fresh is None else f" ({conditions.fresh:.0%} of its pages touched for the first time)"
    return (
        f"shmq {conditions.version}, Python {conditions.python}, Linux {conditions.kernel}, {conditions.processor}; "
        f"load before {conditions.load:.2f} on {plural(conditions.processors, 'processor')}, "
        f"log memory {conditions.memory}{fresh}"
    )


def doubts(conditions: Conditions, *, lasts: bool = False) -> list[str]:
    """Return why the figures may be worse than what this machine can do; nothing on a quiet one.

    Args:
        lasts: it was measured for as long as a service runs, of which cold memory is a part.
    """
    found = []
    if conditions.is_loaded:
        found.append(
            f"the machine was busy: load {conditions.load:.2f} on {plural(conditions.processors, 'processor')} before "
            f"the measurement; measure again when `uptime` shows less than {conditions.quiet_load:.2f}"
        )
    if conditions.is_cold and not lasts:
        found.append(
            f"the memory was cold: {conditions.fresh:.0%} of the log's pages were touched for the first time while "
            "it was measured, so the figures are the kernel's as much as shmq's; measure again"
        )
    return found


def differences(saved: Conditions, now: Conditions) -> list[str]:
    """Return what differs between two measurements besides what is to be compared."""
    found = [
        f"{name}: {getattr(saved, name)} saved, {getattr(now, name)} now"
        for name in _SAME
        if getattr(saved, name) != getattr(now, name)
    ]
    if abs(saved.load - now.load) > min(saved.quiet_load, now.quiet_load) or saved.is_loaded != now.is_loaded:
        found.append(f"load: {saved.load:.2f} saved, {now.load:.2f} now")
    if saved.is_cold != now.is_cold:
        found.append(f"log memory: {saved.memory} saved, {now.memory} now")
    return found


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
