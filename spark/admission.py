"""Owns how much one micro-batch takes: shares of a limit, queue by queue. Pure.

    a queue gets its share of the limit by its backlog, but at least one message: none waits for ever behind a long one

Rules: (1) an end never lies before its start, nor behind what is there;
(2) what is chosen is written down before it is read, so nothing here has to be repeatable.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from shmq.spark.progress import Key

Ends = dict[Key, int]
Sizes = Callable[[Key, int, int], list[int]]
"""Bytes of the records of queue offsets [start, end); may be cut short behind the first."""


def admit_rows(start: Mapping[Key, int], top: Mapping[Key, int], rows_max: int) -> Ends:
    """Return ends that hold about rows_max messages together."""
    backlog = {key: max(0, end - start.get(key, end)) for key, end in top.items()}
    total = sum(backlog.values())
    if total <= rows_max:
        return dict(top)
    return {
        key: start.get(key, end) + min(backlog[key], max(1, rows_max * backlog[key] // total) if backlog[key] else 0)
        for key, end in top.items()
    }


def admit_bytes(start: Mapping[Key, int], top: Mapping[Key, int], bytes_max: int, sizes: Sizes) -> Ends:
    """Return ends that hold at most bytes_max bytes together, but one message of each queue that has any.

    What a queue leaves of its share goes to the next one.
    """
    waiting = [key for key, end in top.items() if end > start.get(key, end)]
    ends, left = dict(top), bytes_max
    for number, key in enumerate(waiting):
        at, share = start[key], max(0, left) // (len(waiting) - number)
        taken, used = 0, 0
        for size in sizes(key, at, top[key]):
            if taken and used + size > share:
                break
            taken, used = taken + 1, used + size
            if used >= share:
                break
        ends[key] = at + taken
        left -= used
    return ends
