"""The registered brokers, and the routes that follow from them.

It is plain memory: connections are numbers, and the time is handed in.

    broker name -> broker id -> Member(address, ...)          topic -> broker name -> QueueEntry

    registered     by a claim, from one connection; again every 30 s
    gone           unregistered, its connection closed, or silent for its expiry

Invariants:
 1. Every broker has a member, every topic a queue entry, and every queue entry a broker: what is empty is gone.
 2. An address stands once in a broker.
 3. Only a master's claim changes queues, and only when its version is another than the one known; topics missing in it
    are kept, since a claim may tell of one changed topic only, and those that it has without any queue go. The
    embedded broker's list is complete instead.
 4. The embedded broker never expires, and no other broker may claim its name and id.
 5. A refused claim changes nothing.
 6. While a broker is a member, no other address takes its id with the same epoch (`Version.state`) or an older one, and
    no other host its address. A newer epoch is a master's that was elected or promoted: the one before may be gone
    without a word, and its connection stay open for a while.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from shmq.daemon.ha.election.registration import replaces
from shmq.daemon.nameserver.registration import GONE, Claim, Identity, QueueEntry, Version
from shmq.daemon.nameserver.settings import NameServerSettings
from shmq.errors import PermissionDenied, ShmqError
from shmq.message import PERM_READ_WRITE, PERM_WRITE
from shmq.protocol.route import MASTER_ID

EMBEDDED = 0  # the connection of the broker in our own process; real ones count from 1


@dataclass(slots=True)
class Member:
    """One process that serves a broker name."""

    identity: Identity
    ha_address: str
    version: Version
    connection_id: int
    host: str  # where it registered from
    expiry_ms: int
    seen_ms: int
    filter_servers: tuple[str, ...] = ()

    @property
    def address(self) -> str:
        """Where clients reach it."""
        return self.identity.address


@dataclass(slots=True)
class BrokerEntry:
    """One broker name."""

    cluster: str
    members: dict[int, Member]


class Registry:
    """The tables; times are the caller's milliseconds."""

    def __init__(self, settings: NameServerSettings) -> None:
        self._settings = settings
        self._brokers: dict[str, BrokerEntry] = {}
        self._topics: dict[str, dict[str, QueueEntry]] = {}
        self._routes = 0  # entries of all topics together

    # -- what brokers do

    def register(self, claim: Claim, *, connection_id: int, host: str, now_ms: int) -> Member:
        """Take a claim; return the member it made or renewed.

        Raises:
            PermissionDenied: the name and id are another broker's, or of a newer epoch.
            ShmqError: a table is full.
        """
        identity = claim.identity
        entry = self._brokers.get(identity.broker_name)
        members = entry.members if entry is not None else {}
        known = members.get(identity.broker_id)
        for member in members.values():
            is_deposed = member is known and _is_deposed(member, claim)
            if (member is known and not is_deposed) or member.address == identity.address:
                _check_holder(member, connection_id, host, identity.address)
        if known is not None and known.address != identity.address:
            _check_epoch(known, claim)
        is_complete = connection_id == EMBEDDED
        same = known is not None and (known.address, known.version) == (identity.address, claim.version)
        takes_topics = identity.broker_id == MASTER_ID and not same
        self._check_space(claim, takes_topics=takes_topics, is_complete=is_complete)
        if entry is None:
            entry = self._brokers[identity.broker_name] = BrokerEntry(identity.cluster, {})
        entry.cluster = identity.cluster
        for other_id in [key for key, member in entry.members.items() if member.address == identity.address]:
            del entry.members[other_id]
        filter_servers = claim.filter_servers
        if filter_servers is None:
            filter_servers = known.filter_servers if known is not None else ()
        member = Member(
            identity,
            claim.ha_address,
            claim.version,
            connection_id,
            host,
            claim.expiry_ms or self._settings.expiry_ms,
            now_ms,
            filter_servers,
        )
        entry.members[identity.broker_id] = member
        if takes_topics:
            self._put_queues(identity.broker_name, claim.topics, is_complete=is_complete)
        return member

    def unregister(self, identity: Identity) -> bool:
        """Remove one member; say whether it was there under this id and address."""
        member = self.member(identity)
        if member is None or member.identity.broker_id != identity.broker_id:
            return False
        self._remove(member)
        return True

    def disconnected(self, connection_id: int) -> list[Member]:
        """Remove the members that registered over this connection last, and return them."""
        gone = [member for member in self.members() if member.connection_id == connection_id != EMBEDDED]
        for member in gone:
            self._remove(member)
        return gone

    def expire(self, now_ms: int) -> list[Member]:
        """Remove who was silent for too long, and return them."""
        gone = [
            member
            for member in self.members()
            if member.connection_id != EMBEDDED and now_ms - member.seen_ms > member.expiry_ms
        ]
        for member in gone:
            self._remove(member)
        return gone

    # -- what administrators do

    def set_write_perm(self, broker_name: str, *, is_allowed: bool) -> int:
        """Give a broker's queues the permission to be written to, or take it; return how many topics it has."""
        count = 0
        for queues in self._topics.values():
            if (queue := queues.get(broker_name)) is not None:
                perm = PERM_READ_WRITE if is_allowed else queue.perm & ~PERM_WRITE
                queues[broker_name] = queue._replace(perm=perm)
                count += 1
        return count

    def delete_topic(self, topic: str, *, cluster: str = "") -> None:
        """Forget a topic, on the brokers of one cluster or on all."""
        for broker_name in list(self._topics.get(topic, ())):
            if not cluster or self._brokers[broker_name].cluster == cluster:
                self._drop_queue(topic, broker_name)

    def add_queues(self, topic: str, queues: Mapping[str, QueueEntry]) -> None:
        """Take a topic's queues on registered brokers; others are left out."""
        known = {name: queue for name, queue in queues.items() if name in self._brokers}
        if not known:
            return
        self._check_room(new_topics=int(topic not in self._topics), new_routes=len(known))
        for broker_name, queue in known.items():
            self._put_queues(broker_name, {topic: queue}, is_complete=False)

    # -- read by all parts

    def members(self) -> Iterator[Member]:
        """Go through every member; the tables must not change meanwhile."""
        for entry in self._brokers.values():
            yield from entry.members.values()

    def member(self, identity: Identity) -> Member | None:
        """Return the member of a broker name that has this address."""
        entry = self._brokers.get(identity.broker_name)
        for member in entry.members.values() if entry else ():
            if member.address == identity.address:
                return member
        return None

    def broker(self, broker_name: str) -> BrokerEntry | None:
        """Return one broker."""
        return self._brokers.get(broker_name)

    def brokers(self) -> Mapping[str, BrokerEntry]:
        """Return every broker by name."""
        return self._brokers

    @property
    def route_count(self) -> int:
        """Pairs of topic and broker."""
        return self._routes

    def topics(self) -> Mapping[str, Mapping[str, QueueEntry]]:
        """Return every topic's queues by broker name."""
        return self._topics

    # -- inside

    def _check_space(self, claim: Claim, *, takes_topics: bool, is_complete: bool) -> None:
        name, settings = claim.identity.broker_name, self._settings
        entry = self._brokers.get(name)
        if entry is None and len(self._brokers) >= settings.brokers_max:
            raise ShmqError(f"{settings.brokers_max} brokers are registered; no more are taken")
        is_more = entry is not None and claim.identity.broker_id not in entry.members
        if entry is not None and is_more and len(entry.members) >= settings.members_max:
            raise ShmqError(f"broker {name!a} has {settings.members_max} members; no more are taken")
        if takes_topics:
            new_topics = sum(topic not in self._topics for topic in claim.topics)
            new_routes = sum(name not in self._topics.get(topic, ()) for topic in claim.topics)
            for topic in self._missing(name, claim.topics) if is_complete else ():
                new_topics -= len(self._topics[topic]) == 1
                new_routes -= 1
            self._check_room(new_topics=new_topics, new_routes=new_routes)

    def _check_room(self, *, new_topics: int, new_routes: int) -> None:
        settings = self._settings
        if len(self._topics) + new_topics > settings.topics_max:
            raise ShmqError(f"{len(self._topics)} topics and {new_topics} more; {settings.topics_max} are allowed")
        if self._routes + new_routes > settings.routes_max:
            raise ShmqError(f"{self._routes} routes and {new_routes} more; {settings.routes_max} are allowed")

    def _put_queues(self, broker_name: str, topics: Mapping[str, QueueEntry], *, is_complete: bool) -> None:
        if is_complete:
            for topic in self._missing(broker_name, topics):
                self._drop_queue(topic, broker_name)
        for topic, queue in topics.items():
            if queue == GONE:
                if broker_name in self._topics.get(topic, ()):
                    self._drop_queue(topic, broker_name)
                continue
            queues = self._topics.setdefault(topic, {})
            self._routes += broker_name not in queues
            queues[broker_name] = queue

    def _missing(self, broker_name: str, topics: Mapping[str, QueueEntry]) -> list[str]:
        """The topics of a broker that are not among these."""
        return [topic for topic, queues in self._topics.items() if broker_name in queues and topic not in topics]

    def _drop_queue(self, topic: str, broker_name: str) -> None:
        queues = self._topics[topic]
        del queues[broker_name]
        self._routes -= 1
        if not queues:
            del self._topics[topic]

    def _remove(self, member: Member) -> None:
        name = member.identity.broker_name
        entry = self._brokers[name]
        del entry.members[member.identity.broker_id]
        if entry.members:
            return
        del self._brokers[name]
        for topic in [topic for topic, queues in self._topics.items() if name in queues]:
            self._drop_queue(topic, name)


def _check_epoch(known: Member, claim: Claim) -> None:
    """A master that was replaced may not know it yet: it does not get its name and id back by saying them again."""
    if not replaces(claim.version.state, known.version.state):
        raise PermissionDenied(
            f"broker {claim.identity.broker_name!a} is led from {known.address} in epoch {known.version.state},"
            f" {claim.identity.address} says epoch {claim.version.state}",
            hint="start the older one as a slave of the newer one",
        )


def _is_deposed(known: Member, claim: Claim) -> bool:
    """Whether a claim is that of a later master than the one that is known."""
    is_master = claim.identity.broker_id == MASTER_ID
    return is_master and known.connection_id != EMBEDDED and claim.version.state > known.version.state


def _check_holder(known: Member, connection_id: int, host: str, address: str) -> None:
    """A name and id stay with the broker that has them until it unregisters, hangs up or falls silent."""
    if connection_id == EMBEDDED or connection_id == known.connection_id:
        return
    name, broker_id = known.identity.broker_name, known.identity.broker_id
    if known.connection_id == EMBEDDED:
        raise PermissionDenied(
            f"broker {name!a} with id {broker_id} is the one this name server is embedded in",
            hint=f"give the other broker {_another(broker_id)}",
        )
    if known.host != host:
        raise PermissionDenied(
            f"broker {name!a} with id {broker_id} is registered from {known.host}, not from {host}",
            hint=f"stop the other one first, or give one of them {_another(broker_id)}",
        )
    if known.address != address:
        raise PermissionDenied(
            f"broker {name!a} with id {broker_id} is registered at {known.address}, and its connection is open",
            hint=f"stop that one first, or give one of them {_another(broker_id)}",
        )


def _another(broker_id: int) -> str:
    if broker_id == MASTER_ID:
        return "another name: --name, or brokerName in broker.conf"
    return "another id: --slave-id, or brokerId in broker.conf"
