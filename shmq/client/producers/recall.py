"""Owns taking back timed messages: the request over TCP, and what a refusal means, over both transports.

It does not know what a handle says but the broker that holds the message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shmq.errors import BrokerNotRunning, RemoteError, ShmqError, UsageError
from shmq.protocol.codes import Request, Response
from shmq.protocol.command import Command
from shmq.protocol.failure import error_of
from shmq.timing import RecallHandle

if TYPE_CHECKING:
    from shmq.client.wire_tcp.session import RemoteSession


def recall_error(error: ShmqError) -> ShmqError:
    """Return a refusal of the broker as it is raised."""
    if error.code != Response.ILLEGAL_OPERATION:
        return error
    remark = error.remark if isinstance(error, RemoteError) else str(error)
    refused = UsageError(remark, hint="a message can be taken back until it is due, at the broker that has it")
    refused.code = error.code
    return refused


async def recall(session: RemoteSession, topic: str, handle: str, group: str) -> None:
    """Take a message back, on the I/O thread.

    Raises:
        UsageError: it is due already, or the handle is of another cluster.
        RemoteError: the broker does not do that; RocketMQ needs recallMessageEnable=true.
    """
    route = await session.names.writable_route(topic, timeout=session.timeout)
    broker = RecallHandle.decode(handle).broker_name
    address = route.master(broker)
    if address is None:
        raise BrokerNotRunning(f"broker {broker}, which holds the message, is not registered now", hint="is it up?")
    ext = {"producerGroup": group, "topic": topic, "recallHandle": handle, "bname": broker}
    reply = await session.network.request(address, Command(code=Request.RECALL_MESSAGE, ext=ext), session.timeout)
    error = error_of(reply)
    if isinstance(error, RemoteError):
        raise recall_error(error)
    if error is not None:
        raise error
