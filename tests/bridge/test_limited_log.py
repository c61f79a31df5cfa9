"""Nobody fills the log, and no peer hides what others cause."""

from typing import Any

from shmq.daemon.bridge.limited_log import PEER_LINES_MAX, LimitedLog


def test_one_peer_has_few_lines_a_tick_and_leaves_the_others_theirs() -> None:
    lines: list[tuple[str, dict[str, Any]]] = []
    log = LimitedLog(lambda event, **values: lines.append((event, values)), lines_max=20)
    for number in range(1000):
        log("closed", about="10.0.0.1", number=number)
    assert [event for event, _ in lines] == ["closed"] * PEER_LINES_MAX + ["log.limited"]
    assert lines[-1][1] == {"peer": "10.0.0.1", "lines": PEER_LINES_MAX}
    log("closed", about="10.0.0.2")
    log("broker", text="ours")
    assert lines[-2:] == [("closed", {}), ("broker", {"text": "ours"})]
    log.tick()
    log("closed", about="10.0.0.1")
    assert lines[-1] == ("closed", {})


def test_all_together_have_a_limit_that_is_said_once() -> None:
    lines: list[str] = []
    log = LimitedLog(lambda event, **_: lines.append(event), lines_max=20)
    for number in range(1000):
        log("closed", about=f"10.0.{number}.1")
    assert lines == ["closed"] * 20 + ["log.limited"]
