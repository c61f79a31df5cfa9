"""Writes docs/compatibility.md: clients and features, mqadmin commands, and deliberate differences.

Run `python -m tests.interop.compatibility` from the root of the repository: it runs the tests with real clients and
writes their results.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.interop.admin.mqadmin_commands import DIFFERENT, FIELDS, SAME
from tests.interop.coverage import CLIENTS, results
from tests.interop.differences import DELIBERATE, PENDING

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "compatibility.md"
TESTS = [
    str(Path(__file__).parent / "messages" / name)
    for name in ("test_clients.py", "test_java.py", "test_filters.py", "test_transactions.py")
]
NOT_TRIED = "–"
_STORES = "tests/interop/stores/test_stock_pairs.py::"
_STOCK_SLAVE = f"{_STORES}test_a_stock_slave_has_all_that_our_master_acknowledged_after_any_kill"
_STOCK_MASTER = f"{_STORES}test_our_slave_has_all_that_a_stock_master_acknowledged_after_any_kill"
PAIRS = {
    (
        "shmq",
        "shmq",
    ): "tests/ha/faults/test_kills.py::test_i9_a_slave_that_is_killed_at_random_has_its_masters_bytes_afterwards",
    ("shmq", "RocketMQ 4.9.7"): f"{_STOCK_SLAVE}[4]",
    ("shmq", "RocketMQ 5.3.3"): f"{_STOCK_SLAVE}[5]",
    ("RocketMQ 4.9.7", "shmq"): f"{_STOCK_MASTER}[4]",
    ("RocketMQ 5.3.3", "shmq"): f"{_STOCK_MASTER}[5]",
}
"""Master and slave, and the test in which both are killed at random."""
_BY_DESIGN = """## Where a new group begins

A new group begins at the first message of a queue from which nothing has been deleted, whatever its client says
(`consumeFromWhere`): the broker answers 0 to a question for its offset, as RocketMQ's does, so that no message is
skipped between the making of a topic and the start of its consumers. Where retention has cut the queue, the client's
wish counts.

## Open transactions after a start

A broker that has just begun, or has just become the master, asks no producer about a transaction in its first 10
seconds unless one of the group is there: at RocketMQ such a question is lost, and counts as one of the fifteen after
which the transaction is rolled back.

## Groups whose members read different topics

RocketMQ wants all members of a group to read the same topics: it divides every topic among all members, and a retry
goes to whichever member reads `%RETRY%group`. Members of shmq, local or over TCP to a broker of shmq, may differ:

| members of the group | a topic is divided among | its retries come to |
|---|---|---|
| of shmq, all read alike | them | them, through `%RETRY%group` |
| of shmq, they differ or are simple consumers | those that read it | those that read it, through `%RETRY%group+topic` |
| a client of RocketMQ, its topics | it, and members of shmq that read any of them | these, through `%RETRY%group` |
| beside it, other topics of members of shmq | those that read it | those that read it, through `%RETRY%group+topic` |

When members come and go, the broker moves the retries that lie where they have no readers any more. A retry that
waits in `%RETRY%group` when a client of RocketMQ comes is handed to whichever member reads that queue, as at
RocketMQ; a member of shmq that reads another topic keeps it until it leaves. The same holds at a broker of RocketMQ,
and where the names of group and topic have more than 119 characters together. `+` cannot stand in a name, so no two
groups share a retry topic.

Members of shmq are refused where they would take messages from each other: a group is shared or broadcasts, and a
topic of it is read by members with queues or by simple consumers. Clients of RocketMQ are never refused; those that
broadcast get no share.
"""
_INTRODUCTION = """# Compatibility

This page shows which RocketMQ client was tested with which feature, which `mqadmin` commands work, and where shmq
answers otherwise than a stock broker. Programs to copy are in [clients.md](clients.md).

`python -m tests.interop.compatibility` writes this page from the results of the tests in `tests/interop/`; do not edit
it. These tests run the real clients against shmq, and against a stock broker to show that the tests are right. The
stock broker is 4.9.7, the newest release of the 4.9 line on Maven Central; clients and mqadmin are 4.9.8.

## Clients

"yes": tested and works. "–": not tested, because the client does not have the feature or no test was written.
"""

Results = Mapping[tuple[str, str], bool]


def render(found: Results) -> str:
    """Return the text of the document for outcomes by client and feature."""
    features = sorted({feature for _, feature in found})
    lines = [_INTRODUCTION, "| feature | " + " | ".join(CLIENTS.values()) + " |", "|---" * (len(CLIENTS) + 1) + "|"]
    for feature in features:
        cells = [cell(found, client, feature) for client in CLIENTS]
        lines.append(f"| {feature} | " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", *static_lines()]) + "\n"


def cell(found: Results, client: str, feature: str) -> str:
    """Return what stands in one cell."""
    passed = found.get((client, feature))
    return NOT_TRIED if passed is None else "yes" if passed else "**no**"


def static_lines() -> list[str]:
    """Return what does not depend on outcomes: the tests fail when these lists are wrong."""
    lines = ["## Masters and slaves", ""]
    lines += ["A slave copies its master's log while both are killed at random; every acknowledged message is on both,"]
    lines += ["and `shmq store verify` and the stock reader find it. What a slave copies beside the log, and what it"]
    lines += ["refuses, is in [replication.md](replication.md).", "", "| master | slave | test |", "|---|---|---|"]
    lines += [f"| {master} | {slave} | `{test}` |" for (master, slave), test in PAIRS.items()]
    lines += ["", "## mqadmin 4.9.8 and 5.3.3", "", "These commands print the same as with a stock broker:", ""]
    lines += [", ".join(f"`{name}`" for name in sorted({each.split()[0] for each in SAME})) + ".", ""]
    lines += ["These print every field that clients read, and less about threads and files:"]
    lines += [", ".join(f"`{each.split()[0]}`" for each in FIELDS) + ".", ""]
    lines += [f"* `{each.split()[0]}`: {reason}." for each, reason in DIFFERENT.items()]
    lines += ["", *_BY_DESIGN.splitlines()]
    lines += ["", "## Requests that shmq answers otherwise than a stock 4.9 broker", ""]
    lines += ["The tests compare the answers to some two hundred requests, valid and invalid; all others are equal."]
    lines += [""]
    lines += ["| request | difference, and why |", "|---|---|"]
    lines += [f"| {name} | {reason} |" for name, reason in DELIBERATE.items()]
    if PENDING:
        lines += ["", "Differences that are still to be repaired:", ""]
        lines += [f"* {name}: {reason}." for name, reason in PENDING.items()]
    return lines


def main() -> int:
    """Run the tests and write the document; returns the exit code."""
    status = pytest.main(["-q", *TESTS])
    if not results:
        print("no test has run, so nothing is written", file=sys.stderr)
        return 1
    DOCUMENT.write_text(render(results))
    return int(status)


if __name__ == "__main__":
    sys.exit(main())
