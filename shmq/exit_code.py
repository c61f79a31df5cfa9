"""Exit statuses of the `shmq` command and of the daemon's processes.

    0  done, stopped as asked        70  internal error (a report path is printed)
    1  ran, and the answer is no     73  cannot create or take the segments or the store
   64  usage                         75  temporary: timed out, flow control; may work later
   65  bad data                      77  no permission
   69  broker not reachable          78  configuration: contradicts itself or the store
                                    130  interrupted

The numbers are those of sysexits.h, so 2 stays free for monitoring plug-ins that give it a meaning of their own.
"""

from enum import IntEnum


class ExitCode(IntEnum):
    """The exit status of a process; each has one meaning."""

    DONE = 0
    NO = 1
    UNEXPECTED = 1  # of the daemon, by Python itself: see the traceback
    USAGE = 64
    BAD_DATA = 65
    UNREACHABLE = 69
    INTERNAL = 70
    CANNOT_CREATE = 73
    TEMPORARY = 75
    NO_PERMISSION = 77
    CONFIGURATION = 78
    INTERRUPTED = 130
