"""`shmq store scrub`: what the keeper's scrubber found; with --now it makes a whole pass at once.

The keeper does the work. This command asks by making a file in the store, and reads the state file the scrubber writes.
"""

from __future__ import annotations

import time
from pathlib import Path

import click

from shmq.errors import BrokerNotRunning, PermissionDenied, RequestTimeout
from shmq.exit_code import ExitCode
from shmq.figures.quantity import age_text, plural, size_text
from shmq.shm.access import Access
from shmq.shm.liveness import is_alive
from shmq.store.layout import StoreLayout
from shmq.store.scrub_state import ScrubState, asked_pass, read_scrub_state
from shmq.tools.broker.memory import find_instance
from shmq.tools.command import Call, Command, pass_call

_LOOK_SECONDS = 0.1


@click.command(cls=Command)
@click.option("--now", is_flag=True, help="Check everything now, and wait for the result.")
@pass_call
def scrub(call: Call, now: bool) -> int:
    """Say what the checks in the background found; with --now check all of the store at once.

    Exit status 1 if something was found.
    """
    place, instance = find_instance(call.url)
    root = Path(instance.store_path)
    if now:
        keeper = instance.processes.get("keeper")
        if keeper is None or not is_alive(keeper):
            raise BrokerNotRunning(
                f'the keeper of broker "{place.broker_name}" does not run', hint="shmq health says more"
            )
        state = _run(root, call.timeout)
    else:
        state = read_scrub_state(root) or ScrubState()
    if call.terminal.structured:
        call.terminal.document(dict(vars(state)))
    else:
        _print(call, state)
    return ExitCode.NO if state.fault_count else ExitCode.DONE


def _run(root: Path, timeout: float | None) -> ScrubState:
    """Ask for a pass and wait for its end."""
    before = read_scrub_state(root) or ScrubState()
    try:
        StoreLayout(root, Access(-1)).scrub_request.touch()
    except PermissionError as error:
        raise PermissionDenied(
            f"no right to make a file in {root}", hint="run it as the user that the broker runs as"
        ) from error
    until = None if timeout is None else time.monotonic() + timeout
    while (state := asked_pass(root, before.passes)) is None:
        if until is not None and time.monotonic() > until:
            raise RequestTimeout(
                f"the pass did not end within {timeout:g} s", hint="it goes on: shmq store scrub shows its result"
            )
        time.sleep(_LOOK_SECONDS)
    return state


def _print(call: Call, state: ScrubState) -> None:
    if not state.began_ms:
        call.terminal.line("nothing was checked yet; shmq store scrub --now does it")
        return
    now_ms = time.time() * 1000
    found = [
        plural(state.damages, "damaged range"),
        plural(state.units_rebuilt, "rewritten unit"),
        plural(state.tables_rewritten, "rewritten table"),
        plural(state.indexes_rebuilt, "rebuilt index file"),
    ]
    if state.position >= 0:
        call.terminal.line(
            f"a pass is under way since {age_text((now_ms - state.began_ms) / 1000)}: "
            f"{size_text(state.checked_bytes)} checked, {', '.join(found)}"
        )
    else:
        call.terminal.line(
            f"last pass ended {age_text((now_ms - state.finished_ms) / 1000)} ago: "
            f"{size_text(state.checked_bytes)} checked, {', '.join(found)}"
        )
    for fault in state.faults:
        call.terminal.line(f"  ! {fault}")
