"""Owns what a connection tells the broker about its groups, in the words of RocketMQ's heartbeat.

It does not know sockets or queues; consumers in, heartbeat data out. A consumer without a group is nobody's business.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from shmq.protocol.body import ConsumerData, SubscriptionData

if TYPE_CHECKING:
    from shmq.client.spec import ConsumerSpec


def consumer_data(specs: Iterable[ConsumerSpec]) -> list[ConsumerData]:
    """Return one entry for each group, with everything the connection reads for it."""
    groups: dict[str, ConsumerData] = {}
    for spec in specs:
        if spec.group is None:
            continue
        entry = groups.get(spec.group)
        if entry is None:
            entry = groups[spec.group] = ConsumerData(
                groupName=spec.group,
                subscriptionDataSet=[],
                messageModel=spec.model.upper(),
                consumeFromWhere="CONSUME_FROM_FIRST_OFFSET",
            )
        entry.subscriptionDataSet.append(_subscription(spec))
    return list(groups.values())


def _subscription(spec: ConsumerSpec) -> SubscriptionData:
    return spec.wanted.subscription(spec.topic, round(time.time() * 1000))
