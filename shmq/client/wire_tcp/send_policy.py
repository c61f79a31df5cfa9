"""Owns what follows from the answer to a send, or from its absence: done, another broker, or an error.

It does not know sockets or queues; codes and `now` in, decisions out.

    0, 11                        stored
    10, 12                       stored, but not durable in time       SendTimeout
    1 2 14 16 17 204 205 1500    not stored by this broker             another one, twice at most, then the error
    no connection, no answer     not known to be stored                the same: it may then be stored twice
    anything else                                                      the error

Rules: (1) three tries in all, and none after the deadline; (2) a oneway send is tried once.
"""

from __future__ import annotations

from typing import Final

from shmq import errors
from shmq.errors import ConnectError, RemoteError, RequestTimeout, ShmqError
from shmq.protocol.codes import Response
from shmq.protocol.command import Command
from shmq.protocol.failure import error_of

RETRIES: Final = 2
_SYSTEM_BUSY: Final = Response.SYSTEM_BUSY
_GO_AWAY: Final = 1500
RETRY_CODES: Final = frozenset((1, _SYSTEM_BUSY, 14, 16, 17, 204, 205, _GO_AWAY))
_STORED: Final = frozenset((Response.SUCCESS, Response.SLAVE_NOT_AVAILABLE))
_STORED_LATE: Final = frozenset((Response.FLUSH_DISK_TIMEOUT, Response.FLUSH_SLAVE_TIMEOUT))

_KINDS: Final[dict[int, tuple[type[ShmqError], str]]] = {
    Response.SYSTEM_BUSY: (errors.BrokerBusy, "send slower, or raise the timeout; the broker says what is busy"),
    Response.MESSAGE_ILLEGAL: (errors.MessageTooLarge, "make the body or the properties shorter"),
    Response.SERVICE_NOT_AVAILABLE: (errors.ReadOnlyStore, "see the broker's disk, and its log"),
    Response.NO_PERMISSION: (errors.PermissionDenied, "see the topic's perm, the broker's perm, and access_key="),
    Response.TOPIC_NOT_EXIST: (errors.TopicNotFound, "create it with: shmq topic create"),
    Response.FLOW_CONTROL: (errors.FlowControl, "send slower"),
}


def send_error(reply: Command) -> ShmqError | None:
    """Return the error an answer to a send stands for; None when the message is stored."""
    if reply.code in _STORED:
        return None
    remark = reply.remark or f"code {reply.code}"
    if reply.code in _STORED_LATE:
        late = errors.SendTimeout(f"the message is stored, but was not safe in time: {remark}", hint="do not resend")
        late.code = reply.code
        return late
    made = error_of(reply)
    kind = _KINDS.get(reply.code)
    if kind is None or (made is not None and not isinstance(made, RemoteError) and made.hint):
        return made
    error = kind[0](remark, hint=kind[1])
    error.code = reply.code
    return error


class Attempts:
    """The tries of one send."""

    def __init__(self, deadline: float, *, retries: int = RETRIES) -> None:
        self.deadline = deadline
        self.left = retries
        self.avoid: str | None = None

    def may_retry(self, error: ShmqError, broker_name: str, now: float) -> bool:
        """Say whether to try another broker after this error, and remember which one to avoid."""
        self.avoid = broker_name
        if self.left <= 0 or now >= self.deadline:
            return False
        if isinstance(error, errors.SendTimeout):
            return False
        if not isinstance(error, (RequestTimeout, errors.BrokerNotRunning)) and error.code not in RETRY_CODES:
            return False
        if isinstance(error, ConnectError) and not error.retryable and error.code not in RETRY_CODES:
            return False
        self.left -= 1
        return True
