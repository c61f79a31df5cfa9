"""Checks a request before a handler sees it.

Direction, class and header fields of every request code of RocketMQ 4.9.8 and 5.3.3 are one table of text
(`shmq.protocol`'s request rows). This check stands in front of every handler and reads that table, so a request that is
refused or not listed does not exist. Checks inside the handlers would have left the gaps that RocketMQ's own ACL has.

    not in the table, or refused, or one of our own codes over TCP     as if there were no such code
    no account, a wrong signature, no permission (TCP only)            RocketMQ's error for it
    a field is missing or no number (TCP only)                         RocketMQ's error for it

Local clients come through a socket with Unix permissions and may leave fields out that have defaults; their requests
are held to what the handlers need.

One object serves a broker and the name server beside it, so that new rules count for both at once.
"""

from shmq.daemon.logic.access.rights import EVERYTHING, NOTHING, Rights
from shmq.daemon.logic.access.rules import AccessRules
from shmq.daemon.logic.requests import Connection
from shmq.protocol.codes import Request
from shmq.protocol.command import Command
from shmq.protocol.request_table import REQUESTS, RequestClass, check_fields

_LOCAL = "local"
# RocketMQ reads these headers without looking for what is missing, and says then what it lacks.
_CHECKED_BY_HANDLER = frozenset({Request.SEND_MESSAGE_V2, Request.SEND_BATCH_MESSAGE})


class Admission:
    """The checks in front of every handler. Without `rules` every client may do everything."""

    def __init__(self, rules: AccessRules | None = None) -> None:
        self.rules = rules

    def is_offered(self, connection: Connection, code: int) -> bool:
        """Say whether this connection may know that the code exists."""
        spec = REQUESTS.get(code)
        if spec is None or spec.request_class is RequestClass.REFUSED:
            return False
        return connection.is_local or spec.asks != _LOCAL

    def rights_of(self, connection: Connection) -> Rights:
        """Return what a connection that sends nothing now may see."""
        if self.rules is None or connection.is_local:
            return EVERYTHING
        return connection.rights if connection.has_account else NOTHING

    def check(self, connection: Connection, command: Command) -> Rights:
        """Let a request that is offered pass, or raise the refusal of it; return what else the sender may do.

        Raises:
            PermissionDenied: the rules do not let the sender do this.
            ProtocolError: a header field is missing or malformed.
        """
        rights = EVERYTHING
        if connection.is_local:
            return rights
        if self.rules is not None:
            rights = self.rules.check(command, connection.remote.host if connection.remote else "")
            connection.has_account, connection.rights = True, rights
        if command.code not in _CHECKED_BY_HANDLER:
            check_fields(command.code, command.ext)
        return rights
