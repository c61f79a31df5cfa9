"""A real bridge process over real segments in a private runtime directory, for tests that need the whole way."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from shmq.addresses import parse_address
from shmq.client.wire_shm.control import ControlClient
from shmq.errors import ConnectError
from shmq.options.broker import Options
from shmq.protocol.command import Command
from shmq.protocol.header import CommandDecoder, encode_command
from shmq.shm.access import access_rights
from shmq.shm.addresses import read_addresses
from shmq.shm.core import Store, StoreFigures
from shmq.shm.instance import write_instance
from shmq.shm.place import Place
from shmq.shm.segment import SegmentSizes, create_segments, unlink_segments
from tests.deadline import eventually as wait_until
from tests.supervisor.told_faults import look_at

DEADLINE = 60.0  # far more than anything here takes; only a hung test sees it
SIZES = SegmentSizes(
    file_bytes=1 << 20, topic_max=64, queue_max=4096, frame_max=2048, client_max=64, group_max=64, offset_max=4096
)

_BRIDGE = """
import json, sys
from shmq.daemon.bridge.limits import BridgeLimits
from shmq.daemon.primary_bridge import run_bridge
from shmq.options.broker import Options
options = Options.from_json(sys.argv[1])
sys.exit(run_bridge(options.place, options, limits=BridgeLimits(**json.loads(sys.argv[2]))))
"""

_CLIENT = """
import sys
from pathlib import Path
from shmq.client.wire_shm.control import ControlClient
from shmq.protocol.codes import Role
from shmq.protocol.body import ConsumerData, SubscriptionData
from shmq.shm.place import Place
runtime_dir, name, group = sys.argv[1:]
client = ControlClient.connect(Place("test", Path(runtime_dir)), client_id=name, role=Role.BOTH, timeout=60.0)
if group:
    client.heartbeat([], [ConsumerData(group, [SubscriptionData("orders")])])
print(client.attachment.client_slot, flush=True)
sys.stdin.read()
"""


class LiveBridge:
    """Segments, and a bridge process that may be stopped, killed and started again."""

    def __init__(self, *, limits: dict[str, Any] | None = None, **options: Any) -> None:
        # Not tmp_path: a socket address holds 107 bytes.
        self.directory = Path(tempfile.mkdtemp(prefix="shmq-"))
        self.place = Place("test", self.directory)
        self.limits = limits or {}
        options = {"tcp": False, "listen": "127.0.0.1:0", "nameserver_listen": "127.0.0.1:0", **options}
        self.options = Options(
            broker_name="test", runtime_dir=str(self.directory), store=str(self.directory / "store"), **options
        )
        self.process: subprocess.Popen[str] | None = None
        self.children: list[subprocess.Popen[str]] = []
        self.clients: list[ControlClient] = []
        (self.options.store_path / "config").mkdir(parents=True)
        self.instance, self.store = create_segments(
            "test",
            store_path=self.options.store_path,
            sizes=SIZES,
            flush_sync=self.options.flush_sync,
            clock_stands_ms=1_800_000_000_000 if self.options.clock == "frozen" else 0,
        )
        write_instance(self.place.instance_path, self.instance, mode=access_rights().read_mode, gid=access_rights().gid)

    def start(self) -> LiveBridge:
        """Start the process and return when it accepts connections."""
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-c", _BRIDGE, self.options.to_json(), json.dumps(self.limits)],
            stderr=subprocess.PIPE,
            text=True,
        )
        wait_until(self._answers, "the bridge listens")
        return self

    def _answers(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self.process.communicate()[1]
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as probe:
            probe.connect(os.fspath(self.place.socket_path))
            return True
        return False

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to the bridge process."""
        assert self.process is not None
        self.process.send_signal(number)

    def end(self, number: signal.Signals = signal.SIGTERM) -> tuple[int, str]:
        """End the process; return its status and what it logged."""
        assert self.process is not None
        process, self.process = self.process, None
        process.send_signal(number)
        _, log = process.communicate(timeout=DEADLINE)
        look_at(log)
        return process.returncode, log

    def connect(self, name: str, *, role: int = 3, timeout: float = DEADLINE) -> ControlClient:
        """A client of this process."""
        client = ControlClient.connect(self.place, client_id=name, role=role, timeout=timeout)
        self.clients.append(client)
        return client

    def advance(self, seconds: float) -> None:
        """Move the clock, which has to be a frozen one, by which limits of connections pass."""
        with contextlib.closing(self.connect(f"clock-{time.monotonic_ns()}")) as client:
            client.advance_clock(self.store, seconds)

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of the TCP listener; needs tcp=True."""
        return parse_address(read_addresses(self.place.addresses_path)["broker"])

    def spawn(self, name: str, group: str = "") -> tuple[subprocess.Popen[str], int]:
        """A client in a process of its own, registered for a group, and its slot."""
        child = subprocess.Popen(
            [sys.executable, "-P", "-c", _CLIENT, str(self.directory), name, group],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.children.append(child)
        assert child.stdout is not None
        line = child.stdout.readline()
        assert line, f"the client process ended with {child.wait(DEADLINE)}"
        return child, int(line)

    def slots(self) -> dict[int, int]:
        """pid of each client slot that is handed out, but for the one by which the bridge watches the log."""
        own = self.process.pid if self.process is not None else None
        return {slot: pid for slot, state, pid, *_ in StoreFigures(self.store).clients() if state and pid != own}

    def close(self) -> None:
        """End everything and remove every name."""
        for client in self.clients:
            client.close()
        for child in self.children:
            child.kill()
            child.communicate()
        if self.process is not None:
            self.send_signal(signal.SIGCONT)
            self.end(signal.SIGKILL)
        self.store.close()
        unlink_segments(self.instance)
        shutil.rmtree(self.directory)

    def __enter__(self) -> LiveBridge:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def running(**arguments: Any) -> LiveBridge:
    """A bridge that serves already; use it in a with block."""
    bridge = LiveBridge(**arguments)
    try:
        return bridge.start()
    except BaseException:
        bridge.close()
        raise


class RawPeer:
    """A peer that writes whatever bytes it likes, over the control socket or over TCP."""

    def __init__(self, place: Place | tuple[str, int]) -> None:
        if not isinstance(place, Place):
            self.socket = socket.create_connection(place, DEADLINE)
        else:
            self.socket = socket.socket(socket.AF_UNIX)
            self.socket.settimeout(DEADLINE)
            self.socket.connect(os.fspath(place.socket_path))
        self._decoder = CommandDecoder()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def ask(self, code: int, ext: dict[str, str] | None = None, body: bytes = b"", opaque: int = 1) -> Command:
        self.send(encode_command(Command(code=code, opaque=opaque, ext=ext or {}, body=body)))
        reply = self.take()
        assert reply is not None and reply.opaque == opaque
        return reply

    def take(self) -> Command | None:
        """The next command, or None when the bridge has closed the connection."""
        while (command := self._decoder.take()) is None:
            try:
                data = self.socket.recv(1 << 16)
            except ConnectionResetError:
                return None
            if not data:
                return None
            self._decoder.feed(data)
        return command

    def close(self) -> None:
        self.socket.close()


@contextlib.contextmanager
def raw_peer(bridge: LiveBridge, *, tcp: bool = False) -> Iterator[RawPeer]:
    """A raw peer for the length of a with block."""
    peer = RawPeer(bridge.address if tcp else bridge.place)
    try:
        yield peer
    finally:
        peer.close()


def is_served(bridge: LiveBridge) -> bool:
    """Whether another client still gets an answer."""
    try:
        client = ControlClient.connect(bridge.place, client_id=f"probe-{time.monotonic_ns()}", role=0, timeout=5.0)
    except ConnectError:
        return False
    try:
        return bool(client.status()["broker"]["name"] == "test")
    finally:
        client.close()


def open_names(store: Store) -> list[str]:
    """Names under /dev/shm of this broker's generation."""
    mark = f"{store.head['generation']:016x}"
    return [name for name in os.listdir("/dev/shm") if mark in name]
