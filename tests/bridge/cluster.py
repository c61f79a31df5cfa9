"""A broker of three bridges, and how to get a connection to a certain one of them."""

from __future__ import annotations

import signal

import psutil

from shmq.protocol.codes import Response
from shmq.shm.liveness import is_alive, signal_proven
from shmq.testing import Broker
from tests.bridge.live_bridge import RawPeer, wait_until

BRIDGES = ("bridge", "bridge-1", "bridge-2")
CONNECTIONS_MAX = 400  # the kernel deals connections out by chance; that many reach each bridge


class Cluster:
    """A broker of three bridges, and a connection to each of them."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        host, port = broker.broker_address.split(":")
        self.address = (host, int(port))
        self._open: list[RawPeer] = []

    def peer(self, role: str) -> RawPeer:
        """A connection that this bridge has accepted."""
        for _ in range(CONNECTIONS_MAX):
            peer = RawPeer(self.address)
            assert peer.ask(9999).code == Response.REQUEST_CODE_NOT_SUPPORTED  # it is accepted now
            if peer.socket.getsockname()[1] in self._ports(role):
                self._open.append(peer)
                return peer
            peer.close()
        raise AssertionError(f"{role} gets no connections")

    def _ports(self, role: str) -> set[int]:
        process = psutil.Process(self.broker.processes[role].pid)
        return {each.raddr.port for each in process.net_connections("tcp") if each.raddr}

    def kill(self, role: str) -> None:
        """Kill one bridge, and return when it is back."""
        mark = self.broker.processes[role]
        signal_proven(mark, signal.SIGKILL)
        wait_until(lambda: not is_alive(mark))
        wait_until(lambda: role in self.broker.processes, f"{role} is started again")

    def close(self) -> None:
        for peer in self._open:
            peer.close()
