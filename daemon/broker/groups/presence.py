"""Who is there: the connections of a broker, and the members of its groups.

Several parts show this, each in a form of its own: STATUS, the roster, the metrics and the requests of administrators.
"""

from collections.abc import Mapping
from typing import NamedTuple

from shmq.daemon.broker.groups.registry import GroupRegistry
from shmq.daemon.broker.requests import Connection


class Presence(NamedTuple):
    """What is known of clients just now.

    Attributes:
        since_ms: when the broker's logic began, on the clock that nobody sets.
    """

    registry: GroupRegistry
    connections: Mapping[int, Connection]
    since_ms: int
