"""See what clients see while the master of a group of brokers dies: two brokers elect their master over etcd.

It starts an etcd, a name server and two brokers on this host (give each a host of its own in earnest), and sends and
receives over TCP. Twice it kills every process of the broker that leads. Each second it prints what was sent and
received, and who leads; at the end, whether a message that was acknowledged is missing.

    python examples/failover.py            needs etcd (`apt-get install etcd-server`) and `pip install 'shmq[ha]'`
"""

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from typing import Any

import shmq
from shmq.testing import Broker

TOPIC, GROUP = "orders", "billing"


_ports = random.sample(range(5_000, 10_240), 5_240)  # each once


def free_port() -> int:
    """A port that stays free while its broker is dead: Linux gives outgoing connections others by default."""
    while True:
        port = _ports.pop()
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


@contextlib.contextmanager
def etcd(folder: str) -> Iterator[str]:
    """One etcd, until the block ends; yields its URL."""
    program = shutil.which("etcd")
    if program is None:
        raise SystemExit("etcd is not installed: apt-get install etcd-server")
    url, peers = f"http://127.0.0.1:{free_port()}", f"http://127.0.0.1:{free_port()}"
    words = ["--data-dir", folder, "--listen-client-urls", url, "--advertise-client-urls", url]
    words += [
        "--listen-peer-urls",
        peers,
        "--initial-advertise-peer-urls",
        peers,
        "--initial-cluster",
        f"default={peers}",
    ]
    process = subprocess.Popen([program, *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield url
    finally:
        process.terminate()
        process.wait(10)


@contextlib.contextmanager
def name_server() -> Iterator[str]:
    """One name server, until the block ends; yields its address."""
    address = f"127.0.0.1:{free_port()}"
    process = subprocess.Popen(
        [sys.executable, "-m", "shmq", "nameserver", "--listen", address],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield address
    finally:
        process.terminate()
        process.wait(10)


class Clients:
    """A producer and a consumer over TCP, and what they saw."""

    def __init__(self, name_servers: str) -> None:
        self.url = f"rocketmq://{name_servers}"
        self.acknowledged: list[bytes] = []
        self.received: set[bytes] = set()
        self.errors = 0
        self.is_over = threading.Event()
        self.threads = [threading.Thread(target=self.produce), threading.Thread(target=self.consume)]

    def produce(self) -> None:
        number = 0
        while not self.is_over.is_set():
            try:
                with shmq.connect(self.url, timeout=2.0) as mq:
                    while not self.is_over.wait(0.005):
                        number += 1
                        mq.send(TOPIC, b"%d" % number)
                        self.acknowledged.append(b"%d" % number)
            except shmq.ShmqError:  # no broker leads just now; what was not acknowledged may be stored or not
                self.errors += 1
                self.is_over.wait(0.05)

    def consume(self) -> None:
        while not self.is_over.is_set():
            try:
                with shmq.connect(self.url) as mq, mq.subscribe(TOPIC, group=GROUP, start="earliest") as messages:
                    while not self.is_over.is_set():
                        for message in messages.receive(32, 0.2):
                            self.received.add(bytes(message.body))
                            message.ack()
            except shmq.ShmqError:
                self.is_over.wait(0.05)


def leader(brokers: list[Broker]) -> Broker | None:
    """The broker that says that it leads."""
    for broker in brokers:
        command = [sys.executable, "-m", "shmq", "-u", broker.url, "--json", "cluster", "status"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        status = json.loads(done.stdout or "{}")
        if status.get("standing") == "leads" and status.get("role") != "slave":
            return broker
    return None


def wait_for_leader(brokers: list[Broker]) -> Broker:
    while True:
        found = leader(brokers)
        if found is not None:
            return found
        time.sleep(0.05)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=8.0, help="between two kills")
    seconds = parser.parse_args().seconds
    with tempfile.TemporaryDirectory() as folder, etcd(folder) as url, name_server() as names:
        common: dict[str, Any] = {"tcp": True, "etcd": url, "role": "sync-master", "nameservers": names}
        brokers = [
            Broker(listen=f"127.0.0.1:{free_port()}", ha_listen=f"127.0.0.1:{free_port()}", name="orders", **common)
            for _ in range(2)
        ]
        with brokers[0], brokers[1]:
            wait_for_leader(brokers)
            clients = Clients(names)
            for thread in clients.threads:
                thread.start()
            began = time.monotonic()
            for death in range(3):
                watch(clients, brokers, began, seconds)
                if death < 2:
                    victim = wait_for_leader(brokers)
                    print(f"{time.monotonic() - began:5.1f} s  broker {brokers.index(victim)} dies", flush=True)
                    for mark in victim.processes.values():
                        os.kill(mark.pid, signal.SIGKILL)  # all at once, as a host dies, without a handover
                    victim.kill_daemon()
                    watch(clients, [each for each in brokers if each is not victim], began, seconds)
                    print(f"{time.monotonic() - began:5.1f} s  broker {brokers.index(victim)} comes again", flush=True)
                    victim.restart()
            return conclude(clients)


def watch(clients: Clients, brokers: list[Broker], began: float, seconds: float) -> None:
    """Print a line a second."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        before, errors = len(clients.acknowledged), clients.errors
        time.sleep(1.0)
        sent, failed = len(clients.acknowledged) - before, clients.errors - errors
        state = f"{sent:5} acknowledged" + (f", {failed} refused" if failed else "")
        print(f"{time.monotonic() - began:5.1f} s  {state}, {len(clients.received)} received in all", flush=True)


def conclude(clients: Clients) -> int:
    deadline = time.monotonic() + 60
    while set(clients.acknowledged) - clients.received and time.monotonic() < deadline:
        time.sleep(0.2)
    clients.is_over.set()
    for thread in clients.threads:
        thread.join()
    missing = len(set(clients.acknowledged) - clients.received)
    print(f"{len(clients.acknowledged)} messages acknowledged, {missing} missing")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
