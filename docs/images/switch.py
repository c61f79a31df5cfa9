"""Draws how a group of brokers changes its master: who leads on each host, and what a producer over TCP sees meanwhile.

    python docs/images/switch.py [FILE]        writes switch.svg; needs etcd and shmq[ha], as examples/failover.py does

Two brokers run on this host. The one that leads is killed with all its processes, comes again, and is made the master
by hand. Each 50 ms it is looked at what each broker says of itself, and how many sends were acknowledged.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from itertools import groupby, pairwise
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

from shmq.shm.links import read_links
from shmq.testing import Broker

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))
from failover import Clients, etcd, free_port, name_server, wait_for_leader

LOOK_SECONDS = 0.05
FRESH_SECONDS = 1.0  # what is older was said by a process that is gone
WIDTH, LEFT, ROW, BARS = 900, 90, 34, 110
COLOURS = {"leads": "#2f9e44", "follows": "#74c0fc", "fenced": "#f08c00", "waits": "#ced4da", "down": "#495057"}


class Look(NamedTuple):
    """One moment of the group."""

    at: float
    states: tuple[str, ...]  # one for each broker
    acknowledged: int


def state_of(broker: Broker) -> str:
    """A broker's state in its own words."""
    if not broker.processes.get("replication"):
        return "down"
    links = read_links(broker.place.links_path)
    if links is None or links.election is None or time.monotonic() - links.at_ms / 1000 > FRESH_SECONDS:
        return "waits"
    if links.election.role == "leading":
        return "leads"
    return "follows" if links.election.role == "following" else "fenced" if links.standing == "fenced" else "waits"


class Watcher(threading.Thread):
    """Looks until it is stopped."""

    def __init__(self, brokers: list[Broker], clients: Clients) -> None:
        super().__init__()
        self.brokers, self.clients = brokers, clients
        self.looks: list[Look] = []
        self.marks: list[tuple[float, str]] = []
        self.began = time.monotonic()
        self.is_over = threading.Event()

    def run(self) -> None:
        while not self.is_over.wait(LOOK_SECONDS):
            states = tuple(state_of(broker) for broker in self.brokers)
            self.looks.append(Look(time.monotonic() - self.began, states, len(self.clients.acknowledged)))

    def mark(self, text: str) -> None:
        self.marks.append((time.monotonic() - self.began, text))


def play() -> Watcher:
    """Let it happen; returns what was seen."""
    with tempfile.TemporaryDirectory() as folder, etcd(folder) as url, name_server() as names:
        common: dict[str, Any] = {"tcp": True, "etcd": url, "role": "sync-master", "nameservers": names}
        brokers = [
            Broker(listen=f"127.0.0.1:{free_port()}", ha_listen=f"127.0.0.1:{free_port()}", name="orders", **common)
            for _ in range(2)
        ]
        with brokers[0], brokers[1]:
            wait_for_leader(brokers)
            clients = Clients(names)
            watcher = Watcher(brokers, clients)
            for thread in (*clients.threads, watcher):
                thread.start()
            time.sleep(4)
            victim = wait_for_leader(brokers)
            watcher.mark("the host of the master dies")
            for mark in victim.processes.values():
                os.kill(mark.pid, signal.SIGKILL)  # all of them at once: none hands over
            victim.kill_daemon()
            wait_for_leader([broker for broker in brokers if broker is not victim])
            time.sleep(3)
            watcher.mark("it comes again")
            victim.restart()
            time.sleep(5)
            watcher.mark("cluster promote")
            subprocess.run([sys.executable, "-m", "shmq", "-u", victim.url, "cluster", "promote"], check=True)
            time.sleep(4)
            watcher.is_over.set()
            clients.is_over.set()
            for thread in (*clients.threads, watcher):
                thread.join()
    return watcher


def draw(watcher: Watcher) -> str:
    """Return the picture as SVG."""
    looks = watcher.looks
    end, top = looks[-1].at, 40
    height = top + ROW * len(watcher.brokers) + BARS + 70

    def x(at: float) -> float:
        return round(LEFT + at / end * (WIDTH - LEFT - 20), 1)

    font = 'font-family="sans-serif" font-size="13"'
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" {font}>',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
    ]
    for number, _ in enumerate(watcher.brokers):
        y = top + ROW * number
        out.append(f'<text x="10" y="{y + 18}">host {"ab"[number]}</text>')
        states = [(look.at, look.states[number]) for look in looks]
        for state, spell in groupby(states, key=itemgetter(1)):
            ats = [at for at, _ in spell]
            width = round(x(ats[-1] + LOOK_SECONDS) - x(ats[0]), 1)
            out.append(f'<rect x="{x(ats[0])}" y="{y}" width="{width}" height="24" fill="{COLOURS[state]}"/>')
    base = top + ROW * len(watcher.brokers) + BARS
    rates = [(b.at, (b.acknowledged - a.acknowledged) / (b.at - a.at)) for a, b in pairwise(looks[::4])]
    most = max(rate for _, rate in rates) or 1.0
    points = " ".join(f"{x(at)},{round(base - rate / most * (BARS - 20), 1)}" for at, rate in rates)
    out.append(f'<text x="10" y="{base - BARS // 2}">sends a s</text><text x="10" y="{base}">0</text>')
    out.append(f'<text x="10" y="{base - BARS + 24}">{most:,.0f}</text>')
    out.append(f'<polyline points="{points}" fill="none" stroke="#1c7ed6" stroke-width="1.5"/>')
    for number, (at, text) in enumerate(watcher.marks):
        out.append(f'<line x1="{x(at)}" x2="{x(at)}" y1="22" y2="{base}" stroke="#e03131" stroke-dasharray="4 3"/>')
        out.append(f'<text x="{x(at) + 4}" y="{16 + 14 * (number % 2)}" fill="#e03131">{text}</text>')
    for second in range(0, int(end) + 1, 2):
        out.append(f'<text x="{x(second)}" y="{base + 20}" fill="#868e96" text-anchor="middle">{second} s</text>')
    place = LEFT
    for state, colour in COLOURS.items():
        out.append(f'<rect x="{place}" y="{base + 34}" width="14" height="14" fill="{colour}"/>')
        out.append(f'<text x="{place + 20}" y="{base + 46}">{state}</text>')
        place += 100
    return "\n".join([*out, "</svg>", ""])


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("switch.svg")
    target.write_text(draw(play()))
    print(target)
