"""The end of a requested pass differs from that of the pass before it."""

from pathlib import Path

import pytest

from shmq.shm.access import Access
from shmq.store import scrub_state
from shmq.store.layout import StoreLayout
from shmq.store.scrub_state import ScrubState, asked_pass, read_scrub_state, write_scrub_state


def write(layout: StoreLayout, passes: int, position: int) -> None:
    state = ScrubState()
    state.passes, state.position = passes, position
    write_scrub_state(layout, state)


def test_a_pass_that_ends_before_the_one_asked_for_begins_is_not_taken_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = StoreLayout(tmp_path, Access(-1))
    layout.scrub_request.touch()
    write(layout, passes=1, position=-1)  # the pass that was under way when this one was asked for

    def keeper_is_between_two_looks(root: Path) -> ScrubState | None:
        """The keeper does its next step after each look of the one who waits."""
        state = read_scrub_state(root)
        write(layout, passes=1, position=0)
        layout.scrub_request.unlink(missing_ok=True)
        return state

    monkeypatch.setattr(scrub_state, "read_scrub_state", keeper_is_between_two_looks)
    assert asked_pass(tmp_path, 0) is None
    layout.scrub_request.unlink(missing_ok=True)
    write(layout, passes=1, position=0)
    assert asked_pass(tmp_path, 0) is None
    monkeypatch.undo()
    write(layout, passes=2, position=-1)
    ended = asked_pass(tmp_path, 0)
    assert ended is not None and ended.passes == 2
