"""Rules for a broker: whether it runs, takes appends, and whether a process blocks the others; and for its store.

broker_findings   what keeps messages from flowing now: daemon, store, slaves, master, lock, claim
store_findings    what will, or has cost messages: disk, log space, the table of queues, last recovery, scrubber
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from shmq.figures.processes import STOPPED
from shmq.figures.quantity import age_text, count_text, plural, size_text
from shmq.figures.snapshot import Broker, Claim, Counted, Disk, Lock, Log, Process, Recovery, Scrub, Snapshot
from shmq.figures.thresholds import (
    INTERNAL_ERRORS_TOLD_SECONDS,
    LOG_LINES_TOLD_SECONDS,
    QUEUES_CRIT_PERCENT,
    QUEUES_WARN_PERCENT,
    RECOVERY_TOLD_SECONDS,
    SPARE_SHARE_LEAST,
    Thresholds,
)
from shmq.figures.verdict import Finding, Measure, Verdict, judge
from shmq.shm.core import READ_ONLY_FOLLOWER

if TYPE_CHECKING:
    from shmq.figures.changed_files import ChangedFile

# What follows when a process of the broker does not run; the supervisor starts the others again.
_WITHOUT = {
    "supervisor": "the others are not started again, and the next one that ends stays away",
    "keeper": "nothing is flushed, and producers stop when the log space made ahead is used up",
    "exporter": "the metrics cannot be scraped; what they count goes on",
    "replication": "slaves on other hosts do not get what is stored here now",
    "bridge": "no client can connect, join a group or use TCP; who is connected goes on sending and reading",
}
_SAID = "the broker's log lines"
_BACKUPS = "the same name with .bak"
_SET_AGAIN = (
    "set again what is missing (shmq topic update, shmq group create); to edit the file, stop the broker first "
    "and take its last entry, shmqCrc32, out"
)
_LOOK_AT_DISK = "the broker's log lines name them; smartctl -a"
_READ_ONLY = {
    1: (
        "a write to the store's disk failed, and after that nothing can be promised to be stored",
        "look at `dmesg` and the mount, repair the disk, then: shmq stop; shmq serve",
    ),
    2: ("producers died one after the other inside an append", "find out what kills them, then: shmq stop; shmq serve"),
    3: ("a process that holds the append lock was stopped, and the broker may not kill it", "kill -CONT or kill -9 it"),
    4: ("the disk is above the mark at which the broker stores nothing more", "make room, or lower --retention-hours"),
    5: ("an operator asked for it", "shmq stop; shmq serve"),
    7: (
        "fewer slaves are in sync than --in-sync-min asks for: they are gone, behind by 2 s, or not of shmq",
        "start a slave (its log says what it lacks), or go on with one disk: shmq stop; shmq serve … --in-sync-min 1",
    ),
    8: (
        "it was demoted, or a slave of a newer master has connected: what it stored now would be cut off",
        "see which host leads: shmq cluster status on each; then here: shmq stop; shmq serve --role slave --master …",
    ),
    9: (
        "a program changed the store under the running broker: what was stored behind that might have been lost",
        "see which program does it, and the lines file.saved and file.lost of the log; then: shmq stop; shmq serve",
    ),
}


def broker_findings(snapshot: Snapshot, thresholds: Thresholds) -> Iterator[Finding]:
    """Judge the broker itself."""
    yield from _faults(snapshot)
    if not snapshot.broker.generation or any(fault.kind == "ForeignNamespace" for fault in snapshot.faults):
        return  # its processes have other numbers here, so whether they live is unknown
    yield from _daemon(snapshot, thresholds)
    if snapshot.counted is not None:
        yield from _counted(snapshot.counted)
        yield from _changed(snapshot.counted.files, snapshot.broker.store_path)
    yield from _store(snapshot)
    yield from _replicas(snapshot)
    if snapshot.replication is not None or snapshot.broker.read_only == READ_ONLY_FOLLOWER:
        from shmq.figures.replication_rules import replication_findings  # most brokers have no other host

        yield from replication_findings(snapshot, thresholds)
    if snapshot.broker.quarantined:
        yield _damaged(snapshot.broker)
    if snapshot.lock is not None:
        yield from _lock(snapshot.lock, thresholds)
    if snapshot.claim is not None:
        yield from _claim(snapshot.claim, thresholds)


def store_findings(snapshot: Snapshot, thresholds: Thresholds) -> Iterator[Finding]:
    """Judge what the broker keeps."""
    if snapshot.disk is not None:
        yield disk_finding(snapshot.disk)
    if snapshot.log is not None:
        yield from _log(snapshot, snapshot.log, thresholds)
        yield from _queues(snapshot, snapshot.log)
    if snapshot.recovery is not None:
        yield _recovery(snapshot.recovery)
    if snapshot.scrub is not None:
        yield _scrub(snapshot.scrub)


def serve_command(snapshot: Snapshot) -> str:
    """Return the command that starts this broker again."""
    broker = snapshot.broker
    name = "" if broker.name == "default" else f" --name {broker.name}"
    return f"shmq serve{name}" + (f" --store {broker.store_path}" if broker.store_path else "")


def _faults(snapshot: Snapshot) -> Iterator[Finding]:
    for fault in snapshot.faults:
        if fault.kind == "BrokerNotRunning":
            yield Finding(
                "daemon", Verdict.CRITICAL, fault.error, why="it was stopped, or never started", do=fault.hint
            )
        elif fault.kind == "VersionMismatch":
            yield Finding(
                "versions",
                Verdict.CRITICAL,
                fault.error,
                why="this library cannot read these segments, and a client of this version cannot attach",
                do=f"pip install shmq=={snapshot.broker.version}, or restart the broker with this version",
            )
        elif fault.kind == "PermissionDenied" and fault.what == "segments":
            continue  # `room_rules` says which file has which owner and mode
        else:
            denied = fault.kind in ("PermissionDenied", "PermissionError", "ForeignNamespace")
            verdict = Verdict.UNKNOWN if denied or fault.what != "segments" else Verdict.CRITICAL
            why = "this user or namespace may not look" if denied else f"{fault.kind} while reading it"
            yield Finding(fault.what, verdict, fault.error, why=why, do=fault.hint or "shmq doctor")


def _daemon(snapshot: Snapshot, thresholds: Thresholds) -> Iterator[Finding]:
    broker = snapshot.broker
    own = [process for process in snapshot.processes if process.role != "client"]
    bad = [finding for process in own if (finding := _process(snapshot, process)) is not None]
    if not own:
        bad = [_finding_dead(snapshot, "the segments are of before the last reboot, and no broker runs since")]
    missing = {"supervisor", "keeper", "bridge"} - {process.role for process in own}
    if own and missing:
        what = f"there is no {' and no '.join(sorted(missing))}"
        bad.append(
            Finding("daemon", Verdict.CRITICAL, what, why="it ended and was not started again", do="shmq doctor")
        )
    yield from bad
    beat = broker.keeper_beat_age
    if beat is not None and not any(finding.subject == "keeper" for finding in bad) and broker.served:
        verdict = judge(beat, thresholds.beat_warn, thresholds.beat_crit)
        measures = {"keeper_beat_age": Measure(beat, "s", thresholds.beat_warn, thresholds.beat_crit)}
        if verdict is not Verdict.OK:
            what = f"the keeper's last round was {age_text(beat)} ago"
            why = "it runs but does not get on: a disk that does not answer, or no processor time"
            yield Finding("daemon", verdict, what, "keeper", why, "look at its log lines, `dmesg` and iostat", measures)
        elif not bad:
            supervisor = snapshot.process("supervisor")
            up = f", up {age_text(supervisor.age)}" if supervisor and supervisor.age is not None else ""
            pids = ", ".join(f"{process.role} {process.pid}" for process in own)
            yield Finding("daemon", Verdict.OK, f"{pids}{up}", measures=measures)


def _counted(counted: Counted) -> Iterator[Finding]:
    """Report a count for a while after its last rise."""
    count, age = counted.log_lines_dropped, counted.log_lines_dropped_age
    if age is not None and age < LOG_LINES_TOLD_SECONDS:
        what = f"{plural(count, 'line')} of the broker's log could not be written, the last {age_text(age)} ago"
        why = "its stderr is full because nothing reads it: a pager, a log shipper that hangs, Ctrl-S; or was closed"
        do = "read it again (Ctrl-Q in its terminal), or start it so: shmq serve --detach --log-file FILE"
        yield Finding("daemon", Verdict.WARNING, what, "stderr", why, do, {"log_lines_dropped": Measure(count, "c")})
    count, age = counted.internal_errors, counted.internal_errors_age
    if age is not None and age < INTERNAL_ERRORS_TOLD_SECONDS:
        what = f"{plural(count, 'fault')} inside the broker, the last {age_text(age)} ago"
        why = "a defect of shmq: what was being served then has failed, the rest went on"
        do = "report it with the lines internal.error and process.fault of its log"
        yield Finding("daemon", Verdict.WARNING, what, "faults", why, do, {"internal_errors": Measure(count, "c")})


def _changed(files: tuple[ChangedFile, ...], root: str) -> Iterator[Finding]:
    """Files of the store that a program changed under the running broker; reported until the next start."""
    if not files:
        return
    from shmq.figures.changed_files import findings_of_files  # hardly ever needed

    yield from findings_of_files(files, root)


def _finding_dead(snapshot: Snapshot, what: str) -> Finding:
    why = _WITHOUT["keeper"] + "; " + _WITHOUT["bridge"]
    return Finding("daemon", Verdict.CRITICAL, what, "supervisor", why, serve_command(snapshot))


def _process(snapshot: Snapshot, process: Process) -> Finding | None:
    name = f"the {process.role} (pid {process.pid})"
    what_follows = _WITHOUT.get(process.role, "clients of this bridge over TCP wait")
    if process.state in STOPPED:
        do = f"kill -CONT {process.pid}" if process.state == "stopped" else "thaw its control group (cgroup.freeze)"
        return Finding("daemon", Verdict.CRITICAL, f"{name} is {process.state}", process.role, what_follows, do)
    if process.alive:
        return None
    what = f"{name} is dead"
    if process.role == "supervisor":
        return Finding("daemon", Verdict.CRITICAL, what, process.role, what_follows, serve_command(snapshot))
    if snapshot.broker.served:
        do = "wait a second: the supervisor starts it again; if it does not, its log lines say why"
        return Finding("daemon", Verdict.CRITICAL, what, process.role, what_follows, do)
    return Finding("daemon", Verdict.CRITICAL, what, process.role, what_follows, serve_command(snapshot))


def _replicas(snapshot: Snapshot) -> Iterator[Finding]:
    """Whether slaves have what a synchronous master acknowledges."""
    log = snapshot.log
    if log is None or log.replicas_in_sync is None:
        return
    measures = {
        "replicas_in_sync": Measure(log.replicas_in_sync, "c"),
        "unconfirmed": Measure(log.unconfirmed_bytes, "B"),
    }
    what = f"a synchronous master: {plural(log.replicas_in_sync, 'slave')} in sync, "
    what += f"{size_text(log.unconfirmed_bytes)} not confirmed"
    if log.replicas_in_sync:
        yield Finding("replicas", Verdict.OK, what, measures=measures)
        return
    why = "no slave is in sync: none is connected, or all are behind by 2 s or 256 MiB, or are stock brokers"
    do = "look for ha.out_of_sync in the broker's log, and for ha.master_lost in the slave's"
    yield Finding("replicas", Verdict.WARNING, what, why=why, do=do, measures=measures)


def _store(snapshot: Snapshot) -> Iterator[Finding]:
    broker, log = snapshot.broker, snapshot.log
    if broker.read_only is None or log is None:
        return
    if broker.retired:
        what, why = "these segments were given up", "the broker was stopped, or made new ones"
        yield Finding("store", Verdict.CRITICAL, what, why=why, do=serve_command(snapshot))
    elif broker.read_only == READ_ONLY_FOLLOWER:
        what = f"a slave: {broker.read_only_text}, {size_text(log.end - log.begin)} in {log.files} files are here"
        yield Finding("store", Verdict.OK, what, measures={"log_bytes": Measure(log.end - log.begin, "B")})
    elif broker.read_only:
        why, do = _READ_ONLY.get(broker.read_only, ("", "shmq doctor"))
        what = f"the store takes no messages: {broker.read_only_text}"
        yield Finding(
            "store", Verdict.CRITICAL, what, why=why, do=do, measures={"read_only": Measure(broker.read_only)}
        )
    else:
        size = log.end - log.begin
        what = f"writable, {size_text(size)} in {log.files} files, {count_text(log.appended)} messages since its start"
        measures = {"log_bytes": Measure(size, "B"), "appended": Measure(log.appended, "c")}
        yield Finding("store", Verdict.OK, what, measures=measures)


def _damaged(broker: Broker) -> Finding:
    count = broker.quarantined
    what = f"{count_text(count)} damaged {'record was' if count == 1 else 'records were'} found; no reader gets them"
    why = "the disk or the memory changed what was stored, or another program wrote into the store"
    do = f"ls {broker.store_path}/quarantine: send those messages again, then remove the copies; check the disk"
    return Finding("store", Verdict.WARNING, what, "quarantine", why, do, {"damaged": Measure(count, "c")})


def _lock(lock: Lock, thresholds: Thresholds) -> Iterator[Finding]:
    measures = {"lock_held": Measure(round(lock.held, 3), "s", thresholds.lock_warn)}
    who = (
        f"process {lock.pid} ({lock.name}, {lock.state})"
        if lock.pid is not None
        else f"thread {lock.tid}, which is dead,"
        if lock.state == "dead"
        else f"a thread of another user ({lock.tid}, hidden from this one)"
    )
    what = f"{who} holds the append lock, for {lock.held:.2f} s at least"
    if lock.state in STOPPED:
        why = "no process of this host can append while it is stopped; after its lease the keeper kills it, if it may"
        do = f"kill -CONT {lock.pid}, or kill -9 {lock.pid}: what it had begun is finished or undone"
        yield Finding("lock", Verdict.CRITICAL, what, str(lock.pid), why, do, measures)
    elif lock.state == "dead":
        why = "it died inside an append; the next process that appends repairs what it had begun"
        yield Finding("lock", Verdict.WARNING, what, str(lock.tid), why, "nothing, or send a message", measures)
    elif lock.held >= thresholds.lock_warn:
        why = "an append takes microseconds: it waits for the disk, or gets no processor time"
        yield Finding(
            "lock",
            Verdict.WARNING,
            what,
            str(lock.pid or lock.tid),
            why,
            f"cat /proc/{lock.pid or lock.tid}/stack; top",
            measures,
        )


def _claim(claim: Claim, thresholds: Thresholds) -> Iterator[Finding]:
    measures = {"claim_age": Measure(round(claim.age, 3), "s", thresholds.claim_warn)}
    what = f"process {claim.pid} ({claim.state}) has had {size_text(claim.size_bytes)} open for {claim.age:.2f} s"
    if not claim.alive:
        why, do = "it died while it wrote; the next append closes the region", "nothing, or send a message"
    elif claim.state in STOPPED or claim.age >= thresholds.claim_warn:
        why = "the next append takes the region away from it, and its message is copied when it goes on"
        do = f"kill -CONT {claim.pid}" if claim.state in STOPPED else "commit() or abort() sooner after reserve()"
    else:
        return
    yield Finding("claim", Verdict.WARNING, what, str(claim.pid), why, do, measures)


def disk_finding(disk: Disk) -> Finding:
    """Judge the disk of a store by the broker's own marks."""
    measures = {"disk_used": Measure(disk.used_percent, "%", disk.warn_percent, disk.refuse_percent)}
    what = f"{disk.used_percent} % of {size_text(disk.size_bytes)} used, {size_text(disk.free_bytes)} free, {disk.path}"
    do, verdict = f"make room: du -xh {disk.path}, or shorten --retention-hours", Verdict.WARNING
    if not disk.writable:
        what, do, verdict = f"{disk.path} is mounted read-only", "dmesg; mount", Verdict.CRITICAL
        why = "nothing that is sent now reaches the disk; after an error the kernel mounts it so"
    elif disk.used_percent > disk.refuse_percent:
        why = f"above {disk.refuse_percent} % the broker stores nothing more, so that what it holds stays whole"
        verdict = Verdict.CRITICAL
    elif disk.used_percent >= disk.force_percent:
        why = f"from {disk.force_percent} % on the oldest log files go although they have not expired"
    elif disk.used_percent >= disk.warn_percent:
        why = f"it has passed {disk.warn_percent} %; from {disk.force_percent} % on files go before their time"
    else:
        return Finding("disk", Verdict.OK, what, disk.path, measures=measures)
    return Finding("disk", verdict, what, disk.path, why, do, measures)


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
    if ahead < log.file_bytes * SPARE_SHARE_LEAST and not snapshot.broker.retired:
        short = f"{size_text(ahead)} of log space are left, less than a tenth of a file"
        why = "the keeper has not made the next file: it is dead, stopped, or the disk is full"
        is_served = snapshot.broker.served
        do = "df -h; look at the keeper's log lines" if is_served else serve_command(snapshot)
        yield Finding("log", Verdict.WARNING if ahead else Verdict.CRITICAL, short, "space", why, do, measures)
    elif verdict is Verdict.OK:
        yield Finding("log", Verdict.OK, what, measures=measures)


def _queues(snapshot: Snapshot, log: Log) -> Iterator[Finding]:
    percent = 100 * log.queues_taken / log.queues_max if log.queues_max else 0.0
    verdict = judge(percent, QUEUES_WARN_PERCENT, QUEUES_CRIT_PERCENT)
    if verdict is Verdict.OK:
        return
    gone = max(0, log.queues_taken - sum(topic.queues for topic in snapshot.topics))
    taken, most = count_text(log.queues_taken), count_text(log.queues_max)
    what = f"{taken} of {most} queues are taken, {count_text(gone)} of them by deleted topics"
    why = "when all are taken no topic can be created, and no group gets its retry topic"
    do = "look at the keeper's log lines: it frees them within a second" if gone else "delete unneeded topics"
    measures = {"queues_taken": Measure(round(percent, 1), "%", QUEUES_WARN_PERCENT, QUEUES_CRIT_PERCENT)}
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
    lost = _lost(recovery) if recovery.age < RECOVERY_TOLD_SECONDS else None
    if lost is not None:
        return Finding("recovery", *lost, measures=measures)
    if recovery.marks_restored and recovery.age < RECOVERY_TOLD_SECONDS:
        what += ", the durable mark, the checkpoint or the checksums of units were damaged and had to be written again"
        why = "bytes of shmq.durable, checkpoint or shmq.units were not what was written; no message is lost by it"
        return Finding("recovery", Verdict.WARNING, what, why=why, do=_LOOK_AT_DISK, measures=measures)
    if recovery.damages and recovery.age < RECOVERY_TOLD_SECONDS:
        why = "bytes of the log were not what was written: the disk, or a program that wrote into the files"
        do = "the broker's log lines name the ranges; smartctl -a; restore those files from a copy"
        return Finding("recovery", Verdict.WARNING, what, why=why, do=do, measures=measures)
    if recovery.units_repaired and recovery.age < RECOVERY_TOLD_SECONDS:
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
        why = "it was edited by hand; groups may get messages again, or topics lack settings"
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
    why = "bytes of the store were not what was written: the disk, or a program that wrote into the files"
    return Finding("scrub", Verdict.WARNING, what, why=why, do=f"shmq store scrub; {_LOOK_AT_DISK}", measures=measures)
