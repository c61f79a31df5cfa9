"""Two brokers of which one follows the other, ours or stock ones, on this host.

ours     master and slave, synchronous or not                        both have small log files
stock    SYNC_MASTER and SLAVE under one name server                 an empty slave takes the last log file alone, so
                                                                     what it is to take has to lie in one
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import shmq
from shmq.shm.addresses import read_addresses
from shmq.testing import Broker
from tests.interop.peers.stock import StockBroker
from tests.interop.peers.wire import Wire
from tests.shm.looking import looking

BODY = bytes(256)
TOPIC = "orders"
FILE_BYTES = 64 << 20
# The options of RocketMQ's bin/runbroker.sh with its 8 GiB heap cut to 2 GiB, and without AlwaysPreTouch, so that
# its memory is what it uses and not what it was given.
STOCK_HEAP = [
    "-server",
    "-Xms2g",
    "-Xmx2g",
    "-Xmn1g",
    "-XX:+UseG1GC",
    "-XX:G1HeapRegionSize=16m",
    "-XX:G1ReservePercent=25",
    "-XX:InitiatingHeapOccupancyPercent=30",
    "-XX:SoftRefLRUPolicyMSPerMB=0",
    "-XX:-OmitStackTraceInFastThrow",
]
# RocketMQ's defaults where the tests want something else, and what it has but leaves off.
STOCK_SETTINGS: dict[str, object] = {
    "mappedFileSizeCommitLog": 1 << 30,
    "mapedFileSizeCommitLog": 1 << 30,
    "transactionTimeOut": 6000,
    "transactionCheckInterval": 60_000,
    "enablePropertyFilter": "true",
}
_GET_BROKER_RUNTIME_INFO = 28
_PATIENCE_SECONDS = 120.0


def until(is_so: Callable[[], object], why_not: Callable[[], object], interval: float = 0.001) -> None:
    """Wait until something is so, two minutes at most."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while not is_so():
        assert time.monotonic() < deadline, why_not()
        time.sleep(interval)


def slave_of(master: Broker) -> Broker:
    """Return a slave that is not started yet."""
    ha = read_addresses(master.place.ha_path)["ha"]
    return Broker(
        name=master.name, tcp=True, role="slave", master=master.broker_address, master_ha=ha, file_bytes=FILE_BYTES
    )


@contextmanager
def synchronous_pair() -> Iterator[tuple[Broker, Broker]]:
    """A synchronous master of ours whose slave is in sync."""
    with (
        Broker(tcp=True, role="sync-master", ha_listen="127.0.0.1:0", file_bytes=FILE_BYTES) as master,
        slave_of(master) as slave,
        looking(master) as store,
    ):
        until(lambda: store.in_sync_count, lambda: master.log, 0.05)
        yield master, slave


@contextmanager
def asynchronous_pair(*, has_slave: bool = True) -> Iterator[tuple[Broker, Broker | None]]:
    """An asynchronous master of ours, and a slave that has what it has."""
    with ExitStack() as living:
        master = living.enter_context(Broker(tcp=True, ha_listen="127.0.0.1:0", file_bytes=FILE_BYTES))
        with master.connect() as mq:
            mq.producer().send(TOPIC, BODY)
        slave = living.enter_context(slave_of(master)) if has_slave else None
        if slave is not None:
            until_equal(master, slave)
        yield master, slave


def until_equal(master: Broker, slave: Broker) -> None:
    """Wait until the slave has what the master has now."""
    with looking(master) as there, looking(slave) as here:
        end = there.log_end
        until(lambda: here.log_end >= end, lambda: slave.log)


def stock_master(version: str = "4") -> StockBroker:
    """Return a stock synchronous master that is not started yet.

    Raises:
        PeerMissing: a stock broker cannot be had here; the text says why.
    """
    return StockBroker(version, heap=STOCK_HEAP, settings=STOCK_SETTINGS | {"brokerRole": "SYNC_MASTER"})


def stock_slave(master: StockBroker) -> StockBroker:
    """Return a stock slave that is not started yet."""
    settings = STOCK_SETTINGS | {"brokerRole": "SLAVE", "brokerId": 1}
    return StockBroker(master.version, heap=STOCK_HEAP, settings=settings, registers_with=master.name_server)


@contextmanager
def stock_pair(version: str) -> Iterator[tuple[StockBroker, StockBroker]]:
    """A stock synchronous master whose slave has what it has."""
    with stock_master(version) as master:
        with shmq.connect(f"rocketmq://{master.name_server}") as mq:
            mq.send(TOPIC, BODY)
        with stock_slave(master) as slave:
            until(lambda: stock_log_end(slave) == stock_log_end(master) > 0, lambda: "the slave copies nothing", 0.05)
            yield master, slave


def stock_log_end(broker: StockBroker) -> int:
    """Return where the log of a stock broker ends; 0 in its first seconds, in which it cannot say that."""
    with Wire(broker.broker_address) as wire:
        reply = wire.ask(_GET_BROKER_RUNTIME_INFO, {})
    if reply is None or reply.code:
        return 0
    return int(json.loads(reply.body)["table"]["commitLogMaxOffset"])
