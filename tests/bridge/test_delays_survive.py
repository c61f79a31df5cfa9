"""I11: delayed messages through kills of the bridge and of the whole broker: all arrive, none early, few twice."""

import signal
import time
from collections.abc import Callable
from typing import Any

import pytest

import shmq
from shmq.errors import BrokerNotRunning
from shmq.protocol.codes import Request, Response
from shmq.protocol.command import Command
from shmq.protocol.header import encode_command
from shmq.shm.liveness import is_alive, signal_proven
from shmq.testing import Broker
from tests.bridge.live_bridge import DEADLINE, RawPeer, wait_until

COUNT = 400
KILLS = 3


def address(broker: Broker) -> tuple[str, int]:
    host, port = broker.broker_address.rsplit(":", 1)
    return host, int(port)


def send_delayed(broker: Broker, count: int, level: int) -> dict[bytes, float]:
    """Body -> wall clock when it was asked for."""
    peer = RawPeer(address(broker))
    sent: dict[bytes, float] = {}
    fields = dict(zip("abcdefgh", ("p", "orders", "TBW102", "4", "0", "0", "0", "0"), strict=True))
    for number in range(count):
        body = b"%d" % number
        sent[body] = time.time()
        ext = fields | {"i": f"DELAY\x01{level}\x02"}
        peer.send(encode_command(Command(code=Request.SEND_MESSAGE_V2, opaque=number, ext=ext, body=body)))
        reply = peer.take()
        assert reply is not None and reply.code == Response.SUCCESS
    peer.close()
    return sent


def kill_bridge(broker: Broker) -> None:
    mark = broker.processes["bridge"]
    signal_proven(mark, signal.SIGKILL)
    wait_until(lambda: not is_alive(mark))


def is_served(broker: Broker) -> bool:
    try:
        broker.connect().close()
    except BrokerNotRunning:
        return False
    return True


def kill_everything(broker: Broker) -> None:
    broker.kill_daemon()
    broker.restart()


@pytest.mark.slow
@pytest.mark.parametrize(("kill", "twice_max"), [(kill_bridge, KILLS), (kill_everything, KILLS)])
def test_killed_at_any_time_every_delayed_message_is_delivered_when_due(
    kill: Callable[[Broker], Any], twice_max: int
) -> None:
    with Broker(tcp=True) as broker:
        sent = send_delayed(broker, COUNT, 2)
        due = time.time() + 3.0  # the first ones are due about five seconds after they were sent
        for turn in range(KILLS):
            wait_until(lambda turn=turn: time.time() > due + turn)  # type: ignore[misc]
            kill(broker)
        seen: dict[bytes, list[float]] = {}
        wait_until(lambda: is_served(broker), "the bridge is back")
        until = time.monotonic() + DEADLINE
        with broker.connect() as mq, mq.pull_consumer("orders") as consumer:
            while len(seen) < COUNT and time.monotonic() < until:
                for message in consumer.poll(64, 0.2):
                    seen.setdefault(bytes(message.body), []).append(message.store_ms / 1000)
        assert seen.keys() == sent.keys()
        assert sum(len(times) - 1 for times in seen.values()) <= twice_max
        early = {body: times for body, times in seen.items() if min(times) < sent[body] + 4.99}
        assert not early


@pytest.mark.slow
@pytest.mark.parametrize("kill", [kill_bridge, kill_everything])
def test_killed_at_any_time_every_timed_message_is_delivered_when_due(kill: Callable[[Broker], Any]) -> None:
    with Broker(tcp=True) as broker:
        begin = time.time() + 4  # long enough to send everything, and to recall some of it
        due: dict[bytes, float] = {}
        recalled: set[bytes] = set()
        with broker.connect() as mq, shmq.connect(f"rocketmq://{broker.name_server}") as tcp:
            for number in range(COUNT):
                body = b"%d" % number
                due[body] = begin + 2 + (number * 7919) % 3000 / 1000
                receipt = (tcp if number % 4 == 0 else mq).send("orders", body, deliver_at=due[body])
                if number % 10 == 1:
                    mq.recall(receipt)
                    recalled.add(body)
        for turn in range(KILLS):
            wait_until(lambda turn=turn: time.time() > begin + 2.5 + turn)  # type: ignore[misc]
            kill(broker)
        seen: dict[bytes, list[float]] = {}
        wait_until(lambda: is_served(broker), "the bridge is back")
        until = time.monotonic() + DEADLINE
        with broker.connect() as mq, mq.pull_consumer("orders") as consumer:
            while len(seen) < COUNT - len(recalled) and time.monotonic() < until:
                for message in consumer.poll(64, 0.2):
                    seen.setdefault(bytes(message.body), []).append(message.store_ms / 1000)
        assert seen.keys() == due.keys() - recalled
        assert sum(len(times) - 1 for times in seen.values()) <= KILLS
        assert not {body: times for body, times in seen.items() if min(times) < due[body] - 0.0005}


@pytest.mark.slow
def test_timed_messages_survive_an_orderly_restart_without_a_second_copy() -> None:
    with Broker() as broker:
        with broker.connect() as mq:
            for number in range(50):
                mq.send("orders", b"%d" % number, delay=0.02 * (number + 1))
            mq.send("orders", b"last", delay=4)
            with mq.pull_consumer("orders") as consumer:
                came = 0
                while came < 20:
                    came += len(consumer.poll(20 - came, 1.0))
        broker.restart()
        seen: list[bytes] = []
        with broker.connect() as mq, mq.pull_consumer("orders") as consumer:
            until = time.monotonic() + DEADLINE
            while b"last" not in seen and time.monotonic() < until:
                seen += [bytes(message.body) for message in consumer.poll(64, 0.2)]
        assert sorted(seen) == sorted([b"%d" % number for number in range(50)] + [b"last"])
