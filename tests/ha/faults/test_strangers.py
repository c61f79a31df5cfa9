"""A slave that cannot follow: of another log, or ahead of its master.

Both hosts say so in `shmq health --json`, each with cause and cure, and no byte of the slave's log changes; the cure
helps. One that is older than what retention has left there begins again by itself.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shmq.figures.verdict import Verdict
from shmq.testing import Broker
from tests.deadline import eventually
from tests.ha.faults.stored import files_of, prove
from tests.ha.faults.told import health_of
from tests.ha.pair import assert_equal, bodies_of, log_end, log_of, send, settled_end
from tests.ha.seen import findings_of, until_named, until_told
from tests.ha.test_switch import fixed, ha_of
from tests.shm.looking import looking
from tests.tools.store.conftest import copy_store, end_in_order

FILE_BYTES = 1 << 20
LONG = b"x" * 50_000
MONTH_SECONDS = 31 * 24 * 3600
START_AGAIN = "move its store directory away"


def master_of(name: str = "", **settings: object) -> Broker:
    return Broker(name=name, file_bytes=FILE_BYTES, **fixed(), **settings)  # type: ignore[arg-type]


def slave_of(master: Broker, name: str = "") -> Broker:
    where: dict[str, Any] = {"master": master.broker_address, "master_ha": ha_of(master)}
    return Broker(name=name or master.name, tcp=True, role="slave", file_bytes=FILE_BYTES, **where)


@pytest.fixture
def master() -> Iterator[Broker]:
    with master_of() as broker:
        send(broker, range(50))
        yield broker


def refused_on_both_hosts(slave: Broker, master: Broker, cause: str, cure: str) -> None:
    """Both say why, and what to do."""
    until_named(slave, "master", cause)
    shown = health_of(slave, "master", cause)
    assert shown["verdict"] == "CRITICAL" and cure in shown["do"], shown
    until_named(master, "replica", cause, verdict=Verdict.WARNING)
    shown = health_of(master, "replica", cause)
    assert shown["verdict"] == "WARNING" and shown["do"], shown


def point_at(slave: Broker, master: Broker) -> None:
    """Start a slave that was stopped again, as another master's."""
    slave._settings |= {"master": master.broker_address, "master_ha": ha_of(master)}
    slave.start()


def start_over(slave: Broker, master: Broker) -> None:
    """Do what the cure says, and look whether it helps."""
    slave.kill_daemon()
    slave.store.rename(slave.directory / "moved-away")
    slave.start()
    begin, end = log_begin(master), settled_end(master, slave)
    assert log_of(slave, end, begin=begin) == log_of(master, end, begin=begin)
    eventually(lambda: [each.verdict for each in findings_of(slave, "master")] == [Verdict.OK])
    prove(slave)


def log_begin(broker: Broker) -> int:
    with looking(broker) as store:
        return store.log_begin


@pytest.mark.parametrize("grows", [0, 100], ids=["shorter", "longer"])
def test_a_slave_of_another_log_takes_nothing(master: Broker, grows: int) -> None:
    with master_of(master.name) as other, slave_of(master) as slave:
        assert_equal(master, slave)
        send(other, range(100, 110 + grows))
        slave.kill_daemon()
        before = files_of(slave.store)
        point_at(slave, other)
        refused_on_both_hosts(slave, other, "two logs", START_AGAIN)
        assert files_of(slave.store) == before
        start_over(slave, other)


@pytest.mark.parametrize("keeps_its_name", [False, True], ids=["as-new", "its-identity-stays"])
def test_a_master_that_comes_again_with_an_emptied_store_is_refused(master: Broker, keeps_its_name: bool) -> None:
    with slave_of(master) as slave:
        settled_end(master, slave)
        before = files_of(slave.store)
        end_in_order(master)
        master.kill_daemon()
        identity = (master.store / "shmq.identity").read_bytes()
        shutil.rmtree(master.store)
        if keeps_its_name:
            master.store.mkdir()
            (master.store / "shmq.identity").write_bytes(identity)
        master.start()
        send(master, range(50))  # of the same length, at the same places
        send(master, range(1), topic="of-the-new-life")
        refused_on_both_hosts(slave, master, "two logs", START_AGAIN)
        assert files_of(slave.store) == before
        with looking(slave) as store:
            assert store.topic_find("of-the-new-life") < 0
        start_over(slave, master)


def test_a_slave_of_another_broker_takes_nothing(master: Broker) -> None:
    with slave_of(master, "another") as slave:
        refused_on_both_hosts(slave, master, "the slave is of the broker another", "--name")
        assert not any(any(data) for data in files_of(slave.store).values())


def older_copy(master: Broker, directory: Path) -> Path:
    """A copy of a running master's store, as a snapshot of its disk would be."""
    kept = copy_store(master.store, directory)
    (kept / "lock").unlink(missing_ok=True)
    return kept


def test_a_slave_that_is_ahead_of_its_master_keeps_what_it_has(master: Broker, tmp_path: Path) -> None:
    with slave_of(master) as slave:
        assert_equal(master, slave)
        kept = older_copy(master, tmp_path / "kept")
        send(master, range(50, 100))
        end = settled_end(master, slave)
        end_in_order(master)
        master.kill_daemon()
        shutil.rmtree(master.store)
        copy_store(kept, master.store)
        before = files_of(slave.store)
        master.start()
        assert log_end(master) < end
        refused_on_both_hosts(slave, master, "lost its end", START_AGAIN)
        until_told(slave, lambda told: told.master and told.master.state == "lost")
        send(master, range(500, 600))  # other records at the same places, and more of them
        assert log_end(master) > end
        refused_on_both_hosts(slave, master, "another one on the master", START_AGAIN)
        assert files_of(slave.store) == before
        assert bodies_of(slave.url, 100, "readers-of-the-slave") == list(range(100))
        start_over(slave, master)


def test_a_slave_whose_log_the_master_has_deleted_begins_again_where_that_begins(master: Broker) -> None:
    with slave_of(master) as slave:
        assert_equal(master, slave)
        slave.kill_daemon()
        with master.connect() as mq:
            for _ in range(5 * FILE_BYTES // len(LONG)):
                mq.send("long", LONG)
        grown_old(master)
        eventually(lambda: log_begin(master) > log_end_of_files(slave), lambda: master.log[-2000:])
        slave.start()
        eventually(lambda: "the master has deleted all of it" in slave.log, lambda: slave.log)
        send(master, range(500, 550))
        begin, end = log_begin(master), settled_end(master, slave)
        assert log_begin(slave) == begin
        assert log_of(slave, end, begin=begin) == log_of(master, end, begin=begin)
        assert not (slave.store / "tails").exists(), "the master had all of it"
        assert bodies_of(slave.url, 50, "readers-of-the-slave") == list(range(500, 550))
        prove(slave)


def grown_old(master: Broker) -> None:
    """All that was stored a month ago, the last file apart."""
    then = time.time() - MONTH_SECONDS
    for path in sorted(files_of(master.store))[:-2]:
        os.utime(master.store / "commitlog" / path, (then, then))


def log_end_of_files(slave: Broker) -> int:
    """Where the last file of a slave that is stopped begins."""
    return max(map(int, files_of(slave.store)))
