"""The scrubber's progress and findings, in a file that every tool may read.

<root>/shmq.scrub        the state, sealed JSON, written every few seconds while a pass goes on and at its end
<root>/shmq.scrub.now    asks for a whole pass at once; the keeper removes it when the pass has begun
"""

from __future__ import annotations

import json
from pathlib import Path

from shmq.errors import StoreError
from shmq.plain_file import read_plain
from shmq.shm.access import Access
from shmq.store.atomic import write_atomically
from shmq.store.layout import StoreLayout
from shmq.store.seal import sealed, unsealed

FAULTS_MAX = 20  # named one by one; the rest is counted


LOG_FAULT = "log bytes"  # begins the text of damage that cannot be mended, which every pass finds


class ScrubState:
    """One pass over a store: times in ms since the epoch, 0 when it did not happen yet.

    A pass that is begun anew before its end goes on with what was mended, as the next one finds that no more.

    A plain class: `shmq health --fast` reads it, and `dataclasses` takes longer to import than all of its modules.
    """

    def __init__(self) -> None:
        self.passes = 0  # that were finished
        self.began_ms = 0
        self.finished_ms = 0  # of the last one that was finished
        self.position = -1  # of the log, where the present pass goes on; -1: none is under way
        self.checked_bytes = 0
        self.damages = 0  # ranges of the log that hold no readable record
        self.units_rebuilt = 0
        self.tables_rewritten = 0
        self.indexes_rebuilt = 0  # files of the index
        self.faults: list[str] = []

    @property
    def fault_count(self) -> int:
        """The number of findings in the present pass, or in the last one."""
        return self.damages + self.units_rebuilt + self.tables_rewritten + self.indexes_rebuilt

    def add_fault(self, text: str) -> None:
        """Name a fault while there are few."""
        if len(self.faults) < FAULTS_MAX:
            self.faults.append(text)

    def begun(self, began_ms: int, position: int) -> ScrubState:
        """Return the state of a pass that begins now, behind this one or in its place."""
        begun = ScrubState()
        if self.position >= 0:
            begun.units_rebuilt, begun.tables_rewritten = self.units_rebuilt, self.tables_rewritten
            begun.indexes_rebuilt = self.indexes_rebuilt
            begun.faults = [fault for fault in self.faults if not fault.startswith(LOG_FAULT)]
        begun.passes, begun.finished_ms = self.passes, self.finished_ms
        begun.began_ms, begun.position = began_ms, position
        return begun


def read_scrub_state(root: Path) -> ScrubState | None:
    """Return the state; None when there is none or it cannot be read."""
    try:
        told = unsealed(read_plain(StoreLayout(root, Access(-1)).scrub_state))
    except (OSError, ValueError):
        return None
    state = ScrubState()
    for name, default in list(vars(state).items()):
        value = told.get(name)
        if type(value) is type(default):
            setattr(state, name, value)
    return state


def asked_pass(root: Path, passes_before: int) -> ScrubState | None:
    """Return the state at the end of a pass that was asked for when `passes_before` were finished; None until then.

    The keeper writes that the pass began before it takes the request away, so the request is looked at first: after it
    has gone, no state is that of the pass before.
    """
    if StoreLayout(root, Access(-1)).scrub_request.exists():
        return None
    state = read_scrub_state(root)
    return state if state is not None and state.passes > passes_before and state.position < 0 else None


def write_scrub_state(layout: StoreLayout, state: ScrubState) -> None:
    """Replace the state. Raises StoreError."""
    content = sealed(json.dumps(vars(state), indent=1).encode())
    try:
        write_atomically(layout.scrub_state, content, mode=layout.access.read_mode, gid=layout.access.gid)
    except OSError as error:
        raise StoreError(f"{layout.scrub_state} cannot be written: {error.strerror}") from error
