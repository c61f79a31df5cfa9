"""All exceptions of shmq, drawn as one tree; no other module defines one.

    ShmqError                                   code, retryable, hint, doc_url
    +-- UsageError(ValueError)                  the call breaks the contract            fix the call
    |   +-- InvalidName                         topic or group name
    |   +-- WrongKind(TypeError)                an argument of a wrong kind
    |   +-- TopicExists                         a topic that is to be created exists, with other settings
    +-- ConnectError(ConnectionError)
    |   +-- BrokerNotRunning                    no process listens there                shmq serve
    |   +-- PermissionDenied(PermissionError)   the segment or socket is not ours
    |   +-- VersionMismatch                     library and segment differ
    |   +-- ForeignNamespace                    peer in another PID namespace           use TCP
    +-- StoreError                              the daemon cannot use its store or segments
    |   +-- StoreLocked                         a second broker on one store
    |   +-- SegmentError                        creating or opening shared memory failed
    +-- SendError
    |   +-- TopicNotFound(NotFound, KeyError)
    |   +-- MessageTooLarge(ValueError)
    |   +-- MeasuredError                       used, limit, holder_pid
    |   |   +-- SegmentFull                     no space left for records or units
    |   |   +-- BrokerBusy                      lock or claim not free before the deadline
    |   |   +-- FlowControl                     send slower; or the disk is too full
    |   +-- ReadOnlyStore                       flush failed, poisoned
    |   |   +-- NotMaster                       a slave's log: send to its master
    |   +-- SendTimeout(TimeoutError)
    +-- ConsumeError
    |   +-- SubscriptionConflict
    |   +-- LeaseExpired
    |   +-- OffsetOutOfRange
    +-- NotFound(LookupError)                   what was named does not exist
    |   +-- GroupNotFound(KeyError)
    |   +-- MessageNotFound
    +-- TransactionError
    +-- RequestTimeout(TimeoutError)
    +-- FilterSyntaxError(SyntaxError)
    +-- ProtocolError                           the peer broke the wire format
    +-- CorruptionError                         stored bytes contradict themselves
    |   +-- DamagedMessage                      a message was left out; reading goes on behind it
    +-- RemoteError                             the peer answered with a failure code

`Retry` and `Reject` are control flow for listeners, not errors.

An error says what happened, why, which number, and in `hint` what to type next. `code` is the RocketMQ
response code a TCP client would see. A broken promise between two parts of shmq is none of these: it is an
`assert`, and the process stops.

Invariant: an error that was pickled or copied, as by a process pool, is the same error: its text, arguments, notes and
attributes, whatever its `__init__` and `__new__` take, also one that an application derives.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from typing import Any

_HINT_NOTE = "hint: "
_SHOWN_BEFORE = 60  # characters of a long filter expression, before and behind the fault
_MADE_BY_CLASS = 1 << 9  # Py_TPFLAGS_HEAPTYPE: not a type of the interpreter's own
_OUTSIDE_DICT = (  # what OSError and SyntaxError keep beside `__dict__`
    *("errno", "strerror", "filename", "filename2"),
    *("msg", "lineno", "offset", "text", "end_lineno", "end_offset", "print_file_and_line"),
)


def _blank(kind: type[BaseException], arguments: tuple[object, ...]) -> BaseException:
    """Return an error as it is before its attributes are put back; pickles name this function."""
    built_in: type[BaseException] = kind
    while built_in.__flags__ & _MADE_BY_CLASS:  # an application's own __new__ may want more than there is
        built_in = built_in.__base__  # type: ignore[assignment]
    error = built_in.__new__(kind)
    error.args = arguments
    return error


def _reduced(error: BaseException) -> tuple[Any, ...]:
    """The `__reduce__` of our exceptions."""
    kept = {name: value for name in _OUTSIDE_DICT if (value := getattr(error, name, None)) is not None}
    own = object.__getstate__(error)
    kept |= vars(error) | (own[1] if isinstance(own, tuple) else {})  # and what an application keeps in slots
    if "__notes__" in kept:
        kept["__notes__"] = list(kept["__notes__"])  # a copy's notes are its own
    return _blank, (type(error), error.args), kept


class ShmqError(Exception):
    """Base of every deliberate shmq failure.

    Attributes:
        code: RocketMQ response code of the same failure on the wire.
        retryable: whether the same call may succeed later without any change.
        maybe_stored: whether a send that failed so may have stored its message all the same: the request was on its
            way when the connection ended, or no answer came in time. Sent again, it may be there twice. Of other
            requests that were sent again: whether an earlier try may have been carried out.
        receipts: of a batch that was stored in part: what is stored of it, from its first message on.
    """

    code: int = 1
    retryable: bool = False
    maybe_stored: bool = False
    receipts: Sequence[Any] = ()
    _hint: str = ""  # of one whose own __init__ does not call ours

    __reduce__ = _reduced

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint

    @property
    def hint(self) -> str:
        """The next thing to type or change; may be empty. A traceback shows it below the message."""
        return self._hint

    @hint.setter
    def hint(self, text: str) -> None:
        self._hint = text
        notes = [note for note in getattr(self, "__notes__", ()) if not note.startswith(_HINT_NOTE)]
        self.__notes__ = [*notes, f"{_HINT_NOTE}{text}"] if text else notes

    @property
    def doc_url(self) -> str:
        """The page of this error, relative to the documentation root."""
        return f"reference/errors.md#{type(self).__name__.lower()}"


class UsageError(ShmqError, ValueError):
    """The caller asked for something the contract excludes."""

    code = 13


class InvalidName(UsageError):
    """The name of a topic, group or connection outside the allowed alphabet or length."""


class WrongKind(UsageError, TypeError):
    """An argument of a wrong kind: the message names it, and says what it is and what was given."""


class TopicExists(UsageError):
    """A topic of this name exists, with other settings than those it was to be created with."""


class ConnectError(ShmqError, ConnectionError):
    """No usable connection to a broker."""

    retryable = True


class BrokerNotRunning(ConnectError):
    """No process listens at the broker's address."""


class PermissionDenied(ConnectError, PermissionError):
    """The socket or a segment belongs to another user, or its mode excludes us."""

    code = 16
    retryable = False


class VersionMismatch(ConnectError):
    """Library and broker do not share one segment layout."""

    code = 15
    retryable = False


class ForeignNamespace(ConnectError):
    """The peer lives in another PID namespace, where the append lock is unsafe."""

    code = 16
    retryable = False


class StoreError(ShmqError):
    """The daemon cannot use its store directory or its segments."""

    code = 14


class StoreLocked(StoreError):
    """Another broker owns the store directory."""


class SegmentError(StoreError):
    """A shared memory segment could not be created or opened."""


class SendError(ShmqError):
    """A message was not stored."""


class NotFound(ShmqError, LookupError):
    """What was named does not exist."""

    code = 22


class GroupNotFound(NotFound, KeyError):
    """There is no consumer group of this name."""

    code = 26

    __str__ = Exception.__str__  # a KeyError would show its message in quotes


class MessageNotFound(NotFound):
    """There is no message, dead letter or waiting message of this id, key or offset."""


class TopicNotFound(SendError, NotFound, KeyError):
    """The topic does not exist and may not be created on first use."""

    code = 17

    __str__ = Exception.__str__  # a KeyError would show its message in quotes


class MessageTooLarge(SendError, ValueError):
    """Body, properties or the whole record exceed a limit."""

    code = 13


class MeasuredError(SendError):
    """Something is used up or taken, and the numbers say how far.

    Attributes:
        used, limit: how much was used, and what there is; the message names the unit. 0 when not measured.
        holder_pid: the process that holds it, or held it last; 0 when there is none, or it is not known.
    """

    retryable = True
    used: int = 0
    limit: int = 0
    holder_pid: int = 0

    def __init__(self, message: str, *, hint: str = "", used: int = 0, limit: int = 0, holder_pid: int = 0) -> None:
        super().__init__(message, hint=hint)
        self.used = used
        self.limit = limit
        self.holder_pid = holder_pid


class SegmentFull(MeasuredError):
    """No preallocated log file or no unit frame is left."""

    code = 14


class BrokerBusy(MeasuredError):
    """The append lock, or a claim of another process, was not free before the deadline; numbers are milliseconds."""

    code = 2


class ReadOnlyStore(SendError):
    """The store refuses appends until it is restarted and recovered."""

    code = 14


class NotMaster(ReadOnlyStore):
    """The broker is a slave: its log is a copy, and the message names the master that takes messages.

    Where the master is elected, a send waits within its timeout for the one that is elected next.
    """

    retryable = True


class FlowControl(MeasuredError):
    """The broker asks to slow down, or for room on its disk; the message carries the measured numbers."""

    code = 215


class SendTimeout(SendError, TimeoutError):
    """The record is in the log, but was not durable before the deadline."""

    code = 10
    retryable = True
    maybe_stored = True


class ConsumeError(ShmqError):
    """Reading or settling messages failed."""


class SubscriptionConflict(ConsumeError):
    """Another member of the group subscribes differently, so messages would be lost."""

    code = 23


class LeaseExpired(ConsumeError):
    """The message is no longer this consumer's to settle."""


class OffsetOutOfRange(ConsumeError):
    """The queue offset asked for is not stored any more, or not yet."""

    code = 21


class TransactionError(ShmqError):
    """A transaction could not be ended as asked."""


class RequestTimeout(ShmqError, TimeoutError):
    """No answer came before the deadline."""

    retryable = True


class FilterSyntaxError(ShmqError, SyntaxError):
    """A tag or SQL92 expression cannot be read.

    Attributes:
        text, lineno, offset, end_offset: the line of the expression, its number, and the columns of the fault in it,
            counted from 1, as of any SyntaxError. None where the fault has no place, or was found by another host.
    """

    code = 23

    def __init__(
        self, message: str, *, hint: str = "", text: str | None = None, start: int = 0, end: int | None = None
    ) -> None:
        """`start` and `end` are the faulty characters of the expression `text`, counted from 0."""
        super().__init__(message, hint=hint)
        if text is None:
            return
        before = text[:start]
        line_start = before.rfind("\n") + 1
        line = text[line_start:].partition("\n")[0]
        self.lineno = before.count("\n") + 1
        self.offset = start - line_start + 1
        self.end_lineno = self.lineno
        self.end_offset = min(max(end or 0, start + 1) - line_start, max(len(line), self.offset)) + 1
        self.text = line
        self.filename = "<filter>"

    def __str__(self) -> str:
        """The reason, the line and a caret under the fault."""
        if self.text is None or self.offset is None or self.end_offset is None:
            return str(self.msg)
        cut = max(0, self.offset - _SHOWN_BEFORE)
        line = self.text[cut : cut + 2 * _SHOWN_BEFORE].expandtabs(1)
        width = max(1, min(self.end_offset - self.offset, len(line) - (self.offset - 1 - cut)))
        where = f"line {self.lineno}, " if self.lineno != 1 else ""
        pointer = " " * (self.offset - 1 - cut) + "^" * width
        return f"{self.msg} ({where}character {self.offset})\n    {line}\n    {pointer}"


class ProtocolError(ShmqError):
    """The peer sent bytes that no conforming peer sends."""


class CorruptionError(ShmqError):
    """Stored bytes contradict themselves."""

    def __init__(self, path: Path | str, position: int, reason: str, *, hint: str = "") -> None:
        from pathlib import Path  # three milliseconds, and hardly any process needs it here

        super().__init__(f"{path} at byte {position}: {reason}", hint=hint)
        self.path = Path(path)
        self.position = position
        self.reason = reason


class DamagedMessage(CorruptionError):
    """A stored message is damaged. It was left out, once and for all: the group goes on behind it.

    Attributes:
        topic, queue_id, offset: where it was.
        position: in the log; -1 when nothing says it.
        record: its bytes as they lie there; empty when they cannot be found.
        body: what was sent, when the body's own checksum holds and only something around it is damaged; else None.
    """

    def __init__(
        self,
        reason: str,
        *,
        topic: str,
        queue_id: int,
        offset: int,
        position: int = -1,
        record: bytes = b"",
        body: bytes | None = None,
    ) -> None:
        super().__init__("the log", position, reason, hint="shmq health says where the broker keeps a copy")
        self.topic = topic
        self.queue_id = queue_id
        self.offset = offset
        self.record = record
        self.body = body


class RemoteError(ShmqError):
    """The peer answered with a failure code."""

    def __init__(self, code: int, remark: str, *, hint: str = "") -> None:
        super().__init__(f"the broker answered {code}: {remark}", hint=hint)
        self.code = code
        self.remark = remark


class Retry(Exception):
    """Raised by a listener: deliver this message again after a while.

    Args:
        after: seconds; None takes the group's next delay.
    """

    after: float | None = None
    __reduce__ = _reduced

    def __init__(self, reason: str = "", *, after: float | None = None) -> None:
        super().__init__(reason)
        self.after = after


class Reject(Exception):
    """Raised by a listener: this message can never be handled; move it to the dead-letter topic."""

    __reduce__ = _reduced
