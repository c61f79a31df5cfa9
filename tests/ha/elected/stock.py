"""RocketMQ's own Java clients among the load: one that sends, and a member of a group that is pushed messages.

Each goes through all switches with one client, which tries again by itself. A stock client looks for a new route by its
own clock: each 30 s if nothing else is said, and here each `POLL_MS`.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from tests.ha.elected.receivers import Receiver, Subscribe
from tests.ha.elected.senders import Send, Sender
from tests.interop.peers.java import ClientError, JavaClient

POLL_MS = 2_000
TIMEOUT_MS = 3_000  # of a send, as it is if nothing else is said
_ACKNOWLEDGED = ("SEND_OK", "SLAVE_NOT_AVAILABLE")  # the latter while the leader is all that is in sync
_PAUSE_SECONDS = 0.05
_SEND_SECONDS = 50.0  # less than a sender has to end


class Place(NamedTuple):
    """Where a message was stored."""

    queue_id: int
    offset: int


class Pushed(NamedTuple):
    """A message that the client was given."""

    body: bytes
    queue_id: int
    offset: int
    attempt: int

    def ack(self) -> None:
        """Nothing: the client has acknowledged it."""


class PushedMessages:
    """What a client was given since the last look."""

    def __init__(self, client: JavaClient) -> None:
        self._client = client
        self._seen = 0

    def receive(self, max: int, wait: float) -> list[Pushed]:
        """Return some messages, none after a while."""
        events = self._client.events[self._seen : self._seen + max]
        self._seen += len(events)
        if not events:
            time.sleep(wait)  # not a wait: how often it is looked
        return [
            Pushed(event["body"].encode(), event["queue"], event["offset"], event["reconsumeTimes"] + 1)
            for event in events
        ]


def stock_sender(version: str, name_server: str, topic: str) -> Sender:
    """What sends with the client of a line, "4" or "5"."""

    def sends(client: JavaClient) -> Send:
        how = {"nameServer": name_server, "pollNameServerMs": POLL_MS, "timeoutMs": TIMEOUT_MS}
        client.do("producer", name="load", group="java", **how)

        def send(body: bytes) -> Place | None:
            try:
                [told] = client.do("send", name="load", topic=topic, bodies=[body.decode()], timeout=_SEND_SECONDS)
            except ClientError:
                return None
            return Place(told["queue"], told["offset"]) if told["status"] in _ACKNOWLEDGED else None

        return send

    return Sender(f"java{version}", lambda: JavaClient(version), sends, pause_seconds=_PAUSE_SECONDS)


def stock_receiver(version: str, name_server: str, topic: str) -> Receiver:
    """A member of a group of its own with such a client."""
    name = f"java{version}-readers"
    return Receiver(name, lambda: JavaClient(version), _pushed(name, name_server, topic))


def _pushed(group: str, name_server: str, topic: str) -> Subscribe:
    @contextlib.contextmanager
    def subscribe(client: Any) -> Iterator[PushedMessages]:
        client.do(
            "push",
            name="load",
            group=group,
            topic=topic,
            nameServer=name_server,
            pollNameServerMs=POLL_MS,
            orderly=True,
        )
        yield PushedMessages(client)

    return subscribe
