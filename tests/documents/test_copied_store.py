"""A copy of a store that becomes another host of the same broker, as docs/operations.md has it made."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from shmq.daemon.ha.election.coordination import LeaderKey, StateKey, View
from shmq.daemon.ha.election.effects import Rest
from shmq.daemon.ha.election.member import Member
from shmq.daemon.ha.election.policy import Identity, Policy
from shmq.store.lineage.standing import load_identity
from shmq.testing import Broker
from tests.ha.pair import assert_equal, send
from tests.ha.test_switch import demote, fixed, layout_of, promote, read, slave_of

PAGE = Path(__file__).parents[2] / "docs" / "operations.md"


def removed_files() -> list[str]:
    """What the page has removed from such a copy."""
    [names] = re.findall(r"rm -f ((?:COPY/[\w.]+ ?)+)", PAGE.read_text())
    return [name.removeprefix("COPY/") for name in names.split()]


@pytest.mark.slow
def test_a_copy_that_becomes_another_host_has_a_store_of_its_own_of_the_same_log() -> None:
    with Broker(**fixed()) as first, slave_of(first) as second:
        send(first, range(20))
        assert_equal(first, second)
        demote(first, second)
        promote(second)  # the store that is copied has a note of its role
        send(second, range(20, 40))
        assert_equal(second, first)
        copied = slave_of(second)
        second.kill_daemon()
        shutil.copytree(second.store, copied.store)
        second.restart()
        for name in removed_files():
            (copied.store / name).unlink()
        with copied:
            send(second, range(40, 60))
            assert_equal(second, copied)
            ours, theirs = (load_identity(layout_of(broker)) for broker in (copied, second))
            assert ours.log == theirs.log and ours.store != theirs.store
            assert read(copied, 60, "readers") == list(range(60))


def test_a_member_with_the_id_of_another_store_says_to_remove_the_same_files() -> None:
    member = Member(Identity("me", "10.0.0.4:10911/10.0.0.4:10912"), Policy(True, 1), 0, 0, is_empty=False)
    leader = LeaderKey("me", "10.0.0.5:10911/10.0.0.5:10912", 1, 7)
    member.seen(View(7, leader, StateKey(3, frozenset({"me"}), "", "elected", 7)), 0)
    [reason] = [each.reason for each in member.take() if isinstance(each, Rest)]
    assert f"rm -f {' '.join(removed_files())}" in reason
