"""Hosts that share this one's memory and files and have a network of their own, and the cables between them.

    10.77.0.1 broker ─┐                       each: a network namespace with lo and a TUN device "cable"
    10.77.0.2 broker ─┤
    10.77.0.3 etcd   ─┼─ a thread of this process carries each packet to whom it is for, by the rules of wire.Direction
    10.77.0.4 others ─┘

A thread is in one network (`wire.inside`), and so is what it starts.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import selectors
import socket
import subprocess
import threading
import time
from collections.abc import Iterable, Iterator, Sequence

from tests.deadline import eventually
from tests.ha.faults.wire import PACKET_BYTES_MAX, Direction, end_in, inside

SUBNET = "10.77.0.0/24"
_LOOK_SECONDS = 0.02
_HEADER_BYTES = 20  # of IPv4; the address it is for stands in the last four
_DEADLINE_SECONDS = 60.0


class Network:
    """One network, kept by a process that sleeps in it."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._keeper = subprocess.Popen(["unshare", "--net", "sleep", "infinity"], stdin=subprocess.DEVNULL)
        own = os.readlink("/proc/self/ns/net")
        eventually(lambda: os.readlink(f"/proc/{self.pid}/ns/net") != own, "a network of its own")
        self.end = end_in(self.pid)
        with inside(self.pid):
            for words in ("link set lo up", f"address add {address}/24 dev cable", "link set cable up"):
                subprocess.run(["ip", *words.split()], check=True, timeout=_DEADLINE_SECONDS)

    @property
    def pid(self) -> int:
        """The process that is in it."""
        return self._keeper.pid

    def close(self) -> None:
        """Let go of it; it ends with the last process in it."""
        os.close(self.end)
        self._keeper.kill()
        self._keeper.wait(_DEADLINE_SECONDS)


class Cables:
    """The ways between networks; `ways[a, b]` is that from a to b."""

    def __init__(self, networks: Sequence[Network], seed: int) -> None:
        self._networks = {socket.inet_aton(each.address): each for each in networks}
        self.ways = {
            (here, there): Direction(here.end, there.end, f"{seed}/{here.address}/{there.address}")
            for here, there in itertools.permutations(networks, 2)
        }
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._carry, name="cables", daemon=True)
        self._thread.start()

    def between(self, some: Iterable[Network], others: Iterable[Network]) -> list[Direction]:
        """The ways from each of some to each of the others."""
        return [self.ways[pair] for pair in itertools.product(list(some), list(others)) if pair[0] is not pair[1]]

    def heal(self) -> None:
        """Let every cable be good again."""
        for way in self.ways.values():
            way.heal()

    def close(self) -> None:
        """End the thread."""
        self._stopping.set()
        self._thread.join(_DEADLINE_SECONDS)

    def _carry(self) -> None:
        wait = _LOOK_SECONDS
        with selectors.DefaultSelector() as ends:
            for each in self._networks.values():
                ends.register(each.end, selectors.EVENT_READ, each)
            while not self._stopping.is_set():
                for key, _ in ends.select(max(0.0, min(wait, _LOOK_SECONDS))):
                    with contextlib.suppress(BlockingIOError):
                        self._take(key.data, os.read(key.fd, PACKET_BYTES_MAX))
                now = time.monotonic()
                wait = min(way.give(now) for way in self.ways.values())

    def _take(self, here: Network, packet: bytes) -> None:
        there = self._networks.get(packet[_HEADER_BYTES - 4 : _HEADER_BYTES])
        if there is not None and there is not here:
            self.ways[here, there].carry(packet, time.monotonic())


@contextlib.contextmanager
def cabled(addresses: Sequence[str], seed: int) -> Iterator[tuple[list[Network], Cables]]:
    """Networks of these addresses, each joined to each; all are gone afterwards."""
    with contextlib.ExitStack() as living:
        networks = []
        for address in addresses:
            networks.append(Network(address))
            living.callback(networks[-1].close)
        cables = Cables(networks, seed)
        living.callback(cables.close)
        yield networks, cables
