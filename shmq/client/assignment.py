"""Owns noticing that a consumer has nothing to read, and saying why: once, after ten seconds.

It does not know how queues are taken; it is shown the share after each step, and asks the broker only when it is time.

Rule: one warning for each consumer, whatever happens later, with the reason and what to do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shmq.client import options

if TYPE_CHECKING:
    from shmq.client.consumer import Consumer
    from shmq.client.transport import QueueShare


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
