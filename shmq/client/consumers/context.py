"""What a consumer needs of its connection, and no more."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from shmq.client.coordinator import Coordinator
    from shmq.client.observers.observer import Observer
    from shmq.client.session import Session
    from shmq.shm.core import Message


class ConsumerContext(NamedTuple):
    """Made by a connection for each consumer; it keeps the connection alive."""

    url: str
    timetable: Coordinator
    live: Callable[[], Session]
    """Returns the session, opened if there is none."""
    requeue: Callable[[str | None, Message], bool]
    """Lets the consumer of the same connection that reads the message's topic for a group deliver it; False: nobody."""
    left: Callable[[Any], None]
    """Called once, by a consumer that is closed."""
    observer: Observer | None
    """What is told of messages handed out and of listeners' calls; None when nobody watches."""
