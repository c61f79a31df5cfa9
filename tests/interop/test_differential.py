"""The same scripted exchange gets the same answers from a stock 4.9 broker and from shmq."""

from collections.abc import Iterator

import pytest

from tests.interop.differences import DELIBERATE, PENDING
from tests.interop.exchange import Outcome, Step, differences, play
from tests.interop.script_admin import ADMIN_SCRIPT
from tests.interop.script_client import CLIENT_SCRIPT
from tests.interop.target import Target, start_ours
from tests.tables.rows import every_row

SCRIPT = [*CLIENT_SCRIPT, *ADMIN_SCRIPT]
NAMES = {step.name for step in SCRIPT}


@pytest.fixture(scope="module")
def stock_outcomes(stock_4: Target) -> dict[str, Outcome]:
    """What the stock broker answers, step by step."""
    return play(stock_4, SCRIPT)


@pytest.fixture(scope="module")
def our_outcomes() -> Iterator[dict[str, Outcome]]:
    """What a fresh broker of ours answers, step by step."""
    with start_ours() as target:
        yield play(target, SCRIPT)


@every_row("step", SCRIPT, ids=lambda step: step.name)
def test_shmq_answers_as_a_stock_broker_does(
    step: Step, stock_outcomes: dict[str, Outcome], our_outcomes: dict[str, Outcome]
) -> None:
    found = differences(stock_outcomes[step.name], our_outcomes[step.name])
    if step.name in DELIBERATE:
        assert found, f"no longer different, so take it off the list: {DELIBERATE[step.name]}"
    elif step.name in PENDING:
        assert found, f"no longer missing, so take it off the list: {PENDING[step.name]}"
    else:
        assert not found, f"code {step.code}: " + "; ".join(found)


def test_steps_have_names_of_their_own_and_the_lists_name_steps() -> None:
    assert len(NAMES) == len(SCRIPT)
    assert set(DELIBERATE) | set(PENDING) <= NAMES
    assert not set(DELIBERATE) & set(PENDING)
