"""A cable between two hosts that a test can cut, on one side or both, slow down, and have lose packets.

    host a  TUN ⇄ this process: a thread carries each packet, drops it, or keeps it for a while ⇄ TUN  host b

Rules: (1) what is lost is chosen by a seed; (2) packets of one direction stay in their order.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import random
import selectors
import struct
import threading
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from tests.ha.hosts import Host

_CLONE_NEWNET = 0x40000000  # <sched.h>
_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x0001, 0x1000  # <linux/if_tun.h>
PACKET_BYTES_MAX = 65536
_KEPT_MAX = 2000  # packets on their way in one direction; above that they are lost, as in a router
_LOOK_SECONDS = 0.05


class Direction:
    """One way through the cable.

    Attributes:
        is_cut: nothing comes through.
        loss: the part of the packets that is lost.
        delay_seconds: how long one is on its way.
        bytes_per_second: of a slow link; 0: as fast as it goes.
    """

    def __init__(self, source: int, target: int, seed: str) -> None:
        self.source, self.target = source, target
        self.is_cut, self.loss, self.delay_seconds, self.bytes_per_second = False, 0.0, 0.0, 0
        self.carried = self.lost = 0
        self._choice = random.Random(seed)
        self._kept: deque[tuple[float, bytes]] = deque()
        self._free_at = 0.0

    def take(self, now: float) -> None:
        """Take one packet."""
        self.carry(os.read(self.source, PACKET_BYTES_MAX), now)

    def carry(self, packet: bytes, now: float) -> None:
        """Let a packet come through, or not, by and by."""
        if self.is_cut or self._choice.random() < self.loss or len(self._kept) >= _KEPT_MAX:
            self.lost += 1
            return
        self._free_at = max(self._free_at, now)
        if self.bytes_per_second:
            self._free_at += len(packet) / self.bytes_per_second
        self._kept.append((self._free_at + self.delay_seconds, packet))

    def heal(self) -> None:
        """Be good again."""
        self.is_cut, self.loss, self.delay_seconds, self.bytes_per_second = False, 0.0, 0.0, 0

    def give(self, now: float) -> float:
        """Give what is due; return how long nothing more is."""
        while self._kept and self._kept[0][0] <= now:
            with contextlib.suppress(OSError):  # the host is gone
                os.write(self.target, self._kept.popleft()[1])
            self.carried += 1
        return self._kept[0][0] - now if self._kept else _LOOK_SECONDS


class Wire:
    """The cable; `there` is the way from the first host to the second, `back` the other."""

    def __init__(self, ends: tuple[int, int], seed: int) -> None:
        self.there = Direction(ends[0], ends[1], f"{seed}/there")
        self.back = Direction(ends[1], ends[0], f"{seed}/back")
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._carry, daemon=True)
        self._thread.start()

    def heal(self) -> None:
        """Be a good cable again."""
        for way in (self.there, self.back):
            way.heal()

    def close(self) -> None:
        """End the thread."""
        self._stopping.set()
        self._thread.join(60.0)

    def _carry(self) -> None:
        ways, wait = (self.there, self.back), _LOOK_SECONDS
        with selectors.DefaultSelector() as ends:
            for way in ways:
                ends.register(way.source, selectors.EVENT_READ, way)
            while not self._stopping.is_set():
                for key, _ in ends.select(max(0.0, min(wait, _LOOK_SECONDS))):
                    key.data.take(time.monotonic())
                wait = min(way.give(time.monotonic()) for way in ways)


def enter(pid: int) -> None:
    """Move this thread into the network of a process."""
    network = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        _must(ctypes.CDLL(None, use_errno=True).setns(network, _CLONE_NEWNET))
    finally:
        os.close(network)


@contextlib.contextmanager
def inside(pid: int) -> Iterator[None]:
    """Be in the network of a process; so are threads and processes that this thread starts meanwhile."""
    ours = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        enter(pid)
        try:
            yield
        finally:
            _must(ctypes.CDLL(None, use_errno=True).setns(ours, _CLONE_NEWNET))
    finally:
        os.close(ours)


def end_in(pid: int) -> int:
    """A TUN device in the network of a process, as a descriptor here."""
    with inside(pid):
        device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH22x", b"cable", _IFF_TUN | _IFF_NO_PI))
    return device


def _must(status: int) -> None:
    if status != 0:
        raise OSError(ctypes.get_errno(), f"setns: {os.strerror(ctypes.get_errno())}")


@contextlib.contextmanager
def wired_hosts(directory: Path, first: str, second: str, seed: int) -> Iterator[tuple[Host, Host, Wire]]:
    """Two hosts and the cable between them; all are gone afterwards."""
    with contextlib.ExitStack() as living:
        hosts = []
        for number, address in enumerate((first, second)):
            hosts.append(Host(address, directory / f"host-{number}"))
            living.callback(hosts[-1].close)
        ends = tuple(end_in(host.first_pid) for host in hosts)
        for end in ends:
            living.callback(os.close, end)
        wire = Wire((ends[0], ends[1]), seed)
        living.callback(wire.close)
        for host in hosts:
            host.run(f"ip link set lo up && ip address add {host.address}/24 dev cable && ip link set cable up")
        yield hosts[0], hosts[1], wire
