"""The subject of one call of doctor: the place, what the observer saw there, and the host around it.

Everything in it was read once, before the first check, so that all checks judge the same moment.
"""

from __future__ import annotations

import contextlib
import json
import os
import pwd
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from shmq.errors import SegmentError
from shmq.figures.observer import Observer
from shmq.figures.snapshot import Process, Snapshot
from shmq.shm.core import Store
from shmq.shm.instance import Instance, read_instance
from shmq.shm.leftovers import Leftover, find_settled_leftovers
from shmq.shm.place import Place, default_store
from shmq.tools.doctor.host import Host


@dataclass(frozen=True)
class Case:
    """The subject of the checks."""

    place: Place
    host: Host
    instance: Instance | None
    snapshot: Snapshot
    leftovers: tuple[Leftover, ...]
    options: Mapping[str, Any] = field(default_factory=dict)  # of the running broker; {} when they cannot be seen
    store: Store | None = None  # the mapped segments, to be read only
    deep: bool = False  # look at all of the store

    @property
    def own_processes(self) -> list[Process]:
        """The broker's processes that live."""
        return [process for process in self.snapshot.processes if process.alive and process.role != "client"]

    @property
    def clients(self) -> list[Process]:
        """The processes attached to it that live."""
        return [process for process in self.snapshot.processes if process.alive and process.role == "client"]

    @property
    def is_served(self) -> bool:
        """Whether the broker's supervisor lives."""
        return self.snapshot.broker.served

    @property
    def owner_uid(self) -> int:
        """The user of the broker, if it ran."""
        return self.instance.uid if self.instance else os.geteuid()

    @property
    def store_path(self) -> str:
        """The broker's store, if it ran."""
        return self.instance.store_path if self.instance else str(default_store(self.place.broker_name))

    @property
    def serve_command(self) -> str:
        """The command that starts this broker."""
        return "shmq serve" + ("" if self.place.broker_name == "default" else f" --name {self.place.broker_name}")


@contextmanager
def open_case(url: str | None, *, host: Host | None = None, deep: bool = False) -> Iterator[Case]:
    """Look once at the place of a URL and give the checks what was seen, for the length of a with block.

    Raises:
        UsageError, InvalidName: the URL names no broker of this host.
    """
    with Observer(url) as observer:
        place, around = observer.place, host or Host()
        # The leftovers first: afterwards this process maps the broker's own segments.
        leftovers = tuple(find_settled_leftovers(place))
        snapshot = observer.snapshot("deep")
        yield Case(
            place=place,
            host=around,
            instance=_instance(place),
            snapshot=snapshot,
            leftovers=leftovers,
            options=options_of(around, snapshot),
            store=observer.store,
            deep=deep,
        )


def options_of(host: Host, snapshot: Snapshot) -> Mapping[str, Any]:
    """Return the settings of a running broker: they stand on its processes' command lines, and are no secrets."""
    for role in ("keeper", "bridge"):
        process = snapshot.process(role)
        words = host.text(f"/proc/{process.pid}/cmdline").split("\0") if process and process.alive else []
        if "--options" in words[:-1]:
            with contextlib.suppress(ValueError):
                found = json.loads(words[words.index("--options") + 1])
                return found if isinstance(found, dict) else {}
    return {}


def _instance(place: Place) -> Instance | None:
    try:
        return read_instance(place.instance_path)
    except (SegmentError, OSError):
        return None


def user_text(uid: int) -> str:
    """Return a user as people know it: `uid 1000 (ada)`."""
    try:
        return f"uid {uid} ({pwd.getpwuid(uid).pw_name})"
    except KeyError:
        return f"uid {uid}"
