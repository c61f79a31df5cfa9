"""The broker behind the pages: one look that all of them share, and the ways to its memory and its control plane.

Looking reads mappings that cannot be written; nothing in the broker knows of it. A client slot and a control connection
are taken only while a page needs one: to look a message up by its key, to ask what waits, to change something.

Invariants:
1. However many pages are open, there is at most one look a second.
2. Rates are differences of two looks at least half a second apart.
"""

from __future__ import annotations

import threading
import time
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, NamedTuple

import shmq
from shmq.figures.observer import Observer
from shmq.figures.snapshot import Group, Snapshot
from shmq.figures.thresholds import Thresholds
from shmq.message import is_hidden_topic, is_system_group
from shmq.tools.broker.access import local_control_of
from shmq.tools.broker.memory import Memory, open_memory
from shmq.tools.command import Call
from shmq.tools.health.examine import examine
from shmq.tools.health.report import Report
from shmq.tools.top.rates import Picture, picture_of

if TYPE_CHECKING:
    from shmq.client.wire_shm.control import ControlClient

FRESH_SECONDS = 1.0
APART_SECONDS = 0.5
CLIENT_NAME = "shmq-console"


class Look(NamedTuple):
    """One look: what is the case, what that means, and how fast it changes."""

    report: Report
    picture: Picture
    cost_seconds: float

    @property
    def snapshot(self) -> Snapshot:
        """The plain figures."""
        return self.report.snapshot

    @property
    def groups(self) -> list[Group]:
        """The groups but for the broker's own."""
        return [group for group in self.snapshot.groups if not is_system_group(group.name)]

    @property
    def hidden_topics(self) -> set[str]:
        """The names of topics that are listed on request only: the broker's own, and those without read permission."""
        return {topic.name for topic in self.snapshot.topics if is_hidden_topic(topic.name, topic.perm)}


class Source:
    """One broker of this host.

    Args:
        url: as everywhere; None is the default broker.

    Raises:
        UsageError: it is reached over TCP.
    """

    def __init__(self, url: str | None) -> None:
        self._call = Call(named_url=url)
        self._call.refuse_remote(
            "{url} is reached over TCP; the console reads the memory of the broker's own host",
            hint="run it there, and reach it through a tunnel: ssh -L 8080:127.0.0.1:8080 HOST",
        )
        self._observer = Observer(self._call.url)
        self._lock = threading.Lock()
        self._look: Look | None = None
        self._before: Snapshot | None = None

    @property
    def url(self) -> str:
        """The broker's URL."""
        return self._observer.place.url

    def close(self) -> None:
        """Let the segments go."""
        with self._lock:
            self._observer.close()

    def look(self) -> Look:
        """Return the last look, or a new one when that is a second old."""
        with self._lock:
            last = self._look
            if last is not None and 0 <= time.time() - last.snapshot.at < FRESH_SECONDS:
                return last
            begin = time.thread_time()
            report = examine(self._observer, Thresholds())
            if last is not None and report.snapshot.at - last.snapshot.at >= APART_SECONDS:
                self._before = last.snapshot
            self._look = Look(report, picture_of(self._before, report.snapshot), time.thread_time() - begin)
            return self._look

    def forget(self) -> None:
        """Make the next page look anew: something was changed."""
        with self._lock:
            self._look = None

    def memory(self) -> AbstractContextManager[Memory]:
        """Map the broker's topics, queues and groups for reading. Raises as `open_memory`."""
        return open_memory(self._call.url)

    def control(self, what: str) -> AbstractContextManager[ControlClient]:
        """Connect to the broker's control plane, which knows `what`. Raises as `local_control_of`."""
        return local_control_of(self._call, what)

    def connect(self) -> shmq.Connection:
        """Connect as a client. Raises as `shmq.connect`."""
        return shmq.connect(self.url, name=CLIENT_NAME)
