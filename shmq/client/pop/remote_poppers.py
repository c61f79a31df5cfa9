"""Owns the consumers of one connection that pop: whether they can, where a new group begins, and which there are.

It does not know messages or receipts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shmq.client.pop.remote_reader import PopReader
from shmq.client.pop.remote_requests import PopRequests
from shmq.client.position import BEGIN
from shmq.client.wire import QueueSlot
from shmq.client.wire_tcp import send_back as returning

if TYPE_CHECKING:
    from shmq.client.pop.leases import PopOwner
    from shmq.client.spec import ConsumerSpec
    from shmq.client.wire_tcp.session import RemoteSession


class Poppers:
    """Readers that pop."""

    def __init__(self, session: RemoteSession) -> None:
        self._session = session
        self._readers: list[PopReader] = []

    def open(self, owner: PopOwner, spec: ConsumerSpec) -> PopReader:
        """Return a new reader."""
        reader = PopReader(self._session, owner, spec)
        self._readers = [*(known for known in self._readers if not known.stopped), reader]
        return reader

    def of(self, spec: ConsumerSpec) -> list[PopReader]:
        """Return the readers that pop a topic for a group."""
        return [reader for reader in self._readers if not reader.stopped and reader.spec[:2] == spec[:2]]

    # -- on the I/O thread
    async def prepare(self, spec: ConsumerSpec) -> bool:
        """Say whether the brokers of a topic offer POP; if so, a new group begins where it is to begin.

        Raises:
            ConnectError, RequestTimeout: nobody can say now.
        """
        session = self._session
        if spec.group is None or not await PopRequests(session).is_offered(spec):
            return False
        route = await session.names.route(spec.topic, timeout=session.timeout)
        if spec.start != BEGIN and route is not None:
            known = await session.queues.committed_exactly(spec.group, route.readable, session.timeout)
            for queue in () if known else route.readable:
                offset = await session.queues.place_in(queue, spec.start, session.timeout)
                await returning.commit(session, spec.group, queue, offset)
        return True

    async def all_queues(self, spec: ConsumerSpec) -> list[QueueSlot]:
        """Return every queue of a topic."""
        session = self._session
        route = await session.names.route(spec.topic, timeout=session.timeout)
        if route is None:
            return []
        session.numbers.learn(route)
        return sorted(map(session.slot, route.readable))
