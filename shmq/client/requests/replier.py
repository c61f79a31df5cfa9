"""Owns what a replier does with each message: call the function, bring back what it returns.

It does not know threads, queues or redelivery (push does), nor how a reply travels (request_reply does).

    the function     returns bytes (or anything with the buffer protocol)    the reply; the request is consumed
                     returns None                                            consumed without a reply
                     raises                                                  as in a listener: again later, or buried

Rules:
    (1) a request whose requester has given up by its TTL is consumed without being looked at;
    (2) a requester that is gone when the reply comes is reported at debug level, and the request consumed;
    (3) a message that is no request is handed to the function, and what it returns is dropped.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from shmq.client.requests.local import is_expired, is_request

if TYPE_CHECKING:
    from shmq.client.link import Link


def replying(link: Link, function: Callable[[Any], Any]) -> Callable[[Any], None]:
    """Return the listener that answers requests with what a function returns."""

    def run(message: Any) -> None:
        if is_expired(message, same_clock=not link.is_remote):
            report(message, "came after its requester had given up")
            return
        body = function(message)
        if body is not None and is_request(message) and not link._live().reply(message, body):
            report(message, "was answered, but its requester is gone")

    return run


def report(message: Any, what: str) -> None:
    """Say what became of a request, to whom it may concern."""
    import logging

    logging.getLogger("shmq").debug('request %s on topic "%s" %s', message.message_id, message.topic, what)
