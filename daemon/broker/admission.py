"""What a request has to pass before a handler sees it.

Owns the order of the checks. It does not know what a handler does, nor where accounts come from.

    not in the table, or refused, or one of our own codes over TCP     as if there were no such code
    a field is missing or no number (TCP only)                         RocketMQ's error for it

Local clients come through a socket with Unix permissions and may leave fields out that have defaults; their requests
are held to what the handlers need.
"""

from __future__ import annotations

from shmq.daemon.broker.requests import Connection
from shmq.protocol.command import Command
from shmq.protocol.request_table import REQUESTS, RequestClass, check_fields

_LOCAL = "local"


class Admission:
    """The checks in front of every handler."""

    def is_offered(self, connection: Connection, code: int) -> bool:
        """Say whether this connection may know that the code exists."""
        spec = REQUESTS.get(code)
        if spec is None or spec.request_class is RequestClass.REFUSED:
            return False
        return connection.is_local or spec.asks != _LOCAL

    def check(self, connection: Connection, command: Command) -> None:
        """Let a request pass or raise what its sender is told.

        Raises:
            ProtocolError: a header field is missing or malformed.
        """
        if not connection.is_local:
            check_fields(command.code, command.ext)
