"""No peer fills the log or hides what others cause, and the limiter itself says little."""

from typing import Any

from shmq.daemon.bridge.limited_log import PEER_LINES_MAX, TICKS_PER_LINE, TICKS_PER_SUMMARY, LimitedLog

Lines = list[tuple[str, dict[str, Any]]]


def new_log() -> tuple[LimitedLog, Lines]:
    lines: Lines = []
    return LimitedLog(lambda event, **values: lines.append((event, values)), lines_max=20), lines


def test_one_peer_has_few_lines_and_leaves_the_others_theirs() -> None:
    log, lines = new_log()
    for number in range(1000):
        log("closed", about="10.0.0.1", number=number)
    assert [event for event, _ in lines] == ["closed"] * PEER_LINES_MAX
    log("closed", about="10.0.0.2")
    log("broker", text="ours")
    assert lines[-2:] == [("closed", {}), ("broker", {"text": "ours"})]
    for _ in range(TICKS_PER_LINE):
        log.tick()
    log("closed", about="10.0.0.1")
    log("closed", about="10.0.0.1")
    assert len(lines) == PEER_LINES_MAX + 3, "one more, after a while"


def test_faults_of_ours_are_never_left_out_here() -> None:
    log, lines = new_log()
    for _ in range(100):
        log("closed")
        log("internal.error", about="10.0.0.1")
    assert [event for event, _ in lines].count("internal.error") == 100


def test_all_together_have_a_limit() -> None:
    log, lines = new_log()
    for number in range(1000):
        log("closed", about=f"10.0.{number}.1")
    assert [event for event, _ in lines] == ["closed"] * 20
    log.tick()
    log("broker", text="ours")
    assert lines[-1] == ("broker", {"text": "ours"})


def test_what_is_left_out_is_said_once_a_while_and_all_of_it() -> None:
    log, lines = new_log()
    told = 0
    for _ in range(10 * TICKS_PER_SUMMARY):
        for about in ("10.0.0.1", "10.0.0.1", "10.0.0.2"):
            log("closed", about=about)
            told += 1
        log.tick()
    said = [values for event, values in lines if event == "log.suppressed"]
    closed = [event for event, _ in lines if event == "closed"]
    assert len(said) == 10 and len(said) < len(closed) / 5
    assert {values["peer"] for values in said} == {"10.0.0.1"}
    assert len(closed) + sum(values["of_all"] for values in said) == told
