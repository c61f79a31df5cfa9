"""Attached clients: what their slots in shared memory count, beside what the broker last said of their names.

The broker's own processes have slots, too, and appear here without a name. A client counts what it settles, one word
beside what it received; the difference is what it has in hand.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from shmq.figures.snapshot import Client
from shmq.shm.core import StoreFigures
from shmq.shm.liveness import ProcessMark, is_alive

if TYPE_CHECKING:
    from shmq.protocol.roster import Roster

_ROLES = {1: "consumer", 2: "producer", 3: "both"}  # shmq_client.role
_ASLEEP = 2  # enum shmq_client_state


def collect_clients(figures: StoreFigures, roster: Roster | None) -> tuple[Client, ...]:
    """Return the attached processes by slot, then the clients over TCP by address."""
    told = {entry.slot: entry for entry in roster.connections if entry.slot >= 0} if roster else {}
    clients = []
    now_ns = time.monotonic_ns()
    for entry in figures.clients():
        if not entry.state:
            continue
        said = told.get(entry.slot)
        said = said if said is not None and said.pid == entry.pid else None
        clients.append(
            Client(
                client_id=said.client_id if said else "",
                slot=entry.slot,
                pid=entry.pid,
                start=entry.start,
                alive=is_alive(ProcessMark(entry.pid, entry.start)),
                transport="shm",
                address="",
                language=said.language.lower() if said else "",
                version=said.version if said else "",
                role=_ROLES.get(entry.role, f"role {entry.role}"),
                received=entry.received,
                sent=entry.sent,
                in_hand=max(0, entry.received - entry.settled),
                idle=max(0, now_ns - entry.beat_ns) / 1e9,
                asleep=entry.state == _ASLEEP,
                consumer_groups=said.consumer_groups if said else (),
                producer_groups=said.producer_groups if said else (),
            )
        )
    return (*clients, *_remote_clients(roster))


def _remote_clients(roster: Roster | None) -> list[Client]:
    return [
        Client(
            client_id=entry.client_id,
            slot=None,
            pid=None,
            start=0,
            alive=True,
            transport="tcp",
            address=entry.address,
            language=entry.language.lower(),
            version=entry.version,
            role="both" if entry.producer_groups and entry.consumer_groups else _remote_role(entry.producer_groups),
            received=None,
            sent=None,
            in_hand=None,
            idle=None,
            asleep=None,
            consumer_groups=entry.consumer_groups,
            producer_groups=entry.producer_groups,
        )
        for entry in sorted(roster.connections if roster else (), key=lambda entry: entry.address)
        if entry.transport == "tcp"
    ]


def _remote_role(producer_groups: Sequence[str]) -> str:
    return "producer" if producer_groups else "consumer"
