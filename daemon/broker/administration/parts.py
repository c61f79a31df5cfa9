"""The parts of the broker that serve administrators.

Each serves one subject; the broker treats them like its other parts.
"""

from collections.abc import Callable, Mapping, Sequence

from shmq.daemon.broker.administration.client_questions import ClientQuestions
from shmq.daemon.broker.administration.config import ConfigRequests
from shmq.daemon.broker.administration.groups import GroupRequests
from shmq.daemon.broker.administration.members import MemberRequests
from shmq.daemon.broker.administration.progress import ProgressRequests
from shmq.daemon.broker.administration.runtime import RuntimeRequests
from shmq.daemon.broker.administration.topics import TopicRequests
from shmq.daemon.broker.groups.registry import Presence
from shmq.daemon.broker.groups.settings import GroupSettings
from shmq.daemon.broker.log import Log
from shmq.daemon.broker.settings import BrokerSettings
from shmq.daemon.broker.statistics.traffic import Traffic
from shmq.daemon.broker.tables import Tables
from shmq.daemon.logic.effects import Effect
from shmq.daemon.logic.requests import Part
from shmq.protocol.system_topics.pop_records import QueueKey


def administration(
    tables: Tables,
    presence: Presence,
    groups: GroupSettings,
    traffic: Traffic,
    settings: BrokerSettings,
    log: Log,
    *,
    settings_changed: Callable[[], Sequence[Effect]],
    popped: Callable[[], Mapping[QueueKey, int]],
    topics_deleted: Callable[[int], None],
) -> list[Part]:
    """Return the parts, in no order that matters.

    Args:
        settings_changed: tells those who have settings of their own.
        popped: what members have popped and not settled, queue by queue.
        topics_deleted: told the time when topics are gone.
    """
    registry, queues = presence.registry, traffic.queues
    return [
        TopicRequests(tables, registry, settings, topics_deleted),
        GroupRequests(tables, registry, groups, settings),
        MemberRequests(tables, presence, queues),
        ProgressRequests(tables, registry, queues, traffic.statistics, settings, popped),
        ClientQuestions(registry, log, settings),
        RuntimeRequests(tables, traffic, settings, since_ms=presence.since_ms),
        ConfigRequests(tables, settings, changed=settings_changed),
    ]
