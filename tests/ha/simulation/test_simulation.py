"""No schedule breaks a rule, and each rule of the election that is taken out is missed in some schedule.

Not among the defects: what changes no behaviour, as a leader without a lease that says no reason, but is allowed to
append until a time that is over; and what one more rule makes good, as a leader that keeps the promises of before its
hand-over: while it hands over nothing is allowed, and it stops doing so only where the hand-over can never be done.

A defect is put in as the module is imported (`tests/crash/mutants/inject`), in a process of its own.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.crash.mutants import mutant as mutants

ROOT = Path(__file__).resolve().parents[3]
INJECT = Path(mutants.__file__).with_name("inject")
ELECTION = "shmq.daemon.ha.election"
MODEL = "tests.ha.simulation.broker_model"
SCHEDULES = 2_000


class Defect(NamedTuple):
    """A rule that does not hold: texts of a module, and what they are replaced by.

    Attributes:
        rule: of the checker, by which it is noticed; empty: by any.
    """

    module: str
    edits: tuple[tuple[str, str], ...]
    rule: str = ""


DEFECTS = {
    "what is not flushed is acknowledged": Defect(
        MODEL, (("Position(epoch, self.log.end, self.log.durable)", "Position(epoch, self.log.end, self.log.end)"),)
    ),
    "a set that is being asked for does not count": Defect(
        f"{ELECTION}.members", (("self.committed.in_sync.union(*self._asked_for)", "self.committed.in_sync"),)
    ),
    "who joins does not count": Defect(
        f"{ELECTION}.members", (("joining.union(self.electable) - {self._me}", "set(self.electable) - {self._me}"),)
    ),
    "who joins may lack what was confirmed": Defect(
        f"{ELECTION}.members",
        (("peer.is_joining and peer.needed is not None and peer.flushed >= peer.needed", "True"),),
    ),
    "who is silent does not count any more": Defect(
        f"{ELECTION}.members",
        (
            (
                "joining.union(self.electable) - {self._me}",
                "{u for u in joining.union(self.electable) & set(self._peers) if self._peers[u].is_connected}",
            ),
        ),
    ),
    "who is not in sync can be elected": Defect(
        f"{ELECTION}.member",
        (("if view.state is None or not view.state.in_sync or self._me.uuid in view.state.in_sync:", "if True:"),),
    ),
    "a follower acknowledges before its log was cut": Defect(
        f"{ELECTION}.member",
        (("if self.role is Role.FOLLOWING and self._is_cut else None", "if self._is_cut or True else None"),),
    ),
    # Each of the two guards is enough by itself: a resting one has closed the link over which it acknowledges.
    "who campaigns acknowledges the old epoch": Defect(
        f"{ELECTION}.member",
        (
            ("if self.role is Role.FOLLOWING and self._is_cut else None", "if self._is_cut else None"),
            ('        self._rest("it campaigns")\n', ""),
        ),
    ),
    "who has promised campaigns": Defect(
        f"{ELECTION}.member", (("max(at_ms, self._silent_until_ms, self._absent_ms", "max(at_ms, self._absent_ms"),)
    ),
    "one promise is enough": Defect(
        f"{ELECTION}.leading",
        (
            (
                "min(self._promised_until_ms.get(uuid, 0) for uuid in counted)",
                "max(self._promised_until_ms.get(uuid, 0) for uuid in counted)",
            ),
        ),
    ),
    "a leader without a lease goes on": Defect(
        f"{ELECTION}.leading",
        (('return Allow(0, f"its lease was not renewed', 'return Allow(NO_LIMIT_MS, f"its lease was not renewed'),),
    ),
    "a lease is counted from the answer, and whole": Defect(
        f"{ELECTION}.leading", (("sent_ms + min(FENCE_MS, answer.ttl_ms * FENCE_MS // LEASE_MS)", "now_ms + LEASE_MS"),)
    ),
    "a leader that comes again shows what it had not confirmed": Defect(
        f"{ELECTION}.member", (("return min(confirmed_end, durable_end)", "return durable_end"),)
    ),
    "an epoch is used twice": Defect(
        f"{ELECTION}.campaign",
        (("view.state.epoch if view.state else 0) + 1,", "view.state.epoch if view.state else 0),"),),
    ),
    "a campaign does not look whether the state is as it was": Defect(
        f"{ELECTION}.campaign", (("else 0, self._state_revision, leader", "else 0, None, leader"),)
    ),
    "a campaign does not look whether another one leads": Defect(
        f"{ELECTION}.campaign", (("Transaction(None if self._is_forced else 0,", "Transaction(None,"),)
    ),
    "a hand-over does not wait for the log": Defect(
        f"{ELECTION}.leading", (("self.members.flushed_of(hand_over.successor) >= self._log_end", "True"),)
    ),
    "the older master keeps the names": Defect(
        f"{ELECTION}.registration", (("return epoch >= epoch_before", "return True"),)
    ),
    # Each of the two guards is enough by itself.
    "who hands over relies on promises of before": Defect(
        f"{ELECTION}.leading",
        (
            ("            self._promises_asked.clear()\n            self._promised_until_ms.clear()\n", ""),
            (
                "        if self._hand_over is not None:\n            return Allow(0",
                "        if self._hand_over is not None and self._backed_until_ms(now_ms) <= now_ms:\n"
                "            return Allow(0",
            ),
        ),
        "after-fence",
    ),
    "who cannot begin keeps its place": Defect(
        f"{ELECTION}.member",
        (("            self.term.give_back(self._electable_before, reason, now_ms)\n", ""),),
        "blocked",
    ),
    "a place that is given back is never written": Defect(
        f"{ELECTION}.leading", (("self._go_on_giving_back(self._given_back)", "pass"),), "blocked"
    ),
    "who gives its place back leaves it to itself": Defect(
        f"{ELECTION}.member",
        (("self.term.give_back(self._electable_before,", "self.term.give_back(frozenset({self._me.uuid}),"),),
        "blocked",
    ),
    "who gives its place back leaves it to every store": Defect(
        f"{ELECTION}.member",
        (("self.term.give_back(self._electable_before,", "self.term.give_back(frozenset(),"),),
        "not-in-sync",
    ),
    "who is elected again takes its own set for that of before": Defect(
        f"{ELECTION}.member", (("        if not is_own:\n", "        if True:\n"),), "blocked"
    ),
    "who gave its place back campaigns at once": Defect(
        f"{ELECTION}.member", (("now_ms + UNABLE_AGAIN_MS", "now_ms"),), "again"
    ),
    "what is not begun is confirmed": Defect(
        f"{ELECTION}.member",
        (("if self.term is not None and self.term.is_begun else None", "if self.term is not None else None"),),
        "unbegun",
    ),
    "what is not begun is allowed": Defect(
        f"{ELECTION}.leading", (("if self.over or not self.is_begun:", "if self.over:"),), "unbegun"
    ),
}


def run(schedules: int, defect: Defect | None = None) -> tuple[int, str]:
    """Run schedules in a process of their own; return its exit status and what it printed."""
    table = {defect.module: defect.edits} if defect is not None else {}
    environment = {**os.environ, "SEEDED_MUTANT": json.dumps(table), "PYTHONPATH": os.fspath(INJECT)}
    command = [sys.executable, "-m", "tests.ha.simulation", "--schedules", str(schedules), "--stop"]
    result = subprocess.run(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    return result.returncode, result.stdout


@pytest.mark.parametrize("schedules", [100, pytest.param(SCHEDULES, marks=pytest.mark.slow)])
def test_no_schedule_breaks_a_rule(schedules: int) -> None:
    status, printed = run(schedules)
    assert status == 0, printed
    assert json.loads(printed.splitlines()[-1])["elections"] > schedules


@pytest.mark.parametrize("name", DEFECTS)
def test_a_rule_that_is_to_be_taken_out_is_there(name: str) -> None:
    defect = DEFECTS[name]
    source = Path(import_module(defect.module).__file__ or "").read_text()
    assert [text for text, _ in defect.edits if source.count(text) != 1] == []


@pytest.mark.slow
@pytest.mark.parametrize("name", DEFECTS)
def test_a_rule_that_is_taken_out_is_missed(name: str) -> None:
    status, printed = run(SCHEDULES, DEFECTS[name])
    rule = DEFECTS[name].rule or "[a-z-]+"
    assert status == 1 and re.search(rf"^seed \d+: {rule}: ", printed, re.MULTILINE), printed
