"""Maps an error to the exit status of a daemon process.

It differs from the command's: what is wrong with the settings is the configuration's fault, and a port that cannot be
taken is too.
"""

from shmq import errors
from shmq.exit_code import ExitCode

_EXIT_CODES: tuple[tuple[type[errors.ShmqError], ExitCode], ...] = (
    (errors.UsageError, ExitCode.CONFIGURATION),
    (errors.CorruptionError, ExitCode.BAD_DATA),
    (errors.PermissionDenied, ExitCode.NO_PERMISSION),
    (errors.StoreError, ExitCode.CANNOT_CREATE),
    (errors.SegmentFull, ExitCode.CANNOT_CREATE),
    (errors.ConnectError, ExitCode.CONFIGURATION),
)


def exit_code_of(error: errors.ShmqError) -> ExitCode:
    """Return the status for an error that ended a daemon process."""
    return next((code for kind, code in _EXIT_CODES if isinstance(error, kind)), ExitCode.TEMPORARY)
