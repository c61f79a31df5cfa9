"""Each trouble of a machine is reported with its number and a cure; a machine without it is well."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from shmq.figures.verdict import Finding, worst
from shmq.tools.doctor import clock, machine, namespaces
from shmq.tools.doctor.case import Case
from shmq.tools.doctor.finding import WORDS

MiB = 1 << 20
LIMITS = """Limit                     Soft Limit           Hard Limit           Units
Max cpu time              unlimited            unlimited            seconds
Max file size             {size}            unlimited            bytes
Max open files            {files}                 {hard}               files
Max locked memory         65536                65536                bytes
Max address space         {space}            unlimited            bytes
"""
MOUNTS = """22 1 0:20 / / rw,relatime - ext4 /dev/vda rw
23 22 0:21 / /dev/shm rw,nosuid - {kind} shm rw,size=65536k{options}
24 22 0:22 / /mnt/with\\040blank rw - nfs4 host:/x rw
"""


def only(findings: object) -> Finding:
    [found] = list(findings)  # type: ignore[call-overload]
    assert isinstance(found, Finding) and (WORDS[found.verdict] == "ok" or found.do)
    return found


def shm(case: Case, *, size: int, free: int, kind: str = "tmpfs", options: str = "", swap: int = 0) -> Finding:
    assert case.snapshot.memory is not None
    memory = case.snapshot.memory._replace(shm_bytes=size, shm_free_bytes=free)
    return only(machine.check_shm(replace(case, snapshot=case.snapshot._replace(memory=memory))))


@pytest.mark.parametrize(
    ("size", "free", "kind", "verdict", "words"),
    [
        (1000 * MiB, 900 * MiB, "tmpfs", "ok", "no swap"),
        (64 * MiB, 60 * MiB, "tmpfs", "warn", "Docker's default"),
        (1000 * MiB, 51 * MiB, "tmpfs", "warn", "95 % used"),
        (1000 * MiB, 50 * MiB, "tmpfs", "fail", "nearly full"),
        (1000 * MiB, 900 * MiB, "ext4", "warn", "files on a disk"),
    ],
)
def test_shared_memory_is_judged_by_kind_size_and_room(
    case_on: Callable[..., Case], size: int, free: int, kind: str, verdict: str, words: str
) -> None:
    case = case_on({"/proc/self/mountinfo": MOUNTS.format(kind=kind, options="")})
    found = shm(case, size=size, free=free)
    assert WORDS[found.verdict] == verdict and words in found.what
    assert found.figures["free_bytes"] == free


def test_swap_is_reported_unless_the_mount_excludes_it(case_on: Callable[..., Case]) -> None:
    swaps = "Filename Type Size Used Priority\n/dev/sda partition 1048576 0 -2\n"
    for options, words in (("", "may be swapped"), (",noswap", "noswap")):
        mounts = MOUNTS.format(kind="tmpfs", options=options)
        case = case_on({"/proc/self/mountinfo": mounts, "/proc/swaps": swaps})
        assert words in shm(case, size=1000 * MiB, free=900 * MiB).text


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({"size": 512}, "may write files of 512 B"),
        ({"space": 1000}, "address space"),
        ({"files": 10, "hard": 100000}, "of 10 files open"),
        ({"files": 1000, "hard": 1000}, "too few for its connections"),
        ({}, ""),
    ],
)
def test_a_limit_that_is_in_the_way_is_named(case_on: Callable[..., Case], limits: dict[str, int], words: str) -> None:
    values = {"size": "unlimited", "space": "unlimited", "files": 100000, "hard": 100000, **limits}
    case = case_on({})
    case = case_on({f"/proc/{process.pid}/limits": LIMITS.format(**values) for process in case.own_processes})
    found = list(machine.check_limits(case))
    assert WORDS[worst(found)] == ("warn" if words else "ok")
    assert any(words in entry.what for entry in found)


def test_mappings_near_the_kernels_limit_are_reported(case_on: Callable[..., Case]) -> None:
    most = max(process.mappings or 0 for process in case_on({}).snapshot.processes)
    assert most > 10
    for limit, verdict in ((most + 1, "warn"), (100 * most, "ok")):
        found = only(machine.check_mappings(case_on({"/proc/sys/vm/max_map_count": f"{limit}\n"})))
        assert (WORDS[found.verdict], found.figures["used"]) == (verdict, most)


@pytest.mark.parametrize(("limit", "used", "verdict"), [(None, None, "ok"), (1000, 950, "warn"), (10**12, 10, "ok")])
def test_the_control_group_must_hold_the_segments(
    case_on: Callable[..., Case], limit: int | None, used: int | None, verdict: str
) -> None:
    case = case_on({})
    assert case.snapshot.memory is not None
    memory = case.snapshot.memory._replace(cgroup_limit_bytes=limit, cgroup_used_bytes=used, cgroup_reclaimable_bytes=0)
    found = only(machine.check_control_group(replace(case, snapshot=case.snapshot._replace(memory=memory))))
    assert WORDS[found.verdict] == verdict
    assert verdict == "ok" or found.figures["segment_bytes"] > 0


def test_segments_on_two_nodes_are_reported(case_on: Callable[..., Case]) -> None:
    keeper = case_on({}).snapshot.process("keeper")
    assert keeper is not None
    maps = "7f00 default file=/dev/shm/shmq.x.control mapped=30 N0=20 N1=10\n7f01 default anon=1 N1=5\n"
    case = case_on({"/sys/devices/system/node/online": "0-1\n", f"/proc/{keeper.pid}/numa_maps": maps})
    found = only(machine.check_numa(case))
    assert (WORDS[found.verdict], found.figures["pages"]) == ("warn", {"0": 20, "1": 10})
    assert WORDS[only(machine.check_numa(case_on({"/sys/devices/system/node/online": "0\n"}))).verdict] == "ok"


@pytest.mark.parametrize(("release", "verdict"), [("6.1.0-9-amd64", "ok"), ("4.19.0", "fail")])
def test_a_kernel_without_pidfd_is_too_old(case_on: Callable[..., Case], release: str, verdict: str) -> None:
    found = only(machine.check_kernel(case_on({"/proc/sys/kernel/osrelease": release + "\n"})))
    assert (WORDS[found.verdict], found.figures["kernel"]) == (verdict, release)


@pytest.mark.parametrize(("source", "verdict"), [("tsc", "ok"), ("hpet", "warn")])
def test_a_slow_clock_source_is_reported(case_on: Callable[..., Case], source: str, verdict: str) -> None:
    path = "/sys/devices/system/clocksource/clocksource0/current_clocksource"
    assert WORDS[only(clock.check_clock_source(case_on({path: source + "\n"}))).verdict] == verdict


def test_broker_and_caller_share_their_namespaces_here(real: Case) -> None:
    found = only(namespaces.check_namespaces(real))
    assert WORDS[found.verdict] == "ok" and set(found.figures) == {"ipc", "pid", "user"}
