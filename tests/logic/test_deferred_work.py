"""Deferred work is served a few in a turn, in the order they came, and each item once."""

from collections.abc import Sequence

import pytest

from shmq.daemon.logic.deferred_work import DeferredWork
from shmq.daemon.logic.effects import Effect, Report, Wake


class Served:
    """Numbers to serve, and what became of them."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.fault: int | None = None
        self.work: DeferredWork[int] = DeferredWork(self._serve)

    def _serve(self, number: int, now_ms: int) -> Sequence[Effect]:
        if number == self.fault:
            raise ZeroDivisionError
        self.numbers.append(number)
        return [Report(str(number))]

    def to_the_end(self, effects: Sequence[Effect]) -> list[int]:
        """How many were served in each turn after the one that `effects` come from."""
        turns = []
        while Wake(0) in effects:
            before = len(self.numbers)
            effects = self.work.go_on(0)
            turns.append(len(self.numbers) - before)
        return turns


@pytest.fixture
def served() -> Served:
    return Served()


def test_one_or_two_are_served_at_once(served: Served) -> None:
    assert served.work.begin([7, 8], 0) == [Report("7"), Report("8")]
    assert list(served.work.go_on(0)) == []


def test_many_are_served_in_turns_and_the_first_comes_after_those_before_it(served: Served) -> None:
    effects = served.work.begin(range(500), 0)
    assert effects == (Wake(0),)
    turns = served.to_the_end(effects)
    assert served.numbers == list(range(500))
    assert max(turns) <= 16
    assert len(turns) == -(-500 // max(turns))


def test_an_item_that_comes_meanwhile_waits_behind_the_others_and_none_is_served_twice(served: Served) -> None:
    served.work.begin(range(40), 0)
    served.work.go_on(0)
    assert Wake(0) in served.work.begin([39, 100], 0)
    served.to_the_end((Wake(0),))
    assert served.numbers == [*range(40), 100]


def test_who_is_gone_is_not_served(served: Served) -> None:
    served.work.begin(range(40), 0)
    served.work.drop(3)
    served.work.drop(3)
    served.to_the_end((Wake(0),))
    assert served.numbers == [number for number in range(40) if number != 3]


def test_an_item_that_ends_another_while_it_is_served_has_ended_it() -> None:
    numbers: list[int] = []

    def serve(number: int, now_ms: int) -> Sequence[Effect]:
        numbers.append(number)
        work.drop(number + 1)
        return ()

    work: DeferredWork[int] = DeferredWork(serve)
    work.begin(range(10), 0)
    work.go_on(0)
    assert numbers == [0, 2, 4, 6, 8]


def test_a_fault_costs_one_and_the_others_go_on(served: Served) -> None:
    served.fault = 5
    effects = served.work.begin(range(40), 0)
    with pytest.raises(ZeroDivisionError):
        served.to_the_end(effects)
    served.to_the_end(served.work.go_on(0))
    assert sorted(served.numbers) == [number for number in range(40) if number != 5]
