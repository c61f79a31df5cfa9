"""Runs a replier that is a coroutine function, by the sync replier's rules."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from shmq.aio.offload import offload
from shmq.client.requests.replier import is_expired, is_request, report
from shmq.functions import check_coroutine_function, finished

if TYPE_CHECKING:
    from shmq.aio.message import Message
    from shmq.client.connection import Connection as SyncConnection


def replying(
    connection: Callable[[], SyncConnection], function: Callable[[Any], Any]
) -> Callable[[Message], Coroutine[Any, Any, None]]:
    """Return the listener that answers requests with what a coroutine function returns."""
    check_coroutine_function(function)

    async def run(message: Message) -> None:
        link = connection()
        if is_expired(message._sync, link._live().wire.now_ms(), same_clock=not link.is_remote):
            report(message, "came after its requester had given up")
            return
        body = finished(await function(message))
        if body is None or not is_request(message._sync):
            return
        # A thread, because a reply may wait: for the append lock here, for a broker over TCP.
        if not await offload(link._live().requests.reply, message._sync, body):
            report(message, "was answered, but its requester is gone")

    return run
