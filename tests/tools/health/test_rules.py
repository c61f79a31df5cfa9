"""What each figure means: rules over snapshots made by hand, for what cannot be had on every machine."""

from typing import Any

import pytest

from shmq.figures.broker_rules import broker_findings
from shmq.figures.changed_files import ChangedFile
from shmq.figures.snapshot import (
    Broker,
    Claim,
    Client,
    Counted,
    Departure,
    Disk,
    Fault,
    Group,
    Lock,
    Log,
    Member,
    Memory,
    Presence,
    Process,
    QueueProgress,
    Recovery,
    Refusal,
    Replication,
    Security,
    Segment,
    Snapshot,
    plain,
)
from shmq.figures.thresholds import Thresholds
from shmq.figures.verdict import Finding, Measure, Verdict, judge, worst
from shmq.shm.core import READ_ONLY_FOLLOWER, READ_ONLY_REASONS
from shmq.tools.health.group_rules import group_findings
from shmq.tools.health.report import Report
from shmq.tools.health.room_rules import room_findings
from shmq.tools.health.security_rules import security_findings
from tests.tables.rows import every_row

OK, WARNING, CRITICAL, UNKNOWN = Verdict
GIB = 1 << 30

BROKER = Broker(
    "b",
    "shmq:///run/b",
    "/run/b",
    "/store",
    "00c0",
    "posix",
    "1.0",
    4,
    7,
    0o600,
    True,
    False,
    False,
    0,
    "",
    0.1,
    "",
    "",
)
LOG = Log(0, 1000, 1000, 2 * GIB, GIB, 2, 1, 0, 0, 0, 0, 10, 1000, 0, 0, 0)
DISK = Disk("/store", 100 * GIB, 50 * GIB, 50 * GIB, 50, 75, 85, 90, True)
MEMORY = Memory(GIB, GIB // 2, "/g", None, None, None)
PROCESSES = tuple(
    Process(n, n * 10, role, "sleeping", True) for n, role in enumerate(("supervisor", "keeper", "bridge"), 1)
)
SNAPSHOT = Snapshot(1.0, BROKER, PROCESSES, Presence(3, 3), (), MEMORY, LOG, None, None, DISK, (), (), (), None, ())
FOLLOWING = Replication("slave", 0.1, (), (), (), None, standing="follows")
CLIENT = Client("c", 5, 50, 500, True, "shm", "", "python", "1.0", "both", 4, 0, 0, 9.0, False, ("g",), ())
QUEUE = QueueProgress("t", 0, 0, 10, 2, 8, 8, 50, 9.0)
GROUP = Group(
    "g", "clustering", 8, 8, True, 9.0, (Member("c", "shm", "python", 50, True, {"t": "*"}),), (QUEUE,), None, 0, ()
)


def judged(snapshot: Snapshot = SNAPSHOT, /, **changes: Any) -> list[Finding]:
    """What is not OK of a snapshot with changes; each says what, why and what to do."""
    thresholds = Thresholds()
    snapshot = snapshot._replace(**changes)
    findings = [
        *broker_findings(snapshot, thresholds),
        *room_findings(snapshot, thresholds),
        *group_findings(snapshot, thresholds),
    ]
    bad = [finding for finding in findings if finding.verdict is not OK]
    assert all(finding.what and finding.why and finding.do for finding in bad)
    return bad


def only(findings: list[Finding]) -> tuple[str, Verdict, str]:
    [finding] = findings
    return finding.check, finding.verdict, finding.what


def test_a_broker_without_trouble_has_none() -> None:
    assert judged() == []
    assert judged(groups=(GROUP._replace(lag=0, ready=0, oldest=None, queues=()),)) == []


@pytest.mark.parametrize(
    ("used", "verdict"), [(74, None), (75, WARNING), (84, WARNING), (85, WARNING), (90, WARNING), (91, CRITICAL)]
)
def test_the_marks_of_the_disk_are_75_85_and_90_percent(used: int, verdict: Verdict | None) -> None:
    found = judged(disk=DISK._replace(used_percent=used))
    assert [finding.verdict for finding in found] == ([verdict] if verdict else [])
    if used in (84, 85):
        assert ("before their time" in found[0].why) is (used == 84)


def test_a_disk_that_is_mounted_read_only_is_critical() -> None:
    assert only(judged(disk=DISK._replace(writable=False)))[:2] == ("disk", CRITICAL)


def test_log_space_that_runs_out_is_reported_before_and_when_it_has() -> None:
    assert only(judged(log=LOG._replace(allocated_end=1000 + GIB // 20)))[:2] == ("log", WARNING)
    assert only(judged(log=LOG._replace(allocated_end=1000)))[:2] == ("log", CRITICAL)


@pytest.mark.parametrize(("behind", "verdict"), [(64 << 20, WARNING), (GIB, CRITICAL)])
def test_a_flush_that_is_behind_is_judged_by_its_bytes(behind: int, verdict: Verdict) -> None:
    [finding] = judged(log=LOG._replace(flush_behind_bytes=behind))
    assert (finding.check, finding.verdict, finding.measures["flush_behind"].value) == ("log", verdict, behind)


def test_a_control_group_is_judged_by_what_cannot_be_had_back() -> None:
    full = MEMORY._replace(cgroup_limit_bytes=100, cgroup_used_bytes=98, cgroup_reclaimable_bytes=50)
    assert judged(memory=full) == []
    assert only(judged(memory=full._replace(cgroup_reclaimable_bytes=5)))[:2] == ("memory", WARNING)
    assert only(judged(memory=full._replace(cgroup_reclaimable_bytes=0)))[:2] == ("memory", CRITICAL)


def test_damage_of_the_last_recovery_is_a_warning_for_a_day() -> None:
    recovery = Recovery(60.0, 0.5, False, 100, 3, 0, 2)
    check, verdict, what = only(judged(recovery=recovery))
    assert (check, verdict) == ("recovery", WARNING) and "2 damaged ranges" in what
    assert judged(recovery=recovery._replace(age=90_000.0)) == []
    assert judged(recovery=recovery._replace(damages=0)) == []
    assert "2 damaged ranges with 42 messages" in only(judged(recovery=recovery._replace(damaged_messages=42)))[2]


@every_row(
    "found, verdict, says, cure",
    [
        ({"tables_restored": 1, "restored_files": ("topics.json",)}, WARNING, "config/topics.json could", "shmqCrc32"),
        (
            {"entries_ignored": 3, "ignored_files": ("consumerOffset.json",)},
            WARNING,
            "config/consumerOffset.json",
            "create",
        ),
        ({"lost_messages": 42}, WARNING, "42 messages of missing log files", "take --accept-loss out"),
        ({"foreign_files": 1}, CRITICAL, "1 log file of other records", "shmq store verify"),
    ],
)
def test_what_the_last_recovery_could_not_take_is_named_with_what_was_done_and_what_to_do(
    found: dict[str, Any], verdict: Verdict, says: str, cure: str
) -> None:
    recovery = Recovery(60.0, 0.5, True, 100, 3, 0, 0)._replace(**found)
    [finding] = judged(recovery=recovery)
    assert (finding.check, finding.verdict) == ("recovery", verdict) and says in finding.what
    assert cure in finding.do and "smartctl" not in finding.do
    assert judged(recovery=recovery._replace(age=90_000.0)) == []


def test_a_lock_is_judged_by_who_holds_it_and_for_how_long() -> None:
    lock = Lock(50, 50, 500, "python", "running", 0.05)
    assert judged(lock=lock) == []
    assert only(judged(lock=lock._replace(held=1.0)))[:2] == ("lock", WARNING)
    for state in ("stopped", "frozen"):
        assert only(judged(lock=lock._replace(state=state)))[:2] == ("lock", CRITICAL)
    assert only(judged(lock=lock._replace(pid=None, state="dead")))[:2] == ("lock", WARNING)
    hidden = lock._replace(pid=None, state="hidden")  # by /proc: it may live
    assert judged(lock=hidden) == [] and "hidden" in only(judged(lock=hidden._replace(held=1.0)))[2]


def test_a_claim_is_judged_by_its_owner_and_its_age() -> None:
    claim = Claim(50, 500, True, "sleeping", 4096, 0.01)
    assert judged(claim=claim) == []
    for bad in (claim._replace(age=1.5), claim._replace(state="stopped"), claim._replace(alive=False, state="dead")):
        assert only(judged(claim=bad))[:2] == ("claim", WARNING)


def test_a_keeper_that_runs_but_does_not_get_on_is_reported() -> None:
    assert only(judged(broker=BROKER._replace(keeper_beat_age=4.0)))[:2] == ("daemon", WARNING)
    assert only(judged(broker=BROKER._replace(keeper_beat_age=11.0)))[:2] == ("daemon", CRITICAL)


def test_lost_lines_are_reported_for_an_hour_and_faults_for_a_day() -> None:
    lines = only(judged(counted=Counted(12, 3599.0, 0, None)))
    assert lines[:2] == ("daemon", WARNING) and "12 lines" in lines[2]
    faults = only(judged(counted=Counted(0, None, 1, 86399.0)))
    assert faults[:2] == ("daemon", WARNING) and "1 fault inside" in faults[2]
    for counted in (Counted(0, None, 0, None), Counted(12, 3600.0, 1, 86400.0)):
        assert judged(counted=counted) == []


def test_files_that_changed_under_the_broker_are_reported_with_what_to_do() -> None:
    files = [ChangedFile(f"{BROKER.store_path}/a", fate, "was removed", "mend") for fate in ("lost", "saved", "access")]
    files += [ChangedFile("b", "restored", "was replaced", "")] * 9
    found = judged(counted=Counted(0, None, 0, None, tuple(files)))
    assert [(finding.verdict, finding.do) for finding in found[:2]] == [(CRITICAL, "mend"), (WARNING, "mend")]
    assert found[0].what == "a was removed" and found[0].subject == "a"
    [rest] = found[2:]
    assert rest.verdict is WARNING and rest.what.startswith("10 files") and "a was removed, b was replaced" in rest.what


def test_a_part_of_the_broker_that_is_missing_or_dead_is_critical() -> None:
    assert "there is no bridge" in only(judged(processes=PROCESSES[:2]))[2]
    dead = PROCESSES[1]._replace(alive=False, state="dead")
    [finding] = judged(processes=(PROCESSES[0], dead, PROCESSES[2]))
    assert (finding.verdict, finding.subject) == (CRITICAL, "keeper") and "starts it again" in finding.do


@pytest.mark.parametrize("reason", sorted(READ_ONLY_REASONS.keys() - {0, READ_ONLY_FOLLOWER}))
def test_every_reason_to_take_no_messages_has_a_cause_and_a_cure(reason: int) -> None:
    assert only(judged(broker=BROKER._replace(read_only=reason, read_only_text="r")))[:2] == ("store", CRITICAL)


def test_a_slave_that_takes_no_messages_of_its_own_is_well() -> None:
    assert judged(broker=BROKER._replace(read_only=READ_ONLY_FOLLOWER, read_only_text="r"), replication=FOLLOWING) == []


def test_segments_that_were_given_up_are_critical() -> None:
    assert only(judged(broker=BROKER._replace(retired=True)))[:2] == ("store", CRITICAL)


def test_more_attached_processes_than_are_registered_are_reported() -> None:
    [finding] = judged(presence=Presence(5, 3))
    assert (finding.check, finding.measures["counted"].value, finding.measures["attached"].value) == ("process", 5, 3)
    assert judged(presence=Presence(None, 3)) == []


def test_what_a_dead_process_leaves_is_reported_where_no_bridge_takes_it_back() -> None:
    dead = CLIENT._replace(alive=False, idle=0.1)
    left = {"clients": (dead,), "groups": (GROUP._replace(members=(GROUP.members[0]._replace(alive=False),)),)}
    assert judged(**left) == []
    for bridge in ({"state": "stopped"}, {"alive": False}):
        processes = (*PROCESSES[:2], PROCESSES[2]._replace(**bridge))
        said = [finding.what for finding in judged(processes=processes, **left)]
        assert f"client slot {dead.slot} belongs to process {dead.pid}, which is dead" in said
        assert f"member {dead.client_id} (pid {dead.pid}) is dead" in said


def test_stale_segments_count_only_under_our_own_name() -> None:
    segment = Segment(
        "shmq.b.00c1.units", "/dev/shm/shmq.b.00c1.units", "units", "b", "00c1", 100, 90, 7, 0o600, "dead", "x"
    )
    [finding] = judged(segments=(segment,))
    assert (finding.check, finding.verdict, finding.measures["stale_bytes"].value) == ("segments", WARNING, 90)
    assert judged(segments=(segment._replace(broker="other"),)) == []


def test_a_member_with_nothing_in_hand_is_reported_at_once_and_one_at_work_after_a_minute() -> None:
    def of(client: Client, group: Group = GROUP) -> list[Finding]:
        return judged(clients=(client,), groups=(group,))

    assert "has not read" in only(of(CLIENT))[2]
    assert of(CLIENT._replace(in_hand=3)) == []
    long = GROUP._replace(oldest=70.0, queues=(QUEUE._replace(idle=70.0),))
    assert "3 messages in hand" in only(of(CLIENT._replace(in_hand=3, idle=70.0), long))[2]
    # Neither who has just asked, nor who has just acknowledged, nor whose messages have just come.
    assert of(CLIENT._replace(idle=0.5)) == []
    assert of(CLIENT, GROUP._replace(queues=(QUEUE._replace(idle=0.5),))) == []
    assert of(CLIENT, GROUP._replace(oldest=0.5)) == []
    assert of(CLIENT, GROUP._replace(ready=0, queues=(QUEUE._replace(ready=0),))) == []


def test_members_over_tcp_that_make_no_progress_are_reported_after_a_minute() -> None:
    member = Member("j", "tcp", "java", None, True, {"t": "*"})
    group = GROUP._replace(members=(member,), oldest=70.0, queues=(QUEUE._replace(owner_pid=None, idle=70.0),))
    check, verdict, what = only(judged(groups=(group,)))
    assert (check, verdict) == ("group", WARNING) and "no progress for 1m 10s" in what
    assert judged(groups=(group._replace(oldest=50.0),)) == []


def test_a_subscription_that_cannot_be_served_is_reported_even_without_its_group() -> None:
    refused = Refusal("g2", "c@1", "10.0.0.9:4", "the subscription to t has 40000 characters; 32767 are allowed", 3.0)
    check, verdict, what = only(judged(refused=(refused,)))
    assert (check, verdict) == ("group", WARNING)
    assert what.startswith("member c@1 (10.0.0.9:4) gets nothing: the subscription to t has 40000")


@every_row(
    "days, verdict, text",
    [
        (-1, CRITICAL, "certificate /tls/cert.pem is not valid before 1970-01-01"),
        (80, None, ""),
        (87, WARNING, "certificate /tls/cert.pem expires on 1970-04-11 00:00:00 UTC, in 13 days"),
        (101, CRITICAL, "certificate /tls/cert.pem expired on 1970-04-11"),
    ],
)
def test_a_certificate_is_reported_two_weeks_before_it_expires_and_while_it_is_not_valid(
    days: int, verdict: Verdict | None, text: str
) -> None:
    security = Security("/tls/cert.pem", 0.0, 100 * 86_400.0, "")
    bad = [each for each in security_findings(security, days * 86_400.0) if each.verdict is not OK]
    assert [each.verdict for each in bad] == ([verdict] if verdict else [])
    assert all(each.what.startswith(text) and each.why and each.do for each in bad)


def test_a_file_that_is_not_taken_is_reported_and_a_broker_without_tls_has_no_certificate() -> None:
    [finding] = security_findings(Security("", 0.0, 0.0, "/acl.yml cannot be looked at"), 0.0)
    assert (finding.check, finding.verdict, finding.what) == ("security", WARNING, "/acl.yml cannot be looked at")
    assert list(security_findings(Security("", 0.0, 0.0, ""), 0.0)) == []


def test_a_departure_counts_while_messages_wait_or_for_a_minute() -> None:
    gone = (Departure("c", 50, "shm", 300.0),)
    alone = GROUP._replace(members=(), departed=gone, queues=(QUEUE._replace(owner_pid=None),))
    assert "ended 5m 00s ago" in only(judged(groups=(alone,)))[2]
    assert judged(groups=(alone._replace(lag=0, ready=0),)) == []
    others = GROUP._replace(lag=0, ready=0, queues=(), departed=gone)
    assert judged(groups=(others,)) == []
    fresh = (gone[0]._replace(age=5.0),)
    assert "1 other member there" in only(judged(groups=(others._replace(departed=fresh),)))[2]


@pytest.mark.parametrize(("ready", "verdict"), [(9_999, OK), (10_000, WARNING), (100_000, CRITICAL)])
def test_lag_is_judged_at_its_bounds(ready: int, verdict: Verdict) -> None:
    group = GROUP._replace(lag=200_000, ready=ready, queues=())
    findings = list(group_findings(SNAPSHOT._replace(groups=(group,)), Thresholds()))
    assert [finding.verdict for finding in findings] == [verdict]


@pytest.mark.parametrize(
    ("kind", "what", "verdict"),
    [
        ("BrokerNotRunning", "instance", CRITICAL),
        ("VersionMismatch", "segments", CRITICAL),
        ("SegmentError", "segments", CRITICAL),
        ("ForeignNamespace", "segments", UNKNOWN),
        ("PermissionDenied", "instance", UNKNOWN),
        ("CorruptionError", "roster", UNKNOWN),
    ],
)
def test_what_cannot_be_read_is_never_ok(kind: str, what: str, verdict: Verdict) -> None:
    assert only(judged(faults=(Fault(what, kind, "it says", "do this"),)))[1] is verdict


def test_verdicts_add_up_as_nagios_adds_them() -> None:
    def verdict(*several: Verdict) -> Verdict:
        return worst(Finding("c", one, "w") for one in several)

    assert verdict() is OK
    assert verdict(OK, WARNING) is WARNING
    assert verdict(WARNING, UNKNOWN) is UNKNOWN
    assert verdict(UNKNOWN, CRITICAL, OK) is CRITICAL
    assert [judge(value, 5, 9) for value in (4, 5, 8, 9)] == [OK, WARNING, WARNING, CRITICAL]
    assert judge(1e9, None, None) is OK


def test_a_line_for_nagios_holds_no_bar_in_its_text_and_every_measure_once() -> None:
    findings = [
        Finding("group", WARNING, "a | b", "g 1", "w", "d", {"lag": Measure(7, "", 5, 9)}),
        Finding("group", OK, "again", "g 1", measures={"lag": Measure(8)}),
        Finding("disk", OK, "d", measures={"disk_used": Measure(50, "%", None, 90)}),
    ]
    line = Report(SNAPSHOT, findings).nagios()
    assert line == "WARNING group g 1: a / b (w) | lag.g_1=7;5;9 disk_used=50%;;90"


def test_labels_of_prometheus_are_escaped() -> None:
    text = Report(SNAPSHOT, [Finding("group", OK, "w", 'a"\\\n')]).prometheus()
    assert 'shmq_health_status{check="group",subject="a\\"\\\\\\n"} 0' in text.splitlines()


def test_a_snapshot_becomes_plain_values() -> None:
    document = plain(SNAPSHOT._replace(groups=(GROUP,)))
    assert document["groups"][0]["members"][0]["subscription"] == {"t": "*"}
    assert document["processes"][0]["role"] == "supervisor" and document["recovery"] is None


@pytest.mark.parametrize(("taken", "verdict"), [(79, None), (80, WARNING), (94, WARNING), (95, CRITICAL)])
def test_a_table_of_queues_that_fills_up_is_reported_before_it_is_full(taken: int, verdict: Verdict | None) -> None:
    found = judged(log=LOG._replace(queues_taken=taken, queues_max=100))
    assert [finding.verdict for finding in found] == ([] if verdict is None else [verdict])
    assert all(f"{taken} of 100 queues" in finding.what and finding.do for finding in found)
