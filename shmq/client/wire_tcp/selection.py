"""Owns which queue the next message goes to.

It does not know sockets or messages: a route, what the caller asked for and `now` go in, a queue comes out.

    message_group   the queue of its hash, whatever happened before: order outweighs speed
    queue_id        exactly that one
    neither         round robin over the writable queues; not on the broker that just failed; not on a slow one

Rule: the queue of a message group is the one a local producer takes, and the one Java's SelectMessageQueueByHash takes.
"""

from __future__ import annotations

import itertools
import threading

from shmq.client.wire_tcp.faults import FaultTable, Latencies
from shmq.client.wire_tcp.route import Route
from shmq.protocol.dialect import MessageQueue
from shmq.shm.core import tag_hash


class QueueSelector:
    """Turns of one connection, topic by topic."""

    def __init__(self, faults: FaultTable | None) -> None:
        self.faults = faults
        self.latencies = Latencies()
        self._lock = threading.Lock()
        self._turns: dict[str, itertools.count[int]] = {}

    def select(self, route: Route, now: float, *, avoid: str | None = None) -> MessageQueue:
        """Return the next queue; `avoid` names the broker that failed a moment ago. The route has a writable queue."""
        queues = route.writable
        with self._lock:
            turn = next(self._turns.setdefault(route.topic, itertools.count()))
        order = [queues[(turn + step) % len(queues)] for step in range(len(queues))]
        others = [queue for queue in order if queue.brokerName != avoid] or order
        if self.faults is None:
            return others[0]
        for queue in others:
            if self.faults.is_available(queue.brokerName, now):
                return queue
        best = self.faults.least_bad({queue.brokerName for queue in others})
        return next(queue for queue in others if queue.brokerName == best)

    def report(self, broker_name: str, latency: float, now: float, *, failed: bool) -> None:
        """Note how a send to a broker went."""
        self.latencies.report(broker_name, latency, failed=failed)
        if self.faults is not None:
            self.faults.report(broker_name, latency, now, failed=failed)

    def fastest(self, route: Route, now: float) -> MessageQueue | None:
        """Return the next queue of the broker that answered fastest; None while none has answered."""
        names = {queue.brokerName for queue in route.writable}
        faults = self.faults
        available = {name for name in names if faults is None or faults.is_available(name, now)} or names
        best = self.latencies.fastest(available)
        if best is None:
            return None
        queues = [queue for queue in route.writable if queue.brokerName == best]
        with self._lock:
            turn = next(self._turns.setdefault(route.topic, itertools.count()))
        return queues[turn % len(queues)]


def queue_of_group(route: Route, message_group: str) -> MessageQueue:
    """Return the queue that keeps a message group in order."""
    return route.writable[(tag_hash(message_group) & 0x7FFFFFFF) % len(route.writable)]
