"""The broker of our own process, as a name server sees it.

The name server reads the broker's topic table itself: it looks at the table's version before every answer, so a topic
is in the routes in the instant it exists, and nothing is registered, lost or late. RocketMQ's way, a registration every
30 s, is used towards name servers elsewhere (`registrar.py`).

    --advertise HOST[:PORT]     that
    listening at HOST           HOST, where the name server is elsewhere
    embedded name server        the host the asking client reached us at

A broker that creates topics on first use announces the default topic, whose route producers take for a topic that does
not exist yet. It has no queues, so nothing of it is stored.
"""

from dataclasses import dataclass, field

from shmq.daemon.broker.tables import Tables
from shmq.daemon.nameserver.registration import QueueEntry
from shmq.message import PERM_ALL
from shmq.protocol.route import DEFAULT_TOPIC, MASTER_ID

Topics = dict[str, QueueEntry]


@dataclass(frozen=True, slots=True)
class EmbeddedBroker:
    """What the broker says about itself.

    Attributes:
        address: host:port that routes hand out; "" hands out the host the asking client reached, and `port`.
        version: grows with each change of the topics.
        epoch: that this broker leads in; each switch of the master begins one.
        ha_port: where slaves get the log, on the host of `address`; 0 nowhere.
        topics: all of them; what is missing is gone.
    """

    cluster: str
    broker_name: str
    address: str
    port: int
    version: int
    broker_id: int = MASTER_ID
    topics: Topics = field(default_factory=dict)
    epoch: int = 0
    ha_port: int = 0


class TopicSource:
    """The broker's topics as they are now.

    Args:
        default_queues: queues of the default topic; 0 announces none.
    """

    def __init__(self, tables: Tables, *, cluster: str, broker_name: str, default_queues: int) -> None:
        self.cluster = cluster
        self.broker_name = broker_name
        self._tables = tables
        self._default_queues = default_queues

    @property
    def version(self) -> int:
        """A number that changes when `topics` may have changed; cheap to ask for."""
        return self._tables.version

    @property
    def epoch(self) -> int:
        """The broker's; name servers learn it as `stateVersion`."""
        return self._tables.facts().epoch

    def topics(self) -> Topics:
        """Return every topic."""
        found: Topics = {}
        if self._default_queues:
            found[DEFAULT_TOPIC] = QueueEntry(self._default_queues, self._default_queues, PERM_ALL, 0)
        for topic in self._tables.topics():
            found[topic.name] = QueueEntry(topic.read_queues, topic.write_queues, topic.perm, topic.flags)
        return found


@dataclass(slots=True)
class Embedded:
    """A topic source and where its broker is reached; `ha_port` may become known later, and change."""

    source: TopicSource
    address: str
    port: int
    broker_id: int = MASTER_ID
    ha_port: int = 0

    @property
    def edition(self) -> tuple[int, int]:
        """What changes when `broker` may have changed."""
        return self.source.version, self.ha_port

    def broker(self) -> EmbeddedBroker:
        """Return what the broker says about itself now."""
        # Read before the topics: a change in between makes them too new for their version, never too old.
        version = self.source.version
        source = self.source
        who = (source.cluster, source.broker_name, self.address, self.port)
        return EmbeddedBroker(*who, version, self.broker_id, source.topics(), source.epoch, self.ha_port)
