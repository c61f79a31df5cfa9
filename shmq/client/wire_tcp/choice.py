"""Owns what queue selectors of users ask of a cluster: which queues may be written, and which broker is fast.

It does not know selectors (client.selecting). Coroutines run on the I/O thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shmq.client.wire_tcp.route import Route
    from shmq.client.wire_tcp.session import RemoteSession
    from shmq.shm.core import Receipt


async def write_queues(session: RemoteSession, topic: str) -> list[int]:
    """Return the ids of the queues of a topic that may be written."""
    route = await _route(session, topic)
    return sorted(map(session.numbers.number, route.writable))


async def fastest_queue(session: RemoteSession, topic: str) -> int | None:
    """Return a queue of the broker that answered fastest lately; None when none has answered yet."""
    queue = session.selector.fastest(await _route(session, topic), session.network.loop.time())
    return None if queue is None else session.numbers.number(queue)


def host_of(session: RemoteSession, receipt: Receipt) -> str:
    """Say where a broker stored a message, as "host:port"; "" when that is not known; from any thread."""
    route = session.names.routes.old(receipt.topic)
    if route is None:
        return ""
    return str(route.master(session.numbers.queue(receipt.topic, receipt.queue_id).brokerName) or "")


async def _route(session: RemoteSession, topic: str) -> Route:
    route = await session.names.writable_route(topic, timeout=session.timeout)
    session.numbers.learn(route)
    return route
