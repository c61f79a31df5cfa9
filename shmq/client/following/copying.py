"""How a slave's copy of its master's log goes on, as the programs of its host see it.

    links.json says                                            is_cut_off   is_late   is_up_to_date
    lost, stuck; or nothing, or of no word from the master     yes          no        no
    connecting, catching up                                    no           no        no
    catching up, LINK_LAG_SECONDS behind or more               no           yes       no
    up to date                                                 no           no        yes

A file that has not been written for some seconds is of a process that stands still, which copies nothing.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import NamedTuple

from shmq.figures.thresholds import HEARD_SECONDS, LINK_LAG_SECONDS, SILENT_MS_MAX
from shmq.shm.links import CATCHING_UP, LOST, STUCK, UP_TO_DATE, read_links


class Copying(NamedTuple):
    """What links.json says of the copy; all False on a host that has no master."""

    is_refused: bool = False
    """This host takes nothing of its master before an operator has done something."""
    is_cut_off: bool = False
    """Nothing of what the master stores comes here now."""
    is_up_to_date: bool = False
    is_late: bool = False
    """It goes on, and is far behind what the master stores."""

    @property
    def stands_still(self) -> bool:
        """Whether nothing of what the master stores is taken over now."""
        return self.is_refused or self.is_cut_off


def copying(path: Path) -> Copying:
    """Read links.json."""
    links = read_links(path)
    master = None if links is None else links.master
    if links is None or master is None:
        return Copying()
    now_ms = time.monotonic() * 1000
    heard_ms = now_ms if master.heard_ms is None else master.heard_ms
    is_silent = now_ms - links.at_ms > SILENT_MS_MAX or now_ms - heard_ms > 1000 * HEARD_SECONDS
    is_cut_off = is_silent or master.state in (LOST, STUCK)
    is_late = master.state == CATCHING_UP and (master.lag_ms or 0) >= 1000 * LINK_LAG_SECONDS
    return Copying(
        master.is_refused, is_cut_off, not is_cut_off and master.state == UP_TO_DATE, not is_cut_off and is_late
    )
