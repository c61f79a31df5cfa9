"""Owns which queues a member of a group reads: asks who is in the group, and shares the queues out.

It does not know how queues are taken (share), nor the rules of sharing (protocol.allocation).

Rules:
    (1) the queues of the topic and those of the group's retry topic are shared out one by one, as RocketMQ does it;
    (2) one consumer of a connection, the group's first, reads the connection's share of the retry topic;
    (3) while no broker can say who is in the group, everything stays as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from shmq.client.redelivery.send_back import reads_retries
from shmq.client.wire import QueueSlot
from shmq.errors import BrokerNotRunning, ShmqError
from shmq.message import retry_topic
from shmq.protocol.dialect import MessageQueue

if TYPE_CHECKING:
    from shmq.client.spec import ConsumerSpec
    from shmq.client.wire_tcp.session import RemoteSession


async def assignment(
    session: RemoteSession, spec: ConsumerSpec, client_id: str
) -> tuple[list[QueueSlot], list[QueueSlot]]:
    """Return the queues a consumer is to read, and all of them.

    Raises:
        ConnectError, RequestTimeout: nobody can say now.
    """
    queues = await _queues(session, spec.topic)
    if spec.model == "broadcasting" or spec.group is None:
        slots = [session.slot(queue) for queue in queues]
        return slots, slots
    if not queues:
        return [], []
    retries = await _queues(session, retry_topic(spec.group)) if reads_retries(spec, session.registration.specs) else ()
    members = await session.queues.members(spec.group, spec.topic, session.timeout)
    if client_id not in members:
        raise BrokerNotRunning(
            f'the brokers do not list this client in group "{spec.group}" yet', hint="it is asked again"
        )
    wanted = [session.slot(queue) for queue in session.allocate(members, client_id, queues)]
    wanted += [session.slot(queue, retry=True) for queue in session.allocate(members, client_id, retries)]
    return wanted, [session.slot(queue) for queue in queues]


async def _queues(session: RemoteSession, topic: str) -> Sequence[MessageQueue]:
    route = await session.names.route(topic, timeout=session.timeout)
    if route is None:
        return ()
    session.numbers.learn(route)
    return route.readable


async def why_unassigned(session: RemoteSession, spec: ConsumerSpec, share: Any, client_id: str) -> str:
    """Say why a consumer has no queue."""
    try:
        queues = await _queues(session, spec.topic)
        members = await session.queues.members(spec.group, spec.topic, session.timeout) if spec.group else []
    except ShmqError as error:
        return f"the brokers could not say who is in the group: {error}"
    if not queues:
        return "the topic does not exist, or has no queue that may be read; it is looked for again"
    if spec.group is not None and client_id not in members:
        return "the brokers do not list this client as a member of the group"
    if share.missing:
        return f"its queues could not be opened yet: {share.last_error or 'the broker has not answered'}"
    return (
        f"the group has {len(members)} members for {len(queues)} queues; "
        f"more queues: shmq topic update {spec.topic} --queues {len(members)}"
    )
