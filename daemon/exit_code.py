"""With which status a daemon process ends, and which error causes it.

    0   stopped as asked                         73  the segments or the store cannot be created or taken
    1   unexpected error, see the traceback      77  no permission
    64  wrong command line                       78  the configuration contradicts itself or the store
    65  the store's bytes contradict themselves  75  anything that may work later

The numbers are those of sysexits.h, as in the `shmq` command.
"""

from shmq import errors

DONE = 0
UNEXPECTED = 1
USAGE = 64
BAD_DATA = 65
CANNOT_CREATE = 73
TEMPORARY = 75
NO_PERMISSION = 77
CONFIGURATION = 78

_EXIT_CODES: tuple[tuple[type[errors.ShmqError], int], ...] = (
    (errors.UsageError, CONFIGURATION),
    (errors.CorruptionError, BAD_DATA),
    (errors.PermissionDenied, NO_PERMISSION),
    (errors.StoreError, CANNOT_CREATE),
    (errors.SegmentFull, CANNOT_CREATE),
    (errors.ConnectError, CONFIGURATION),
)


def exit_code_of(error: errors.ShmqError) -> int:
    """Return the status for an error that ended a daemon process."""
    return next((code for kind, code in _EXIT_CODES if isinstance(error, kind)), TEMPORARY)
