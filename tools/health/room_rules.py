"""Rules for what only the whole host shows: shared memory, control group, segments, what dead brokers left, clients."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from shmq.figures.broker_rules import serve_command, store_findings
from shmq.figures.processes import STOPPED, bridge_runs
from shmq.figures.quantity import size_text
from shmq.figures.segments import made_mode
from shmq.figures.snapshot import Memory, Segment, Snapshot
from shmq.figures.thresholds import Thresholds
from shmq.figures.verdict import Finding, Measure, Verdict, judge

_SHOWN_MAX = 3
# What is left of brokers that no longer run, by the state shmq.shm.leftovers gives it: a word, what it is, and why.
_LEFT = {
    "dead": (
        "stale",
        "are left of dead brokers",
        "they were killed, their stores are gone or others have taken their place, and no start would sweep it",
    ),
    "mapped": ("mapped", "of dead brokers are still looked at", "a process, `shmq top` perhaps, has them mapped"),
    "waiting": (
        "waiting",
        "wait for the next start of their broker",
        "it ended without being stopped; what its groups have read is there, newer than in its files",
    ),
}


def room_findings(snapshot: Snapshot, thresholds: Thresholds) -> Iterator[Finding]:
    """Judge what the broker lies in and what it has left."""
    if snapshot.memory is not None:
        yield from _memory(snapshot.memory, thresholds)
    yield from _segments(snapshot)
    yield from store_findings(snapshot, thresholds)
    if snapshot.broker.generation:
        yield from _clients(snapshot)


def _memory(memory: Memory, thresholds: Thresholds) -> Iterator[Finding]:
    percent = memory.shm_used_percent
    verdict = judge(percent, thresholds.shm_warn, thresholds.shm_crit)
    measures = {"shm_used": Measure(round(percent, 1), "%", thresholds.shm_warn, thresholds.shm_crit)}
    what = f"/dev/shm: {size_text(memory.shm_free_bytes)} of {size_text(memory.shm_bytes)} free, {percent:.0f} % used"
    if verdict is Verdict.OK:
        yield Finding("memory", verdict, what, "/dev/shm", measures=measures)
    else:
        why = "segments cannot grow, and no broker can start, when it is full"
        yield Finding("memory", verdict, what, "/dev/shm", why, _more_shm(), measures)
    yield from _cgroup(memory, thresholds)


def _more_shm() -> str:
    clean = "shmq doctor --fix removes what dead brokers left"
    if Path("/.dockerenv").exists() or Path("/run/.containerenv").exists():
        return f"docker run --shm-size=2g (compose: shm_size: 2gb); {clean}"
    return f"{clean}; ls -lS /dev/shm; mount -o remount,size=… /dev/shm"


def _cgroup(memory: Memory, thresholds: Thresholds) -> Iterator[Finding]:
    needed = memory.cgroup_needed_bytes
    if needed is None or not memory.cgroup_limit_bytes:
        return
    percent = 100 * needed / memory.cgroup_limit_bytes
    verdict = judge(percent, thresholds.memory_warn, thresholds.memory_crit)
    limit = size_text(memory.cgroup_limit_bytes)
    what = f"control group: {size_text(needed)} of {limit} cannot be reclaimed, {percent:.0f} %"
    measures = {"cgroup_used": Measure(round(percent, 1), "%", thresholds.memory_warn, thresholds.memory_crit)}
    why = "the kernel kills a process of the group when it is full; shared memory counts for who wrote it first"
    do = "raise the container's memory limit, or start the broker with smaller tables"
    is_ok = verdict is Verdict.OK
    yield Finding("memory", verdict, what, "cgroup", "" if is_ok else why, "" if is_ok else do, measures)


def _segments(snapshot: Snapshot) -> Iterator[Finding]:
    broker = snapshot.broker
    own = [segment for segment in snapshot.segments if segment.state == "own"]
    made = {segment.part: made_mode(segment.part, broker.mode) for segment in own}
    wrong = [segment for segment in own if (segment.uid, segment.mode) != (broker.uid, made[segment.part])]
    for segment in wrong:
        mode = made[segment.part]
        what = (
            f"{segment.path or segment.name} belongs to uid {segment.uid} with mode {segment.mode:04o}, "
            f"the broker (uid {broker.uid}) made it {mode:04o}"
        )
        why = "clients refuse to attach to what is not the broker's own, or may be changed by others"
        target = segment.path or segment.name
        do = f"chown {broker.uid} {target} && chmod {mode:04o} {target}; find out who changed it"
        yield Finding("segments", Verdict.CRITICAL, what, segment.part, why, do)
    mapped = [segment for segment in own if segment.part != "semaphores"]
    if broker.generation and snapshot.log is not None and not wrong:
        used = sum(segment.used_bytes for segment in own)
        size = sum(segment.size_bytes for segment in mapped)
        what = f"{size_text(used)} taken of {size_text(size)}, generation {broker.generation}"
        measures = {"segments_used": Measure(used, "B"), "segments_size": Measure(size, "B")}
        yield Finding("segments", Verdict.OK, what, measures=measures)
    for state in _LEFT:
        left = [segment for segment in snapshot.segments if segment.state == state]
        own = [segment for segment in left if segment.broker == broker.name]
        yield from _left(snapshot, state, broker.name, own)
        yield from _left(snapshot, state, "others", [segment for segment in left if segment.broker != broker.name])


def _left(snapshot: Snapshot, state: str, subject: str, found: list[Segment]) -> Iterator[Finding]:
    """Memory of dead brokers; that of other names is only reported, as it does not stand in this one's way."""
    if not found:
        return
    word, what, why = _LEFT[state]
    used = sum(segment.used_bytes for segment in found)
    generations = sorted({f"{segment.broker}.{segment.generation}" for segment in found})
    more = f" and {len(generations) - _SHOWN_MAX} more" if len(generations) > _SHOWN_MAX else ""
    what = f"{size_text(used)} {what}: {', '.join(generations[:_SHOWN_MAX])}{more}"
    is_own = subject == snapshot.broker.name
    do = "shmq doctor --fix"
    if state == "waiting":
        do = (
            serve_command(snapshot)
            if is_own
            else f"shmq serve --name {found[0].broker}; or remove its store, then: {do}"
        )
    verdict = Verdict.WARNING if is_own else Verdict.OK
    measures = {f"{word}_bytes" if is_own else f"{word}_bytes_others": Measure(used, "B")}
    yield Finding("segments", verdict, what, f"{word} {subject}", why, do, measures)


def _clients(snapshot: Snapshot) -> Iterator[Finding]:
    local = [client for client in snapshot.clients if client.transport == "shm"]
    for client in local:
        if not client.alive and not bridge_runs(snapshot):  # else it takes the slot back in a moment
            what = f"client slot {client.slot} belongs to process {client.pid}, which is dead"
            why = "the bridge takes such slots back within a second; it is stopped or dead"
            name = client.client_id or str(client.pid)
            yield Finding("process", Verdict.WARNING, what, name, why, "shmq health names the bridge's state")
    for process in snapshot.processes:
        if process.role == "client" and process.state in STOPPED:
            name = ", ".join(process.client_ids) or process.name or str(process.pid)
            what = f"client process {process.pid} ({name}) is {process.state}"
            why = "the queues it owns are not read until it goes on or ends"
            yield Finding("process", Verdict.WARNING, what, name, why, f"kill -CONT {process.pid}")
    if snapshot.log is not None:  # else the client slots are not known
        yield from _presence(snapshot)
    versions = Counter(client.version for client in local if client.version)
    others = {version: count for version, count in versions.items() if version != snapshot.broker.version}
    if others:
        shown = ", ".join(f"{version} ({count})" for version, count in sorted(others.items()))
        what = f"the broker is shmq {snapshot.broker.version}, clients are {shown}; their segment layouts agree"
        yield Finding("versions", Verdict.OK, what)


def _presence(snapshot: Snapshot) -> Iterator[Finding]:
    presence = snapshot.presence
    measures = {"attached": Measure(presence.registered)}
    if presence.counted is None:
        what = f"{presence.registered} processes registered; the kernel's count cannot be read here"
    elif presence.counted == presence.registered:
        what = f"{presence.counted} processes attached, as many as the kernel counts"
        measures["counted"] = Measure(presence.counted)
    else:
        what = f"the kernel counts {presence.counted} attached processes, {presence.registered} of them are registered"
        why = "a process has mapped the segments without a client slot, or forked after it attached"
        measures["counted"] = Measure(presence.counted)
        yield Finding("process", Verdict.WARNING, what, "presence", why, "shmq doctor names who maps them", measures)
        return
    if any(process.alive for process in snapshot.processes):
        yield Finding("process", Verdict.OK, what, "presence", measures=measures)
