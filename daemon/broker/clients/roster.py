"""Connections and members of groups as one value, which other processes read without a request.

The bridge writes it to `roster.json` within a second of a change. Health, top and doctor read that file, so they see
the members of a broker that is stopped, hung or dead; a request to the bridge would show less exactly when it matters.

    member leaves (UNREGISTER)             forgotten
    its connection ends before that        kept for an hour, or until the same client id is in the group again

Invariants: 1. `news` returns a roster only if it differs from the one before; 2. at most `DEPARTED_MAX` departures are
kept, the newest.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from shmq.daemon.broker.groups.consumer_group import ConsumerGroup, Member
from shmq.daemon.broker.groups.registry import Presence
from shmq.daemon.broker.settings import BrokerSettings
from shmq.daemon.logic.requests import Connection
from shmq.protocol.roster import (
    Roster,
    RosterConnection,
    RosterDeparture,
    RosterGroup,
    RosterMember,
    RosterPopped,
    RosterRefusal,
    RosterSecurity,
)
from shmq.protocol.system_topics.pop_records import QueueKey

DEPARTED_MAX = 64
DEPARTED_MS = 3_600_000


class RosterKeeper:
    """Makes the roster of one broker."""

    def __init__(
        self,
        presence: Presence,
        settings: BrokerSettings,
        *,
        in_flight: Callable[[], Mapping[QueueKey, int]] = dict,
        refused: Callable[[int], Iterable[RosterRefusal]] = lambda _: (),
    ) -> None:
        self._registry, self._connections, _ = presence
        self._in_flight = in_flight
        self._refused = refused
        self._generation = f"{settings.generation:016x}"
        self._departed: list[RosterDeparture] = []
        self._told: tuple[Any, ...] | None = None

    def ending(self, connection: Connection, now_ms: int) -> None:
        """Take note of a connection that is about to end, before its memberships are forgotten."""
        groups, _ = self._registry.memberships(connection.connection_id)
        for name in groups:
            group = self._registry.consumer_group(name)
            for member in group.members.values() if group else ():
                if member.origin.connection_id == connection.connection_id:
                    self._departed.append(RosterDeparture(name, now_ms, _member(member, connection)))
        del self._departed[:-DEPARTED_MAX]

    def news(self, now_ms: int, security: RosterSecurity) -> Roster | None:
        """Return the roster if it has changed since it was returned last."""
        groups = {group.name: self._group(group) for group in self._registry.consumer_groups()}
        present = {(name, member.client_id) for name, group in groups.items() for member in group.members}
        self._departed = [
            entry
            for entry in self._departed
            if now_ms - entry.at_ms < DEPARTED_MS and (entry.group, entry.member.client_id) not in present
        ]
        connections = tuple(self._connection(entry) for entry in self._connections.values() if _is_client(entry))
        popped = tuple(RosterPopped(*queue, count) for queue, count in sorted(self._in_flight().items()))
        content = (connections, groups, tuple(self._departed), popped, tuple(self._refused(now_ms)), security)
        if content == self._told:
            return None
        self._told = content
        return Roster(self._generation, now_ms, *content)

    def _connection(self, connection: Connection) -> RosterConnection:
        consumer_groups, producer_groups = self._registry.memberships(connection.connection_id)
        peer, member = connection.peer, self._registry.member_of(connection.connection_id)
        return RosterConnection(
            client_id=connection.client_id or (member.client_id if member else ""),
            transport="shm" if peer else "tcp",
            since_ms=connection.since_ms,
            pid=peer.pid if peer else 0,
            slot=connection.client_slot,
            role=connection.role,
            address=str(connection.remote or ""),
            language=member.origin.language.name if member else "",
            version=connection.version or (str(member.origin.version) if member else ""),
            consumer_groups=tuple(consumer_groups),
            producer_groups=tuple(producer_groups),
        )

    def _group(self, group: ConsumerGroup) -> RosterGroup:
        return RosterGroup(
            model=group.model,
            members=tuple(
                _member(member, self._connections.get(member.origin.connection_id))
                for _, member in sorted(group.members.items())
            ),
            differs_since_ms=group.agreement.differs_since_ms,
            conflicts=group.conflicts,
        )


def _member(member: Member, connection: Connection | None) -> RosterMember:
    return RosterMember(
        client_id=member.client_id,
        transport="shm" if member.origin.is_local else "tcp",
        pid=connection.peer.pid if connection and connection.peer else 0,
        language=member.origin.language.name,
        subscription={
            topic: (interest.language, tuple(sorted(interest.terms))) for topic, interest in member.subscription.items()
        },
    )


def _is_client(connection: Connection) -> bool:
    """Whether it is a client: no bridge that only watches; one for a TCP client has that client's address."""
    return connection.remote is not None or connection.is_attached
