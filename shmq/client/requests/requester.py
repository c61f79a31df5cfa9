"""Owns the asking side of a connection: `request()`.

It does not know how a request travels or a reply comes back; the session's requests do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from shmq.client.link import Link

if TYPE_CHECKING:
    from shmq.shm.core import Message


class Requester(Link):
    """A connection that can ask; see `Connection`."""

    __slots__ = ()

    def request(
        self,
        topic: str,
        body: Any,
        *,
        timeout: float | None = None,
        tag: str | None = None,
        key: str | None = None,
        keys: Iterable[str] | None = None,
        properties: Mapping[str, str] | None = None,
        message_group: str | None = None,
        queue_id: int | None = None,
    ) -> Message:
        """Send a message that somebody is to answer, and return the answer.

        Args:
            timeout: seconds for both ways; None takes the connection's.

        Raises:
            RequestTimeout: no reply in time; the request may have been handled all the same.
            TopicNotFound and the other errors of `send`: nothing was sent.
        """
        ask = self._live().requests.request
        if self._spans is not None:
            ask = self._spans.asking(ask)
        return ask(
            topic,
            body,
            self._timeout if timeout is None else timeout,
            tag=tag,
            key=key,
            keys=keys,
            properties=properties,
            message_group=message_group,
            queue_id=queue_id,
        )
