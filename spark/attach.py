"""Owns the attachments of this process: one read-only mapping for each broker, kept for the next task.

It does not know offsets or Spark. Python workers are reused, so a task usually finds the segments mapped already; a
broker that was started anew has new ones, and then the old attachment is let go.

Rules: (1) everything is mapped read-only, and nothing is said to the broker;
(2) nothing of this may travel to another process: partitions carry the URL, and each process attaches by itself.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass

from shmq.errors import BrokerNotRunning, ConnectError, ShmqError
from shmq.message import nearest
from shmq.shm.core import Store
from shmq.shm.instance import Instance
from shmq.shm.place import place_of
from shmq.shm.segment import open_store, read_instance
from shmq.spark.schema import refused

_attached: dict[str, Attachment] = {}


@dataclass(frozen=True)
class Attachment:
    """One broker as this process sees it."""

    instance: Instance
    store: Store

    @property
    def broker(self) -> str:
        """The broker's name, as rows show it."""
        return self.instance.broker_name

    def topics(self) -> list[str]:
        """Return the names of all topics."""
        return sorted(str(entry["name"]) for entry in self.store.topics())

    def queues(self, topic: str) -> list[Queue]:
        """Return the queues of a topic that may be read or still hold messages.

        Raises:
            UsageError: there is no such topic.
        """
        index = self.store.topic_find(topic)
        if index < 0:
            near = nearest(topic, self.topics())
            meant = f"did you mean {' or '.join(near)}? " if near else ""
            raise refused(f'topic "{topic}" does not exist on broker "{self.broker}"', f"{meant}shmq topic list")
        entry = self.store.topic(index)
        born = int(entry["born_position"])
        return [Queue(topic, queue_id, queue, born) for queue_id, queue in enumerate(entry["queues"])]


@dataclass(frozen=True)
class Queue:
    """One queue: where it is in the tables, and which topic of that name it belongs to."""

    topic: str
    queue_id: int
    index: int
    born_position: int


def attach(url: str | None) -> Attachment:
    """Return this process' attachment to a broker of this host.

    Args:
        url: as option `store`: shmq://NAME, a name, an absolute runtime directory; None takes $SHMQ_URL or "default".

    Raises:
        BrokerNotRunning: there is none on this host; the text names host and option.
        PermissionDenied, VersionMismatch, ForeignNamespace: it is there, but not for this process.
    """
    place = place_of(full_url(url))
    try:
        instance = read_instance(place.instance_path)
    except (OSError, ShmqError) as error:
        raise ConnectError(f"{place.instance_path} could not be read on {socket.gethostname()}: {error}") from error
    if instance is None:
        raise BrokerNotRunning(
            f"option store: no broker at {place.url} on host {socket.gethostname()}; start it with "
            f"shmq serve --name {place.broker_name}, or run Spark's workers on the broker's host"
        )
    known = _attached.get(place.url)
    if known is not None and known.instance.generation == instance.generation:
        return known
    try:
        fresh = Attachment(instance, open_store(instance, writable=False))
    except ShmqError as error:
        if error.hint and error.hint not in str(error):
            raise type(error)(f"option store: {error}; {error.hint}", hint=error.hint) from error
        raise
    if known is not None:
        known.store.close()
    _attached[place.url] = fresh
    return fresh


def full_url(text: str | None) -> str | None:
    """Return the URL that option `store` means."""
    if text is None or "://" in text:
        return text
    return f"shmq://{text}"
