"""The bridge killed under load of TCP clients: started again on the same ports, and nothing acknowledged is lost."""

import contextlib
import signal
import socket
import threading

import pytest

from shmq.protocol.codes import Request, Response
from shmq.protocol.command import Command
from shmq.protocol.header import CommandDecoder, encode_command
from shmq.shm.liveness import is_alive, signal_proven
from shmq.testing import Broker
from tests.bridge.live_bridge import DEADLINE, RawPeer, wait_until

KILLS = 3
PRODUCERS = 4
ACKNOWLEDGED_BETWEEN = 200
ADDRESS_FIELDS = ("p", "orders", "TBW102", "4", "-1", "0", "0", "0", "")


class Producer(threading.Thread):
    """Sends one message after the other, over a new connection whenever the old one breaks."""

    def __init__(self, address: tuple[str, int], name: str, stop: threading.Event) -> None:
        super().__init__(name=name, daemon=True)
        self._address = address
        self._stop_sending = stop
        self.acknowledged: list[bytes] = []

    def run(self) -> None:
        number = 0
        while not self._stop_sending.is_set():
            with contextlib.suppress(OSError), socket.create_connection(self._address, DEADLINE) as connection:
                decoder = CommandDecoder()
                while not self._stop_sending.is_set():
                    number += 1
                    body = f"{self.name}-{number}".encode()
                    if self._send(connection, decoder, body):
                        self.acknowledged.append(body)

    def _send(self, connection: socket.socket, decoder: CommandDecoder, body: bytes) -> bool:
        ext = dict(zip("abcdefghi", ADDRESS_FIELDS, strict=True))
        connection.sendall(encode_command(Command(code=Request.SEND_MESSAGE_V2, opaque=1, ext=ext, body=body)))
        while (reply := decoder.take()) is None:
            data = connection.recv(65536)
            if not data:
                raise ConnectionResetError
            decoder.feed(data)
        return reply.code == Response.SUCCESS


@pytest.mark.slow
@pytest.mark.parametrize("bridges", [1, 3])
def test_a_killed_bridge_comes_back_on_its_ports_and_nothing_acknowledged_is_lost(bridges: int) -> None:
    roles = ["bridge", *(f"bridge-{number}" for number in range(1, bridges))]
    with Broker(tcp=True, bridges=bridges) as broker:
        host, port = broker.broker_address.split(":")
        name_server = broker.name_server
        stop = threading.Event()
        producers = [Producer((host, int(port)), f"p{number}", stop) for number in range(PRODUCERS)]
        for producer in producers:
            producer.start()
        wait_until(lambda: all(producer.acknowledged for producer in producers), "all producers send")
        first = broker.expect("orders", 1, timeout=DEADLINE)  # by a local client, which outlives the bridge too
        for turn in range(KILLS):
            role = roles[turn % bridges]
            before = [len(producer.acknowledged) for producer in producers]
            wait_until(
                lambda before=before: all(  # type: ignore[misc]
                    len(producer.acknowledged) >= count + ACKNOWLEDGED_BETWEEN
                    for producer, count in zip(producers, before, strict=True)
                ),
                "every producer is answered again",
            )
            mark = broker.processes[role]
            signal_proven(mark, signal.SIGKILL)
            wait_until(lambda mark=mark: not is_alive(mark))  # type: ignore[misc]
        wait_until(lambda: broker.processes.keys() >= set(roles), "the last one came back")
        stop.set()
        for producer in producers:
            producer.join(DEADLINE)
        acknowledged = [body for producer in producers for body in producer.acknowledged]
        assert (broker.broker_address, broker.name_server) == (f"{host}:{port}", name_server)
        missing = set(acknowledged) - {message.body for message in first}
        assert len(acknowledged) == len(set(acknowledged))
        # What was stored as the bridge died is there too, without having been acknowledged.
        while missing:
            missing -= {message.body for message in broker.expect("orders", 1, timeout=DEADLINE)}


def test_a_held_pull_ends_with_its_bridge_and_the_next_bridge_holds_the_next_one() -> None:
    with Broker(tcp=True) as broker, broker.connect() as mq:
        mq.admin.create_topic("orders", queues=1)
        host, port = broker.broker_address.split(":")
        ext = {
            "consumerGroup": "g",
            "topic": "orders",
            "queueId": "0",
            "queueOffset": "0",
            "maxMsgNums": "32",
            "sysFlag": "6",
            "commitOffset": "0",
            "suspendTimeoutMillis": "60000",
            "subVersion": "0",
            "subscription": "*",
        }
        request = encode_command(Command(code=Request.PULL_MESSAGE, opaque=5, ext=ext))
        first = RawPeer((host, int(port)))
        first.send(request)
        assert first.ask(9999).code == Response.REQUEST_CODE_NOT_SUPPORTED  # behind the pull, which is held
        mark = broker.processes["bridge"]
        signal_proven(mark, signal.SIGKILL)
        assert first.take() is None
        wait_until(lambda: not is_alive(mark), "its ports are closed too")
        second = wait_until(lambda: connected((host, int(port))), "the port is open again")
        second.send(request)
        assert second.ask(9999).code == Response.REQUEST_CODE_NOT_SUPPORTED
        mq.send("orders", b"woken by a local producer")
        reply = second.take()
        assert reply is not None and (reply.opaque, reply.code) == (5, Response.SUCCESS)
        assert b"woken by a local producer" in reply.body
        first.close()
        second.close()


def connected(address: tuple[str, int]) -> RawPeer | None:
    with contextlib.suppress(OSError):
        return RawPeer(address)
    return None
