"""Rules for room and leftovers: segments, memory, disk, log space, last recovery, clients."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from shmq.tools.health.broker_rules import serve_command
from shmq.tools.health.finding import Finding, Measure, Verdict, judge
from shmq.tools.health.thresholds import Thresholds
from shmq.tools.observe.processes import STOPPED
from shmq.tools.observe.segments import made_mode
from shmq.tools.observe.snapshot import Disk, Log, Memory, Recovery, Scrub, Segment, Snapshot
from shmq.tools.terminal.quantity import age_text, count_text, plural, size_text

_RECENT_SECONDS = 86_400.0
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
_SAID = "the broker's log lines"
_BACKUPS = "the same name with .bak"
_SET_AGAIN = (
    "set again what is missing (shmq topic update, shmq group create); whoever edits the file stops the broker first "
    "and takes its last entry, shmqCrc32, out"
)
_LOOK_AT_DISK = "the broker's log lines name them; smartctl -a"
_QUEUES_WARN, _QUEUES_CRIT = 80.0, 95.0  # percent of the table
_SPARE_SHARE = 0.1  # of a file: less than this ahead of the log means that the keeper has not made the next one


def room_findings(snapshot: Snapshot, thresholds: Thresholds) -> Iterator[Finding]:
    """Judge what the broker lies in and what it has left."""
    if snapshot.memory is not None:
        yield from _memory(snapshot.memory, thresholds)
    yield from _segments(snapshot)
    if snapshot.disk is not None:
        yield from _disk(snapshot.disk)
    if snapshot.log is not None:
        yield from _log(snapshot, snapshot.log, thresholds)
        yield from _queues(snapshot, snapshot.log)
    if snapshot.recovery is not None:
        yield _recovery(snapshot.recovery)
    if snapshot.scrub is not None:
        yield _scrub(snapshot.scrub)
    if snapshot.broker.generation:
        yield from _clients(snapshot)


def _memory(memory: Memory, thresholds: Thresholds) -> Iterator[Finding]:
    used = memory.shm_bytes - memory.shm_free_bytes
    percent = 100 * used / memory.shm_bytes if memory.shm_bytes else 0.0
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
    if not memory.cgroup_limit_bytes or memory.cgroup_used_bytes is None:
        return
    needed = max(0, memory.cgroup_used_bytes - (memory.cgroup_reclaimable_bytes or 0))
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
    """What dead brokers left; of brokers of another name we only tell, because they do not stand in this one's way."""
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


def _disk(disk: Disk) -> Iterator[Finding]:
    measures = {"disk_used": Measure(disk.used_percent, "%", disk.warn_percent, disk.refuse_percent)}
    what = f"{disk.used_percent} % of {size_text(disk.size_bytes)} used, {size_text(disk.free_bytes)} free, {disk.path}"
    do = f"make room: du -xh {disk.path}, or shorten --retention-hours"
    if not disk.writable:
        why = "nothing that is sent now reaches the disk; after an error the kernel mounts it so"
        yield Finding(
            "disk", Verdict.CRITICAL, f"{disk.path} is mounted read-only", disk.path, why, "dmesg; mount", measures
        )
    elif disk.used_percent > disk.refuse_percent:
        why = f"above {disk.refuse_percent} % the broker stores nothing more, so that what it holds stays whole"
        yield Finding("disk", Verdict.CRITICAL, what, disk.path, why, do, measures)
    elif disk.used_percent >= disk.force_percent:
        why = f"from {disk.force_percent} % on the oldest log files go although they have not expired"
        yield Finding("disk", Verdict.WARNING, what, disk.path, why, do, measures)
    elif disk.used_percent >= disk.warn_percent:
        why = f"it has passed {disk.warn_percent} %; from {disk.force_percent} % on files go before their time"
        yield Finding("disk", Verdict.WARNING, what, disk.path, why, do, measures)
    else:
        yield Finding("disk", Verdict.OK, what, disk.path, measures=measures)


def _log(snapshot: Snapshot, log: Log, thresholds: Thresholds) -> Iterator[Finding]:
    ahead = max(0, log.allocated_end - log.end)
    measures = {
        "flush_behind": Measure(log.flush_behind_bytes, "B", thresholds.behind_warn, thresholds.behind_crit),
        "spare_files": Measure(log.spare_files),
        "units_behind": Measure(log.units_behind),
        **({} if log.dispatch_behind_bytes is None else {"dispatch_behind": Measure(log.dispatch_behind_bytes, "B")}),
    }
    what = f"flush {size_text(log.flush_behind_bytes)} behind, {plural(log.spare_files, 'spare file')}"
    verdict = judge(log.flush_behind_bytes, thresholds.behind_warn, thresholds.behind_crit)
    if verdict is not Verdict.OK:
        why = "a power cut now would lose that much; the disk is slower than the producers, or the keeper stands still"
        yield Finding("log", verdict, what, "flush", why, "iostat -x 1; --flush sync makes producers wait", measures)
    if ahead < log.file_bytes * _SPARE_SHARE and not snapshot.broker.retired:
        short = f"{size_text(ahead)} of log space are left, less than a tenth of a file"
        why = "the keeper has not made the next file: it is dead, stopped, or the disk is full"
        is_served = snapshot.broker.served
        do = "df -h; look at the keeper's log lines" if is_served else serve_command(snapshot)
        yield Finding("log", Verdict.WARNING if ahead else Verdict.CRITICAL, short, "space", why, do, measures)
    elif verdict is Verdict.OK:
        yield Finding("log", Verdict.OK, what, measures=measures)


def _queues(snapshot: Snapshot, log: Log) -> Iterator[Finding]:
    percent = 100 * log.queues_taken / log.queues_max if log.queues_max else 0.0
    verdict = judge(percent, _QUEUES_WARN, _QUEUES_CRIT)
    if verdict is Verdict.OK:
        return
    gone = max(0, log.queues_taken - sum(topic.queues for topic in snapshot.topics))
    taken, most = count_text(log.queues_taken), count_text(log.queues_max)
    what = f"{taken} of {most} queues are taken, {count_text(gone)} of them by deleted topics"
    why = "when all are taken no topic can be created, and no group gets its retry topic"
    do = "look at the keeper's log lines: it frees them within a second" if gone else "delete topics that nobody needs"
    measures = {"queues_taken": Measure(round(percent, 1), "%", _QUEUES_WARN, _QUEUES_CRIT)}
    yield Finding("segments", verdict, what, "queues", why, do, measures)


def _recovery(recovery: Recovery) -> Finding:
    how = "after a clean stop" if recovery.clean else "after a crash"
    what = (
        f"last recovery {age_text(recovery.age)} ago {how}: {count_text(recovery.records)} messages replayed in "
        f"{recovery.seconds:.1f} s, {plural(recovery.damages, 'damaged range')}"
    )
    if recovery.damages:
        what += f" with {plural(recovery.damaged_messages, 'message')}"
    measures = {"recovery_age": Measure(round(recovery.age, 3), "s"), "damages": Measure(recovery.damages)}
    lost = _lost(recovery) if recovery.age < _RECENT_SECONDS else None
    if lost is not None:
        return Finding("recovery", *lost, measures=measures)
    if recovery.marks_restored and recovery.age < _RECENT_SECONDS:
        what += ", the durable mark, the checkpoint or the checksums of units were damaged and had to be written again"
        why = "bytes of shmq.durable, checkpoint or shmq.units were not what was written; no message is lost by it"
        return Finding("recovery", Verdict.WARNING, what, why=why, do=_LOOK_AT_DISK, measures=measures)
    if recovery.damages and recovery.age < _RECENT_SECONDS:
        why = "bytes of the log were not what was written: the disk, or somebody who wrote into the files"
        do = "the broker's log lines name the ranges; smartctl -a; restore those files from a copy"
        return Finding("recovery", Verdict.WARNING, what, why=why, do=do, measures=measures)
    if recovery.units_repaired and recovery.age < _RECENT_SECONDS:
        what += f", {plural(recovery.units_repaired, 'unit')} of queues written again from the log"
        why = "ConsumeQueue files were missing or damaged; no message is lost by it"
        return Finding("recovery", Verdict.WARNING, what, why=why, do=_LOOK_AT_DISK, measures=measures)
    return Finding("recovery", Verdict.OK, what, measures=measures)


def _lost(recovery: Recovery) -> tuple[Verdict, str, str, str, str] | None:
    """Verdict, what, which, why and what to do, where files of the log or tables are not what they were."""
    if recovery.foreign_files:
        what = f"{plural(recovery.foreign_files, 'log file')} of other records than its queues have"
        why = "it was replaced by that of another store, or of another time; readers leave such messages out"
        do = "the broker's log lines recovery.file_foreign name it; stop, put the right one back, shmq store verify"
        return Verdict.CRITICAL, what, "", why, do
    if recovery.lost_messages:
        what = f"{plural(recovery.lost_messages, 'message')} of missing log files were given up at the last start"
        why = "the broker was started with --accept-loss; groups that had not read them do not get them"
        do = "restore the files from a copy, if there is one; take --accept-loss out of the command or unit file"
        return Verdict.WARNING, what, "", why, do
    if recovery.restored_files:
        names = ", ".join(f"config/{name}" for name in recovery.restored_files)
        what = f"{names} could not be used as found at the last start; its backup ({_BACKUPS}) took its place"
        why = "it was edited, damaged or missing; the backup is one change older, so messages may come again"
        do = f"{_SAID} config.unreadable and config.from_backup say what was wrong; {_SET_AGAIN}"
        return Verdict.WARNING, what, "", why, do
    if recovery.entries_ignored:
        names = ", ".join(f"config/{name}" for name in recovery.ignored_files) or "the tables in config/"
        what = f"{plural(recovery.entries_ignored, 'line')} of {names} can mean nothing and had to be left out"
        why = "somebody edited it; groups may get messages again, or topics lack settings"
        do = f"{_SAID} config.entry_ignored name them; {_SET_AGAIN}"
        return Verdict.WARNING, what, "", why, do
    return None


def _scrub(scrub: Scrub) -> Finding:
    when = "the first pass is under way" if scrub.age is None else f"last pass ended {age_text(scrub.age)} ago"
    what = f"checks in the background: {when}, {size_text(scrub.checked_bytes)} compared with their checksums"
    found = scrub.damages + scrub.units_rebuilt + scrub.tables_rewritten + scrub.indexes_rebuilt
    measures = {"scrub_found": Measure(found)}
    if not found:
        return Finding("scrub", Verdict.OK, what, measures=measures)
    what += (
        f"; {plural(scrub.damages, 'damaged range')} of the log, {plural(scrub.units_rebuilt, 'unit')}, "
        f"{plural(scrub.tables_rewritten, 'table')} and {plural(scrub.indexes_rebuilt, 'index file')} that had to be "
        "written again"
    )
    why = "bytes of the store were not what was written: the disk, or somebody who wrote into the files"
    return Finding("scrub", Verdict.WARNING, what, why=why, do=f"shmq store scrub; {_LOOK_AT_DISK}", measures=measures)


def _clients(snapshot: Snapshot) -> Iterator[Finding]:
    local = [client for client in snapshot.clients if client.transport == "shm"]
    for client in local:
        if not client.alive:
            what = f"client slot {client.slot} belongs to process {client.pid}, which is dead"
            why = "the bridge takes such slots back within a second; it is stopped or dead"
            name = client.client_id or str(client.pid)
            yield Finding("process", Verdict.WARNING, what, name, why, "shmq health names the bridge's state")
    for process in snapshot.processes:
        if process.role == "client" and process.state in STOPPED:
            name = ", ".join(process.client_ids) or process.name or str(process.pid)
            what = f"client process {process.pid} ({name}) is {process.state}"
            why = "the queues it owns are read by nobody until it goes on or ends"
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
