"""Findings that repeat themselves are counted, with the command that shows all of them."""

from shmq.tools.doctor.finding import Finding, ok, warn
from shmq.tools.doctor.report import ALIKE_MAX, together


def test_a_long_row_of_one_check_is_cut_and_counted() -> None:
    alike: list[Finding] = [warn("consumers.overdue", f"group {n}", "invisible=", group=f"{n}") for n in range(368)]
    shown = list(together([ok("machine.clock", "fine"), *alike, warn("broker.log", "x", "y")]))
    assert [finding.what for finding, _ in shown] == ["fine", "group 0", "group 1", "group 2", "x"]
    assert [others for _, others in shown] == [0, 0, 0, 365, 0]


def test_a_short_row_is_shown_whole() -> None:
    alike = [warn("consumers.overdue", f"group {n}", "invisible=") for n in range(ALIKE_MAX)]
    assert list(together(alike)) == [(finding, 0) for finding in alike]
