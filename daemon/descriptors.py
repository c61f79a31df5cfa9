"""Descriptors: raises the limit to what a broker's processes need, or refuses the start.

    soft limit below what is wanted    raised as far as the hard limit lets, by each process for itself and its children
    hard limit below what is needed    the start is refused, with both numbers and what to type

A keeper or a bridge that ran out of descriptors while it starts would fail at some open or other, and the broker would
never be ready, without a reason.
"""

import resource

from shmq.errors import UsageError

NEEDED = 256
"""What a broker needs with no more than a few clients and topics: three segments, log files, unit files, sockets."""
WANTED = 4096


def raise_descriptor_limit(wanted: int) -> int:
    """Allow this process so many descriptors, as far as it may itself; return how many it may have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return wanted
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return most


def check_descriptor_limit() -> None:
    """Make room for a broker's processes.

    Raises:
        UsageError: they may not have as many as they need.
    """
    most = raise_descriptor_limit(WANTED)
    if most < NEEDED:
        raise UsageError(
            f"a process may have {most} open files here, and a broker needs {NEEDED}",
            hint=f"ulimit -n {WANTED} before the start (as root if it is refused), or LimitNOFILE={WANTED} in its unit",
        )
