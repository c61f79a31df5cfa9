"""Half of a pair is stock, and both halves are killed at random: every acknowledged message is on the slave, whole.

    stock slave of our master     its log is ours byte for byte; its own reader and `shmq store verify` find all of it
    our slave of a stock master   the same, and a stock broker on a copy of our slave's store reads everything

SHMQ_CRASH_LONG=1 kills KILLS_LONG times for each pair; SHMQ_TEST_SEED=n repeats a run's choices.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shmq.shm.liveness import signal_proven
from shmq.store.proof.store import prove_store
from shmq.testing import Broker
from tests.deadline import eventually
from tests.ha.pair import log_end
from tests.ha.seen import until_told
from tests.interop.peers.cache import PeerMissing
from tests.interop.peers.stock import VIP_DISTANCE, StockBroker
from tests.interop.stores.stock_pairs import FILE_BYTES, Sending, log_bytes, read_all
from tests.ports import free_ports
from tests.seed import SEED
from tests.tools.store.conftest import copy_store, end_in_order

LONG = os.environ.get("SHMQ_CRASH_LONG", "") not in ("", "0")
KILLS, KILLS_LONG = 3, 40
BETWEEN_MAX = 60  # messages that are acknowledged between two kills, at most
RESTART_SECONDS = 120.0  # a stock client waits 30 s for its next look at the routes
SLAVE: dict[str, object] = {
    "brokerId": 1,
    "brokerRole": "SLAVE",
    "slaveReadEnable": "true",  # or 5.3.3 refuses every pull while it has a master
    "registerNameServerPeriod": 10_000,
}


def stock_broker(version: str, **arguments: object) -> StockBroker:
    try:
        return StockBroker(version, **arguments)  # type: ignore[arg-type]
    except PeerMissing as reason:
        pytest.skip(str(reason))


def our_master() -> Broker:
    """Its ports stay through a restart, and a stock slave gets the topics at the one two below the broker's."""
    names = [f"127.0.0.1:{free_ports(VIP_DISTANCE)}" for _ in range(3)]
    places: dict[str, Any] = dict(zip(("listen", "nameserver_listen", "ha_listen"), names, strict=True))
    return Broker(tcp=True, file_bytes=FILE_BYTES, **places)


def kill_ours(broker: Broker, choice: random.Random) -> str:
    """Kill one of our broker's processes, which comes again by itself, or all of them; or restart it in order."""
    how = choice.choice(("all", "restart", "replication", "keeper", "bridge"))
    if how == "all":
        broker.kill_daemon()
    if how in ("all", "restart"):
        broker.restart()
        return how
    before = broker.processes[how]
    signal_proven(before, signal.SIGKILL)
    eventually(lambda: broker.processes.get(how, before) != before, lambda: broker.log[-2000:])
    return how


def kill_stock(broker: StockBroker, choice: random.Random) -> str:
    """Kill the stock broker, or stop it in order, and start it again."""
    in_order = choice.random() < 0.25
    broker.end_broker(in_order=in_order)
    broker.start_broker()
    return "stock stopped" if in_order else "stock killed"


def kill_at_random(sending: Sending, *kills: Callable[[random.Random], str]) -> list[str]:
    """Kill again and again, each side at least once, while messages are acknowledged in between."""
    choice, done = random.Random(SEED), []
    for number in range(KILLS_LONG if LONG else KILLS):
        wanted = len(sending.acknowledged) + choice.randint(1, BETWEEN_MAX)
        eventually(lambda wanted=wanted: len(sending.acknowledged) >= wanted, sending.told, RESTART_SECONDS)
        # The stock side takes seconds to start: it is every third one.
        done.append(kills[number % 3 == 1](choice))
    wanted = len(sending.acknowledged) + BETWEEN_MAX
    eventually(lambda: len(sending.acknowledged) >= wanted, sending.told, RESTART_SECONDS)
    return done


def report(version: str, sending: Sending, done: list[str], end: int) -> None:
    print(f"SHMQ_TEST_SEED={SEED} stock {version}: {sending.told()}; log of {end} bytes; {', '.join(done)}")


@pytest.mark.timeout(3600 if LONG else 600)
@pytest.mark.parametrize("version", ["4", "5"])
def test_a_stock_slave_has_all_that_our_master_acknowledged_after_any_kill(version: str) -> None:
    with our_master() as master:
        settings = SLAVE | {"brokerName": master.name}
        with stock_broker(version, settings=settings, registers_with=master.name_server) as slave:
            until_told(master, lambda told: told.replicas and told.replicas[0].kind == "stock")
            with Sending(master.name_server, SEED) as sending:
                kills = (lambda choice: kill_ours(master, choice)), (lambda choice: kill_stock(slave, choice))
                done = kill_at_random(sending, *kills)

            def has_all() -> int:
                replicas = until_told(master, lambda told: told.replicas).replicas
                end = log_end(master)
                return end if any(each.acknowledged == end for each in replicas) else 0

            end = eventually(has_all, lambda: master.log[-3000:], RESTART_SECONDS)
            report(version, sending, done, end)
            missing = set(sending.acknowledged) - read_all(master.broker_address, SEED)
            assert not missing, "of what the master itself acknowledged"
            eventually(
                lambda: not set(sending.acknowledged) - read_all(slave.broker_address, SEED),
                lambda: (slave.directory / "broker.log").read_text()[-4000:],
            )
            slave.end_broker(in_order=True)
            assert log_bytes(slave.store, end) == log_bytes(master.store, end)
            assert prove_store(slave.store).findings.disagreements == []
            end_in_order(master)
            assert prove_store(master.store).findings.disagreements == []


@pytest.mark.timeout(3600 if LONG else 600)
@pytest.mark.parametrize("version", ["4", "5"])
def test_our_slave_has_all_that_a_stock_master_acknowledged_after_any_kill(version: str, tmp_path: Path) -> None:
    with stock_broker(version) as master:
        slave = Broker(tcp=True, file_bytes=FILE_BYTES, role="slave", master=master.broker_address)
        with slave, Sending(master.name_server, SEED) as sending:
            kills = (lambda choice: kill_ours(slave, choice)), (lambda choice: kill_stock(master, choice))
            done = kill_at_random(sending, *kills)
            sending.__exit__()

            def has_all() -> bool:
                return not set(sending.acknowledged) - read_all(slave.broker_address, SEED)

            eventually(has_all, lambda: slave.log[-3000:], RESTART_SECONDS)
            missing = set(sending.acknowledged) - read_all(master.broker_address, SEED)
            assert not missing, "of what the master itself acknowledged"
            end = log_end(slave)
            report(version, sending, done, end)
            master.end_broker(in_order=True)
            assert log_bytes(slave.store, end) == log_bytes(master.store, end)
            end_in_order(slave)
            assert prove_store(slave.store).findings.disagreements == []
            shutil.rmtree(master.store)
            copy_store(slave.store, master.store)
            (master.store / "lock").unlink(missing_ok=True)
            master.start_broker()
            assert not set(sending.acknowledged) - read_all(master.broker_address, SEED)
