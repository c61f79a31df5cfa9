"""A name server in a process of its own, on a free port of loopback."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

from shmq.addresses import parse_address
from shmq.protocol.codes import Request, Response
from tests.bridge.live_bridge import DEADLINE, RawPeer
from tests.supervisor.told_faults import look_at


class LiveNameServer:
    """The process and what can be asked of it."""

    def __init__(self, *words: str, listen: str = "127.0.0.1:0") -> None:
        command = [sys.executable, "-P", "-m", "shmq", "nameserver", "--json", "--listen", listen, *words]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.process.communicate()[1]
        self.announcement: dict[str, Any] = json.loads(line)
        self.address: str = self.announcement["nameserver"]

    def peer(self) -> closing[RawPeer]:
        """A connection to it."""
        return closing(RawPeer(parse_address(self.address)))

    def brokers_of(self, topic: str) -> dict[str, dict[str, str]]:
        """The addresses of each broker that has the topic."""
        return brokers_of(self.address, topic)

    def end(self, number: signal.Signals = signal.SIGTERM) -> tuple[int, str]:
        """End it; return its status and what it logged."""
        self.process.send_signal(number)
        _, log = self.process.communicate(timeout=DEADLINE)
        look_at(log)
        return self.process.returncode, log


def brokers_of(name_server: str, topic: str) -> dict[str, dict[str, str]]:
    """The addresses of each broker that has the topic, as the name server at an address says."""
    with closing(RawPeer(parse_address(name_server))) as peer:
        reply = peer.ask(Request.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
    if reply.code == Response.TOPIC_NOT_EXIST:
        return {}
    return {data["brokerName"]: data["brokerAddrs"] for data in json.loads(reply.body)["brokerDatas"]}


@contextmanager
def name_server(*words: str, listen: str = "127.0.0.1:0") -> Iterator[LiveNameServer]:
    """A name server for the length of a with block."""
    server = LiveNameServer(*words, listen=listen)
    try:
        yield server
    finally:
        if server.process.poll() is None:
            server.end(signal.SIGKILL)
        for pipe in (server.process.stdout, server.process.stderr):
            if pipe is not None:
                pipe.close()
