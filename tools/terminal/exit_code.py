"""With which status the `shmq` command ends after an error."""

from __future__ import annotations

from shmq import errors
from shmq.exit_code import ExitCode
from shmq.protocol.codes import Response

# A class that is not listed ends as its nearest listed ancestor does. `docs/reference/errors.md` repeats this table
# for readers; a test compares the two.
EXIT_CODES: dict[type[errors.ShmqError], ExitCode] = {
    errors.ShmqError: ExitCode.INTERNAL,
    errors.UsageError: ExitCode.USAGE,
    errors.TopicExists: ExitCode.NO,
    errors.ConnectError: ExitCode.UNREACHABLE,
    errors.PermissionDenied: ExitCode.NO_PERMISSION,
    errors.VersionMismatch: ExitCode.CONFIGURATION,
    errors.ForeignNamespace: ExitCode.NO_PERMISSION,
    errors.StoreError: ExitCode.CANNOT_CREATE,
    errors.SendError: ExitCode.TEMPORARY,
    errors.NotFound: ExitCode.NO,
    errors.TopicNotFound: ExitCode.NO,
    errors.MessageTooLarge: ExitCode.BAD_DATA,
    # The broker is there, but will serve no append before it is restarted.
    errors.ReadOnlyStore: ExitCode.UNREACHABLE,
    errors.NotMaster: ExitCode.UNREACHABLE,
    errors.ConsumeError: ExitCode.TEMPORARY,
    errors.SubscriptionConflict: ExitCode.CONFIGURATION,
    errors.OffsetOutOfRange: ExitCode.NO,
    errors.TransactionError: ExitCode.NO,
    errors.RequestTimeout: ExitCode.TEMPORARY,
    errors.FilterSyntaxError: ExitCode.BAD_DATA,
    errors.ProtocolError: ExitCode.INTERNAL,
    errors.CorruptionError: ExitCode.BAD_DATA,
    errors.RemoteError: ExitCode.INTERNAL,
}

# Response codes a broker answers with that mean something to a script; every other one is an internal error.
_REMOTE_EXIT_CODES: dict[int, ExitCode] = {
    Response.SYSTEM_BUSY: ExitCode.TEMPORARY,
    Response.MESSAGE_ILLEGAL: ExitCode.BAD_DATA,
    Response.SERVICE_NOT_AVAILABLE: ExitCode.TEMPORARY,
    Response.NO_PERMISSION: ExitCode.NO_PERMISSION,
    Response.TOPIC_NOT_EXIST: ExitCode.NO,
    Response.QUERY_NOT_FOUND: ExitCode.NO,
    Response.SUBSCRIPTION_PARSE_FAILED: ExitCode.BAD_DATA,
    Response.SUBSCRIPTION_GROUP_NOT_EXIST: ExitCode.NO,
    Response.FLOW_CONTROL: ExitCode.TEMPORARY,
}


def exit_code_of(error: BaseException) -> ExitCode:
    """Return the status a command ends with when `error` reaches its edge."""
    if isinstance(error, KeyboardInterrupt):
        return ExitCode.INTERRUPTED
    if isinstance(error, errors.RemoteError):
        return _REMOTE_EXIT_CODES.get(error.code, ExitCode.INTERNAL)
    for kind in type(error).__mro__:
        if kind in EXIT_CODES:
            return EXIT_CODES[kind]
    if isinstance(error, PermissionError):
        return ExitCode.NO_PERMISSION
    return ExitCode.INTERNAL
