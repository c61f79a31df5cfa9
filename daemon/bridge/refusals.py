"""Answers of the bridge itself, to requests that reach no logic."""

from shmq.daemon.bridge.connection import BridgeConnection
from shmq.errors import ConnectError
from shmq.protocol.codes import Response
from shmq.protocol.command import Command
from shmq.protocol.failure import failure_reply
from shmq.protocol.header import HeaderTooLarge


def refuse_header(connection: BridgeConnection, error: HeaderTooLarge) -> None:
    """Refuse a header that is too large; an answer gets no answer.

    Raises:
        HeaderTooLarge: it was an answer.
    """
    if error.command.is_reply:
        raise error
    if not error.command.is_oneway:
        connection.reply(error.command.reply(Response.MESSAGE_ILLEGAL, remark=f"the request is illegal: {error}"))


def refuse_connection(connection: BridgeConnection, command: Command) -> None:
    """Say why nothing is served to this connection, and close it."""
    error = ConnectError(
        f"the broker has no room for another connection: {connection.refusal}",
        hint="close connections that are not needed; one connection serves a whole process",
    )
    error.code = Response.SYSTEM_BUSY
    if not command.is_oneway and not command.is_reply:
        connection.reply(failure_reply(command, error))
    connection.close(connection.refusal)


def refuse_code(connection: BridgeConnection, command: Command) -> None:
    """Say that there is no such request at this port."""
    if not command.is_oneway:
        remark = f" request type {command.code} not supported"
        connection.reply(command.reply(Response.REQUEST_CODE_NOT_SUPPORTED, remark=remark))
