"""The scrubber finds what is damaged while the broker runs, has it mended where that can be, and says so."""

from collections.abc import Callable
from typing import Any

import pytest

from shmq.daemon.keeper.live.files import LiveFiles
from shmq.shm.access import Access
from shmq.store.layout import StoreLayout, file_name
from shmq.store.scrub_state import LOG_FAULT, ScrubState, asked_pass, read_scrub_state, write_scrub_state

StartKeeper = Callable[..., Any]
Eventually = Callable[..., Any]


def scrubbed(running: Any, eventually: Eventually) -> ScrubState:
    """Ask for a pass and return what it found."""
    before = read_scrub_state(running.root) or ScrubState()
    (running.root / "shmq.scrub.now").touch()
    found = eventually(lambda: asked_pass(running.root, before.passes))
    assert isinstance(found, ScrubState)
    return found


def filled(start_keeper: StartKeeper, eventually: Eventually) -> Any:
    running = start_keeper(flush_interval_ms=20)
    for number in range(3000):
        eventually(lambda: running.store.allocated_end - running.store.log_end > 4096)
        running.send("orders", b"%d" % number)
    end = running.store.log_end
    eventually(lambda: running.attached.files.mark.current.dispatched == end)
    eventually(lambda: running.store.durable_end == end)
    scrubbed(running, eventually)  # or the pass that began with the keeper finds what a test breaks
    return running


def changed(path: Any, at: int, data: bytes) -> None:
    with open(path, "r+b") as file:
        file.seek(at)
        file.write(data)


@pytest.fixture
def only_scrubbed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a write of ours changes in place is seen by `live/files.py` at once; what a disk changes is not."""
    monkeypatch.setattr(LiveFiles, "round", lambda _: None)


def test_a_whole_store_is_found_whole(start_keeper: StartKeeper, eventually: Eventually) -> None:
    running = filled(start_keeper, eventually)
    state = scrubbed(running, eventually)
    assert (state.fault_count, state.faults) == (0, [])
    assert state.checked_bytes >= running.store.log_end
    eventually(lambda: running.events.named("scrub.done"))


def test_wrong_units_are_written_again(start_keeper: StartKeeper, eventually: Eventually) -> None:
    running = filled(start_keeper, eventually)
    path = running.root / "consumequeue/orders/0" / file_name(0)
    before = path.read_bytes()
    changed(path, 20 * 1000, bytes(4096))
    state = scrubbed(running, eventually)
    assert (state.units_rebuilt, state.damages) == (400, 0)
    assert path.read_bytes() == before
    assert scrubbed(running, eventually).fault_count == 0


def test_a_missing_unit_file_is_made_again(
    start_keeper: StartKeeper, eventually: Eventually, only_scrubbed: None
) -> None:
    running = filled(start_keeper, eventually)
    path = running.root / "consumequeue/orders/0" / file_name(0)
    before = path.read_bytes()
    path.unlink()
    assert scrubbed(running, eventually).units_rebuilt == 3000
    assert path.read_bytes()[: 20 * 3000] == before[: 20 * 3000]


def test_a_pass_that_is_begun_anew_tells_of_what_was_mended_before(
    start_keeper: StartKeeper, eventually: Eventually
) -> None:
    running = filled(start_keeper, eventually)
    running.stop()
    interrupted = ScrubState()
    interrupted.position, interrupted.units_rebuilt, interrupted.damages = 0, 400, 1
    interrupted.faults = ["400 units from 0 on", f"{LOG_FAULT} 100 to 200"]
    write_scrub_state(StoreLayout(running.root, Access(-1)), interrupted)
    (running.root / "shmq.scrub.now").touch()
    start_keeper()
    state = eventually(lambda: asked_pass(running.root, 0))
    assert (state.units_rebuilt, state.damages, state.faults) == (400, 0, ["400 units from 0 on"])


def test_damage_of_the_log_is_named_and_walked_past(start_keeper: StartKeeper, eventually: Eventually) -> None:
    running = filled(start_keeper, eventually)
    position = running.store.log_end // 2
    changed(running.root / "commitlog" / file_name(position - position % (256 << 10)), position % (256 << 10), b"\xee")
    state = scrubbed(running, eventually)
    assert (state.damages, state.units_rebuilt) == (1, 0)
    (damage,) = running.events.named("scrub.damage")
    assert damage["log_position"] <= position < damage["end"]
    assert str(damage["log_position"]) in state.faults[0]


def test_a_damaged_table_is_written_again_from_memory(
    start_keeper: StartKeeper, eventually: Eventually, only_scrubbed: None
) -> None:
    running = filled(start_keeper, eventually)
    path = running.root / "config" / "topics.json"
    eventually(lambda: path.exists() and "orders" in path.read_text())
    eventually(lambda: (running.root / "config" / "consumerOffset.json").exists())

    def damaged_and_scrubbed() -> ScrubState | None:
        """None where the keeper wrote the table for another reason before it was looked at."""
        path.write_bytes(path.read_bytes().replace(b'"perm":6', b'"perm":4'))
        state = scrubbed(running, eventually)
        return state if state.tables_rewritten else None

    state = eventually(damaged_and_scrubbed, "the pass finds the damage")
    assert state.tables_rewritten == 1 and "topics.json" in state.faults[0]
    eventually(lambda: path.exists() and b'"perm":6' in path.read_bytes())


def test_a_pass_goes_on_where_the_last_keeper_left_it(start_keeper: StartKeeper, eventually: Eventually) -> None:
    running = filled(start_keeper, eventually)
    running.halt()
    running.keeper.abandon()
    state = read_scrub_state(running.root)
    assert state is not None and state.passes >= 1  # the one that began with the keeper may have ended before
    again = start_keeper()
    assert again.keeper.scrub_state.passes == state.passes
