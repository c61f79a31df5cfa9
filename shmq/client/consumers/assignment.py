"""Owns noticing that a consumer has nothing to read, and saying why: once, after ten seconds.

It does not know how queues are taken; it is shown the share after each step, and asks the broker only when it is time.

Rule: one warning for each consumer, whatever happens later, with the reason and what to do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shmq.client import options
from shmq.errors import ShmqError

if TYPE_CHECKING:
    from shmq.client.consumers.consumer import Consumer
    from shmq.client.spec import ConsumerSpec
    from shmq.client.wire import QueueShare
    from shmq.client.wire_shm.session import Session


class AssignmentWatch:
    """Warns when a consumer stays without a queue."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self._coordinator = consumer._connection._coordinator
        self._since: float | None = None
        self._warned = False

    def look(self, share: QueueShare) -> None:
        """See what the consumer holds now; the caller holds its lock."""
        if share.held:
            self._since = None
        elif self._since is None and not self._warned:
            self._since = self._coordinator.clock.now()
            self._coordinator.call_after(options.ASSIGNMENT_WARNING_AFTER, self._warn)

    def _warn(self) -> None:
        share, since = self._consumer._share, self._since
        if share is None or since is None or self._warned:
            return
        if self._coordinator.clock.now() - since < options.ASSIGNMENT_WARNING_AFTER:
            return  # it had a queue in between; another look is due later
        self._warned = True
        import logging

        logging.getLogger("shmq").warning(
            'consumer of topic "%s", group "%s" has no queue after %g s: %s',
            self._consumer.topic,
            self._consumer.group,
            options.ASSIGNMENT_WARNING_AFTER,
            self._reason(share),
        )

    def _reason(self, share: QueueShare) -> str:
        consumer = self._consumer
        link = consumer._connection
        return link._live().why_unassigned(consumer._spec, share, link.client_id)


def reason_unassigned(session: Session, spec: ConsumerSpec, share: QueueShare, client_id: str) -> str:
    """Say why a consumer of this host has no queue."""
    if not session.control.alive:
        return "the broker's control plane does not answer; see `shmq health`"
    try:
        _, slots = session.assignment(spec, client_id)
        members = session.control.members(spec.group, spec.topic) if spec.group else []
    except ShmqError as error:
        return f"the broker could not say who is in the group: {error}"
    if not slots:
        return "the topic has no queue that may be read"
    if spec.model == "clustering" and client_id not in members:
        return "the broker does not list this client as a member of the group"
    if share.missing:
        owners = sorted({session.store.offset_owner(slot.offset_slot) for slot in share.missing})
        return f"its queues are still read by client slot {str(owners)[1:-1]} (-1: over TCP), which still has them"
    return (
        f"the group has {len(members)} members for {len(slots)} queues; "
        f"more queues: shmq topic update {spec.topic} --queues {len(members)}"
    )
