"""What people and monitoring are shown: many healthy groups in one line, the broker's own groups only when asked."""

from shmq.figures.snapshot import Group, Snapshot
from shmq.figures.thresholds import Thresholds
from shmq.tools.health.group_rules import group_findings
from shmq.tools.health.report import Report
from tests.tools.health.test_rules import GROUP, LOG, PROCESSES, SNAPSHOT

SYSTEM = "CID_RMQ_SYS_TIMER"


def report_of(*groups: Group, snapshot: Snapshot = SNAPSHOT) -> Report:
    whole = snapshot._replace(groups=groups)
    return Report(whole, list(group_findings(whole, Thresholds())))


def healthy(name: str) -> Group:
    return GROUP._replace(name=name, lag=2, ready=1)


def test_many_groups_that_are_well_take_one_line() -> None:
    report = report_of(*(healthy(f"group-{number}") for number in range(368)))
    lines = report.lines()
    assert len(lines) == 2 and "368 groups are well: lag 736, ready 368 in all" in lines[1]
    report.everything = True
    assert len(report.lines()) == 369
    assert len(report.document(parts=False)["findings"]) == 368


def test_a_group_that_is_not_well_keeps_its_line() -> None:
    late = GROUP._replace(name="late", lag=1_000_000, ready=1_000_000)
    lines = report_of(*(healthy(f"group-{number}") for number in range(6)), late).lines()
    assert "group late" in lines[1] and "6 groups are well" in lines[-1]


def test_groups_of_the_broker_itself_are_shown_only_when_asked() -> None:
    report = report_of(healthy("billing"), healthy(SYSTEM))
    assert SYSTEM not in "\n".join(report.lines()) and SYSTEM not in report.nagios() and "billing" in report.nagios()
    report.everything = True
    assert SYSTEM in "\n".join(report.lines()) and SYSTEM in report.nagios()
    late = report_of(healthy(SYSTEM)._replace(lag=1_000_000, ready=1_000_000))
    assert SYSTEM in "\n".join(late.lines()) and SYSTEM in late.nagios(), "bad news are shown all the same"


def test_a_deep_look_is_shown_in_the_table() -> None:
    keeper = PROCESSES[1]._replace(uss_bytes=12 << 20, pss_bytes=14 << 20, mappings=41)
    log = LOG._replace(resident_bytes=1 << 20, examined_bytes=8 << 20)
    text = "\n".join(report_of(snapshot=SNAPSHOT._replace(processes=(keeper,), log=log)).lines())
    assert "memory of keeper" in text and "12.0 MiB alone, 14.0 MiB with" in text and "41 mappings" in text
    assert "1.0 MiB of 8.0 MiB are in the page cache" in text
