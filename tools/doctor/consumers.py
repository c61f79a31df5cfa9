"""Checks of consumer groups: members that subscribe differently, messages that came again because they took long.

Lag is judged by `shmq health`; these checks are about what a group's programs do wrong.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from shmq.errors import ShmqError
from shmq.figures.quantity import age_text, plural
from shmq.figures.snapshot import Group
from shmq.figures.verdict import Finding
from shmq.message import pop_names, retry_topic
from shmq.protocol.pop import FIRST_POP_PROPERTY
from shmq.shm.core import Store
from shmq.shm.unit import units_of
from shmq.tools.doctor.case import Case
from shmq.tools.doctor.finding import ok, warn

RECENT_SECONDS = 600.0
NEWEST_UNITS = 32  # of each retry queue


def check_subscriptions(case: Case) -> Iterator[Finding]:
    """Groups whose members want different things: what one of them skips is lost for the others."""
    if case.store is None:
        return
    differing = [group for group in case.snapshot.groups if group.differs is not None]
    for group in differing:
        wishes = sorted(
            {", ".join(f"{topic}: {text}" for topic, text in m.subscription.items()) for m in group.members}
        )
        text = (
            f"members of group {group.name} subscribe differently for {age_text(group.differs or 0.0)}: "
            f"{'  |  '.join(wishes)}; each skips for all what it does not want"
        )
        members = [member.client_id for member in group.members]
        yield warn(
            "consumers.subscriptions",
            text,
            "give every member the same subscription",
            group=group.name,
            members=members,
        )
    if not differing:
        text = f"{plural(len(case.snapshot.groups), 'group')}, in each all members subscribe to the same"
        yield ok("consumers.subscriptions", text, groups=len(case.snapshot.groups))


def check_overdue(case: Case) -> Iterator[Finding]:
    """Groups with living members whose messages came again lately: they were not acknowledged in time."""
    if case.store is None:
        return
    late = {group.name: count for group in case.snapshot.groups if (count := _came_again(case.store, group))}
    for name, count in late.items():
        text = (
            f"{plural(count, 'message')} of group {name} came again within {RECENT_SECONDS / 60:.0f} minutes although "
            "its members live: the handler runs longer than the invisible time, or does not acknowledge"
        )
        yield warn(
            "consumers.overdue",
            text,
            "raise invisible=, call msg.extend(), or make the handler shorter",
            group=name,
            messages=count,
        )
    if not late:
        yield ok("consumers.overdue", "no message came again because its handler took longer than the invisible time")


def _came_again(store: Store, group: Group) -> int:
    """How many of the newest messages in a group's retry topics were popped before."""
    if not any(member.alive for member in group.members):
        return 0
    retries, count = retry_topic(group.name), 0
    since_ms = (time.time() - RECENT_SECONDS) * 1000
    for topic in store.topics():
        if topic["name"] == retries or pop_names(topic["name"])[0] == group.name:
            count += sum(_late_in(store, queue, since_ms) for queue in topic["queues"])
    return count


def _late_in(store: Store, queue: int, since_ms: float) -> int:
    row = store.queue(queue)
    first = max(row.offset_min, row.offset_max - NEWEST_UNITS)
    units = store.units_stored(queue, first, row.offset_max - first)
    count = 0
    for position, size, _ in units_of(units):
        try:
            message = store.message_at(position, size)
        except ShmqError:
            continue  # retention was quicker
        count += message.store_ms >= since_ms and FIRST_POP_PROPERTY in message.properties
    return count
