"""Checks of the machine: kernel, shared memory, swap, limits, mappings, huge pages, NUMA, control group."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterator

from shmq.figures.quantity import count_text, size_text
from shmq.figures.thresholds import Thresholds
from shmq.figures.verdict import Finding, Verdict, judge
from shmq.shm.segment import SHM_DIRECTORY
from shmq.tools.doctor.case import Case
from shmq.tools.doctor.finding import fail, ok, warn
from shmq.tools.doctor.host import UNLIMITED

DOCKER_SHM_BYTES = 64 << 20
_THRESHOLDS = Thresholds()
USED_WARN_PERCENT = 80
FILES_LEAST = 2048
DEFAULT_FILE_BYTES = 1 << 30
_MAPPED_FILES = 8
_FILES, _LOCKED = "Max open files", "Max locked memory"
_FILE_SIZE, _ADDRESS_SPACE = "Max file size", "Max address space"
_FUTEX2 = (5, 16)
_PIDFD = (5, 3)


def check_kernel(case: Case) -> Iterator[Finding]:
    """Kernel, libc, processor: what shmq is tested on, and the calls it cannot do without."""
    release = case.host.text("/proc/sys/kernel/osrelease").strip() or platform.release()
    found = re.match(r"(\d+)\.(\d+)", release)
    version = (int(found[1]), int(found[2])) if found else (0, 0)
    libc, libc_version = platform.libc_ver()
    machine, processors = platform.machine(), len(os.sched_getaffinity(0))
    text = (
        f"kernel {release}, futex2 {'available' if version >= _FUTEX2 else 'not available, not needed'}, "
        f"{libc or 'unknown libc'} {libc_version}, {machine}, {processors} processor{'s' * (processors != 1)}"
    )
    figures = {
        "kernel": release,
        "libc": f"{libc} {libc_version}".strip(),
        "machine": machine,
        "processors": processors,
    }
    if version < _PIDFD:
        yield fail("machine.kernel", f"{text}: pidfd is missing", "run Linux 5.3 or newer", **figures)
    elif machine != "x86_64" or libc != "glibc":
        what = "aarch64 was tried in an emulator only" if machine == "aarch64" else "only x86_64 with glibc is tested"
        yield warn("machine.kernel", f"{text}: {what}", "run the tests here: pytest", **figures)
    else:
        yield ok("machine.kernel", text, **figures)


def check_shm(case: Case) -> Iterator[Finding]:
    """/dev/shm: is it memory, is there room, can it be swapped out."""
    memory = case.snapshot.memory
    if memory is None:
        yield warn("machine.shm", f"{SHM_DIRECTORY} cannot be examined", "mount a tmpfs on it")
        return
    mount = case.host.mount_of(str(SHM_DIRECTORY))
    kind = mount.kind if mount else "unknown"
    swap_bytes = _swap_bytes(case)
    swapping = "no swap" if not swap_bytes else "noswap" if mount and "noswap" in mount.options else "may be swapped"
    text = (
        f"{SHM_DIRECTORY} {size_text(memory.shm_free_bytes)} free of {size_text(memory.shm_bytes)}, {kind}, {swapping}"
    )
    figures = {"size_bytes": memory.shm_bytes, "free_bytes": memory.shm_free_bytes, "kind": kind}
    verdict = judge(memory.shm_used_percent, _THRESHOLDS.shm_warn, _THRESHOLDS.shm_crit)
    grow = "mount -o remount,size=1g /dev/shm" if not case.host.is_container else "docker run --shm-size=1g …"
    if kind != "tmpfs":
        yield warn("machine.shm", f"{text}: segments would be files on a disk", "mount a tmpfs on /dev/shm", **figures)
    elif verdict is Verdict.CRITICAL:
        yield fail("machine.shm", f"{text}: nearly full, so a broker cannot start or grow", grow, **figures)
    elif memory.shm_bytes <= DOCKER_SHM_BYTES:
        hint = "docker run --shm-size=1g … (compose: shm_size: 1gb), or shmq serve --segments sysv"
        yield warn("machine.shm", f"{text}: that is Docker's default size and holds little", hint, **figures)
    elif verdict is Verdict.WARNING:
        yield warn("machine.shm", f"{text}: {memory.shm_used_percent:.0f} % used", grow, **figures)
    else:
        yield ok("machine.shm", text, **figures)


def _swap_bytes(case: Case) -> int:
    rows = [line.split() for line in case.host.text("/proc/swaps").splitlines()[1:]]
    return sum(int(row[2]) << 10 for row in rows if len(row) > 2 and row[2].isdigit())


def check_swap(case: Case) -> Iterator[Finding]:
    """Whether memory of the broker's processes lies in swap, where each touch of it costs a disk."""
    if not case.own_processes:
        return
    swapped = 0
    for process in case.own_processes:
        found = re.search(r"^VmSwap:\s+(\d+) kB", case.host.text(f"/proc/{process.pid}/status"), re.M)
        swapped += int(found[1]) << 10 if found else 0
    if swapped:
        fix = "give the host more memory, or MemorySwapMax=0 in the broker's unit"
        yield warn("machine.swap", f"{size_text(swapped)} of the broker are swapped out", fix, swapped_bytes=swapped)
    else:
        yield ok("machine.swap", "nothing of the broker is swapped out", swapped_bytes=0)


def check_limits(case: Case) -> Iterator[Finding]:
    """Resource limits of the broker's processes; ours while none runs."""
    processes = [(process.role, str(process.pid), process.fds) for process in case.own_processes]
    processes = processes or [("this shell", "self", None)]
    troubled, shown, figures = False, [], {}
    for role, pid, used in processes:
        limits = case.host.limits(pid)
        figures[role] = {"used_files": used, **limits}
        for text, fix in _troubles(case, role, pid, used, limits):
            troubled = True
            yield warn("machine.limits", f"{role} (pid {pid}) {text}", fix, role=role, used_files=used, **limits)
        files = limits.get(_FILES, UNLIMITED)
        shown.append(f"{role} {'' if used is None else f'{used} of '}{'any' if files < 0 else count_text(files)}")
    if not troubled:
        locked = case.host.limits(processes[0][1]).get(_LOCKED, UNLIMITED)
        lock = "unlimited" if locked < 0 else size_text(locked)
        text = f"open files: {', '.join(shown)}; ulimit -l {lock}, shmq locks none"
        yield ok("machine.limits", text, roles=figures)


def _troubles(case: Case, role: str, pid: str, used: int | None, limits: dict[str, int]) -> Iterator[tuple[str, str]]:
    """The limits that keep a process from something, and the cure."""
    if not limits:
        yield "does not show its limits", "run doctor as the same user"
    log = case.snapshot.log
    file_bytes = log.file_bytes if log else DEFAULT_FILE_BYTES
    largest, space = limits.get(_FILE_SIZE, UNLIMITED), limits.get(_ADDRESS_SPACE, UNLIMITED)
    if 0 <= largest < file_bytes:
        yield f"may write files of {size_text(largest)}, a log file has {size_text(file_bytes)}", "ulimit -f unlimited"
    if 0 <= space < _MAPPED_FILES * file_bytes:
        yield f"may have {size_text(space)} of address space, and the log is mapped", "ulimit -v unlimited"
    files = limits.get(_FILES, UNLIMITED)
    if used is not None and files >= 0 and used * 100 >= files * USED_WARN_PERCENT:
        yield f"has {used} of {files} files open", "LimitNOFILE=65536 in its unit, or ulimit -n 65536"
    hard = case.host.limits(pid, hard=True).get(_FILES, UNLIMITED)
    if 0 <= hard < FILES_LEAST and role in ("bridge", "this shell"):
        yield f"may have {hard} files open, too few for its connections", "LimitNOFILE=65536 in its unit, ulimit -Hn"


def check_mappings(case: Case) -> Iterator[Finding]:
    """vm.max_map_count against the process that maps most."""
    limit = case.host.number("/proc/sys/vm/max_map_count")
    counted = [(process.mappings, process) for process in case.snapshot.processes if process.mappings]
    most, process = max(counted, key=lambda entry: entry[0] or 0, default=(0, None))
    if limit is None:
        return
    who = f", {most} of them used by pid {process.pid} ({process.name or process.role})" if process else ""
    text = f"vm.max_map_count {count_text(limit)}{who}"
    if most and most * 100 >= limit * USED_WARN_PERCENT:
        yield warn("machine.mappings", text, "sysctl -w vm.max_map_count=262144", limit=limit, used=most)
    else:
        yield ok("machine.mappings", text, limit=limit, used=most or 0)


def check_huge_pages(case: Case) -> Iterator[Finding]:
    """The page sizes of shared memory."""
    policy = re.search(r"\[(\w+)\]", case.host.text("/sys/kernel/mm/transparent_hugepage/shmem_enabled"))
    pool = re.search(r"HugePages_Total:\s+(\d+)", case.host.text("/proc/meminfo"))
    chosen = policy[1] if policy else "not known"
    text = f"huge pages for shared memory: {chosen}; {pool[1] if pool else 0} reserved, shmq asks for none"
    yield ok("machine.huge_pages", text, policy=chosen, reserved=int(pool[1]) if pool else 0)


def check_numa(case: Case) -> Iterator[Finding]:
    """On which memory nodes the segments lie."""
    online = case.host.text("/sys/devices/system/node/online").strip()
    if not re.search(r"[-,]", online):
        yield ok("machine.numa", "one memory node", nodes=online or "0")
        return
    keeper = case.snapshot.process("keeper")
    pages: dict[str, int] = {}
    for line in case.host.text(f"/proc/{keeper.pid}/numa_maps").splitlines() if keeper and keeper.alive else ():
        if f"{SHM_DIRECTORY}/shmq." in line:
            for node, count in re.findall(r"\bN(\d+)=(\d+)", line):
                pages[node] = pages.get(node, 0) + int(count)
    where = (
        ", ".join(f"{count_text(count)} pages on node {node}" for node, count in sorted(pages.items())) or "not mapped"
    )
    if len(pages) > 1:
        fix = "start the broker and its clients on one node: numactl --cpunodebind=0 --membind=0 shmq serve"
        yield warn("machine.numa", f"nodes {online}, segments spread: {where}", fix, nodes=online, pages=pages)
    else:
        yield ok("machine.numa", f"nodes {online}, segments {where}", nodes=online, pages=pages)


def check_control_group(case: Case) -> Iterator[Finding]:
    """The control group's memory limit against what is used and what the segments may take."""
    memory = case.snapshot.memory
    needed = None if memory is None else memory.cgroup_needed_bytes
    if memory is None or needed is None or not memory.cgroup_limit_bytes:
        yield ok("machine.cgroup", "no control group limits memory here")
        return
    limit, percent = memory.cgroup_limit_bytes, 100 * needed / memory.cgroup_limit_bytes
    segments = sum(segment.used_bytes for segment in case.snapshot.segments if segment.state == "own")
    figures = {
        "limit_bytes": limit,
        "used_bytes": memory.cgroup_used_bytes,
        "segment_bytes": segments,
        "cgroup": memory.cgroup,
    }
    text = (
        f"control group {percent:.0f} % of {size_text(limit)} not to be reclaimed, {size_text(segments)} are segments"
    )
    fix = "raise memory.max (docker run --memory, MemoryMax= in the unit), or make the segments smaller"
    verdict = judge(percent, _THRESHOLDS.memory_warn, _THRESHOLDS.memory_crit)
    if verdict is not Verdict.OK:
        tell = fail if verdict is Verdict.CRITICAL else warn
        yield tell("machine.cgroup", f"{text}: the kernel kills a process when it is full", fix, **figures)
    elif segments * 2 >= limit:
        yield warn("machine.cgroup", f"{text}: more than half of what may be used", fix, **figures)
    else:
        yield ok("machine.cgroup", text, **figures)
