"""Programs of a leader's host that are stopped while another broker is elected, and go on: the log keeps its bytes."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from shmq.store.lineage.epochs import load_epochs
from shmq.testing import Broker
from tests.ha.elected.group import acknowledged, group_of
from tests.ha.etcd.server import needs_etcd
from tests.ha.pair import assert_equal, send
from tests.ha.test_stopped import FILE_BYTES, files_of, stopped
from tests.ha.test_switch import cluster, layout_of, read

pytest.importorskip("urllib3")
pytestmark = [needs_etcd(), pytest.mark.slow]


def hand_over(old: Broker, new: Broker) -> None:
    cluster(new, "promote")


def die(old: Broker, new: Broker) -> None:
    """Kill every process of the broker, and start it again: its programs live."""
    for mark in old.processes.values():
        os.kill(mark.pid, signal.SIGKILL)
    old.kill_daemon()


@pytest.mark.parametrize("switch", [hand_over, die])
@pytest.mark.parametrize("what", ["append", "reserve", "group"])
def test_what_was_stopped_on_a_leader_changes_no_byte_after_an_election(
    tmp_path: Path, what: str, switch: Callable[[Broker, Broker], None]
) -> None:
    with group_of(tmp_path, 2, sync=True, lease_ms=600_000, file_bytes=FILE_BYTES) as (group, _):
        old = group.wait_for_set(2)
        new = group.other(old)
        send(old, range(1), topic="held")
        assert acknowledged(old, range(20)) == list(range(20))
        epoch = load_epochs(layout_of(old))[-1].number
        with stopped(old, what) as process:
            switch(old, new)
            assert group.wait_for_epoch(epoch + 1) is new
            acknowledged(new, range(20, 40))
            if switch is die:
                old.restart()
            assert group.wait_for_set(2) is new
            assert_equal(new, old)
            before = [files_of(broker) for broker in (old, new)]
            said = process.go_on()
            assert [files_of(broker) for broker in (old, new)] == before, said
            assert said != "ready" and (what == "group" or said != "done"), said
        acknowledged(new, range(40, 60))
        assert_equal(new, old)
        assert read(new, 60, "readers") == read(old, 60, "readers-there") == list(range(60))
