"""Limits one micro-batch: a share of the limit for each queue. Pure functions.

    a queue gets its share of the limit by its backlog, but at least one message: none waits for ever behind a long one

Rules: (1) an end never lies before its start, nor behind what is there;
(2) what is chosen is written down before it is read, so nothing here has to be repeatable.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy

from shmq.spark.access.broker import Key

Ends = dict[Key, int]
UNITS_MAX: Final = 1 << 20
"""How many messages of a queue are looked at for one batch: planning takes its time too."""
Sizes = Callable[[Key, int, int], Sequence[int]]
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
        share = max(0, left) // (len(waiting) - number)
        ends[key], used = _admitted(key, start[key], top[key], share, sizes)
        left -= used
    return ends


def _admitted(key: Key, start: int, top: int, share: int, sizes: Sizes) -> tuple[int, int]:
    """The end of a share, and the bytes until there."""
    at, used = start, 0
    while at < top and at - start < UNITS_MAX and (used < share or at == start):
        found = numpy.cumsum(sizes(key, at, top), dtype=numpy.int64)
        fitting = int(numpy.searchsorted(found, share - used, side="right"))
        if len(found) == 0 or (fitting == 0 and at > start):
            break
        fitting = max(fitting, 1)
        at, used = at + fitting, used + int(found[fitting - 1])
        if fitting < len(found):
            break
    return at, used
