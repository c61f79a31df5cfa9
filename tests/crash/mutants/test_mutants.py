"""Each defect of the catalogue is noticed by the tests it names, and the product as it is passes the same tests."""

from pathlib import Path

import pytest

from tests.crash.mutants.catalogue import MUTANTS
from tests.crash.mutants.mutant import run_tests

README = Path(__file__).resolve().parent.parent / "README.md"


def test_the_page_lists_each_of_them_and_who_notices_it() -> None:
    listed = [line.split(" | ")[0].removeprefix("| ") for line in README.read_text().splitlines() if "`" in line]
    assert [name for name in listed if name in MUTANTS] == list(MUTANTS)
    assert all(mutant.edits and mutant.noticed_by for mutant in MUTANTS.values())


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_product_as_it_is_passes() -> None:
    names = sorted({name for mutant in MUTANTS.values() for name in mutant.noticed_by})
    outcome = run_tests(names)
    assert outcome.is_passed, outcome.text[-8000:]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", MUTANTS)
def test_it_is_noticed(name: str) -> None:
    outcome = MUTANTS[name].run()
    print(outcome.text[-2000:])
    assert not outcome.is_passed, f"nothing noticed that {name}"
