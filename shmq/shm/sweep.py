"""Removes what dead brokers left, when a broker starts.

`leftovers.py` judges and proves what may go. The store is never touched: only memory is removed, whose content the next
`serve` of that broker rebuilds from its log.

Rules: (1) never what a living process has mapped or open, is recorded with or is counted for, nor what another user
made, nor what cannot be judged;
(2) never the generation that is to be attached again;
(3) what a broker of another name left stays while its store directory exists: it may be started again, and its memory
holds group offsets that are newer than its files;
(4) what a process still looks at stays where it is: the next start, or `shmq doctor --fix`, removes it.
"""

from __future__ import annotations

import contextlib

from shmq.shm.holders import StillHeld
from shmq.shm.instance import Instance
from shmq.shm.leftovers import find_leftovers, remove_leftover
from shmq.shm.place import Place


def sweep(place: Place, *, keep: Instance | None = None) -> list[str]:
    """Remove leftovers of dead brokers of our own user and return their names.

    Args:
        place: the caller's place; brokers whose runtime directories lie beside it are looked at too.
        keep: the generation the caller is about to attach to again.
    """
    removed: list[str] = []
    for leftover in find_leftovers(place):
        is_ours = leftover.broker_name == place.broker_name
        if keep is None or leftover.generation != keep.generation:
            with contextlib.suppress(StillHeld):
                removed += remove_leftover(place, leftover, also_waiting=is_ours)
    return removed
