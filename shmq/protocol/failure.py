"""Errors as replies, and replies as errors.

Private ext fields carry an error's type and hint, and whether a message may be stored all the same, so that a client of
ours raises what the broker meant, not a number.

    reply   code = error.code, remark = what happened
            ext shmqError = type name, ext shmqHint = what to type next, ext shmqMaybeStored = true

A RocketMQ client sees code and remark and ignores the rest; a reply of a RocketMQ broker has no such fields and becomes
the type its code names, or RemoteError.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from shmq import errors
from shmq.errors import ProtocolError, RemoteError, ShmqError
from shmq.protocol.codes import Response
from shmq.protocol.command import Command

_TYPE_FIELD = "shmqError"
_HINT_FIELD = "shmqHint"
_DOUBT_FIELD = "shmqMaybeStored"
REMARK_CHARACTERS_MAX = 1024

# Only types that are made from a message and a hint; the name on the wire selects nothing else.
_TYPES: dict[str, type[ShmqError]] = {
    kind.__name__: kind
    for kind in (
        errors.UsageError,
        errors.InvalidName,
        errors.ConnectError,
        errors.BrokerNotRunning,
        errors.PermissionDenied,
        errors.VersionMismatch,
        errors.ForeignNamespace,
        errors.StoreError,
        errors.SegmentError,
        errors.TopicNotFound,
        errors.TransactionError,
        errors.SegmentFull,
        errors.BrokerBusy,
        errors.ReadOnlyStore,
        errors.NotMaster,
        errors.FlowControl,
        errors.SubscriptionConflict,
        errors.OffsetOutOfRange,
        errors.FilterSyntaxError,
    )
}
_TYPES_BY_CODE: dict[int, type[ShmqError]] = {Response.TOPIC_NOT_EXIST: errors.TopicNotFound}


Answer = Command | ShmqError
"""What `Wire.begin` hands over: the broker's answer whatever its code is, or why there is none."""
_DIGITS_MAX: Final = 19  # of 64 bits


def failure_reply(request: Command, error: ShmqError) -> Command:
    """Return the answer that tells the sender of `request` about `error`."""
    # RemoteError prefixes its text with the code, which the reply carries by itself.
    remark = error.remark if isinstance(error, RemoteError) else str(error)
    return request.reply(error.code, ext=error_fields(error), remark=_printable(remark))


def error_fields(error: ShmqError) -> dict[str, str]:
    """Return the fields of an answer that only clients of ours read."""
    fields = {}
    if type(error).__name__ in _TYPES:
        fields[_TYPE_FIELD] = type(error).__name__
    if error.hint:
        fields[_HINT_FIELD] = _printable(error.hint)
    if error.maybe_stored:
        fields[_DOUBT_FIELD] = "true"
    return fields


def error_of(reply: Command) -> ShmqError | None:
    """Return the error a reply stands for, or None if it reports success."""
    if reply.code == Response.SUCCESS:
        return None
    hint = reply.ext.get(_HINT_FIELD, "")
    kind = _TYPES.get(reply.ext.get(_TYPE_FIELD, "")) or _TYPES_BY_CODE.get(reply.code)
    if kind is None:
        error: ShmqError = RemoteError(reply.code, reply.remark or "", hint=hint)
    else:
        error = kind(reply.remark or "", hint=hint)
        error.code = reply.code
    if reply.ext.get(_DOUBT_FIELD) == "true":
        error.maybe_stored = True
    return error


def _printable(text: str) -> str:
    """Paths may hold bytes that are not UTF-8; the wire may not."""
    return text[:REMARK_CHARACTERS_MAX].encode(errors="replace").decode()


def error_in(answer: Answer) -> ShmqError | None:
    """Return why there is no answer, or why the broker refused; None when it did neither."""
    return answer if isinstance(answer, ShmqError) else error_of(answer)


def reply_of(answer: Answer) -> Command:
    """Return an answer that is no refusal.

    Raises:
        ShmqError: there is none, or the broker refused; the type says why.
    """
    if (error := error_in(answer)) is not None:
        raise error
    assert not isinstance(answer, ShmqError)
    return answer


def number_in(answer: str, ext: Mapping[str, str], name: str) -> int:
    """Return a field of an answer that is a number.

    Raises:
        ProtocolError: it is none; `answer` says what was answered.
    """
    text = ext.get(name, "")
    if not text.isdecimal() or len(text) > _DIGITS_MAX:
        raise ProtocolError(f"{answer} has {name}={text[:32]!a}")
    return int(text)
