"""All checks in the order in which they are shown; a check that fails itself becomes a finding."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from shmq.errors import ShmqError
from shmq.figures.verdict import Finding
from shmq.tools.doctor import (
    access,
    clock,
    consumers,
    disk,
    health,
    installation,
    machine,
    memory_left,
    namespaces,
    network,
)
from shmq.tools.doctor.case import Case
from shmq.tools.doctor.finding import warn

Check = Callable[[Case], Iterator[Finding]]

CHECKS: tuple[Check, ...] = (
    machine.check_kernel,
    machine.check_shm,
    machine.check_swap,
    machine.check_control_group,
    machine.check_limits,
    machine.check_mappings,
    machine.check_huge_pages,
    machine.check_numa,
    clock.check_clock_source,
    clock.check_clock_kept,
    clock.check_clock_went_back,
    namespaces.check_namespaces,
    access.check_logind,
    access.check_permissions,
    access.check_directories,
    memory_left.check_leftovers,
    installation.check_core,
    installation.check_versions,
    installation.check_libraries,
    installation.check_packages,
    health.check_health,
    disk.check_file_system,
    disk.check_room,
    disk.check_content,
    network.check_ports,
    network.check_advertised,
    network.check_links,
    consumers.check_subscriptions,
    consumers.check_overdue,
)


def examine(case: Case) -> list[Finding]:
    """Return what every check says about a case."""
    return [finding for check in CHECKS for finding in _guarded(check, case)]


def _guarded(check: Check, case: Case) -> Iterator[Finding]:
    """A check that cannot read what it needs says so and takes no other with it."""
    try:
        yield from check(case)
    except (OSError, ShmqError, ValueError) as error:
        name = check.__name__.removeprefix("check_")
        text = f"{name.replace('_', ' ')} could not be checked: {error}"
        yield warn(f"doctor.{name}", text, "run doctor as the broker's user")
