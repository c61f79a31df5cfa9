"""Two brokers meet: who may follow whom, where a log is cut, and what ends in a state with a name."""

from __future__ import annotations

import contextlib
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shmq.daemon.ha.meeting import Side, State, judge, read_side, side_bytes
from shmq.errors import ProtocolError
from shmq.store.lineage.epochs import Epoch
from tests.tables.rows import every_row

ZERO, ONE, TWO = Epoch(0, 0), Epoch(1, 4000), Epoch(2, 8000)


def side(end: int, *epochs: Epoch, **facts: Any) -> Side:
    known: dict[str, Any] = {"cluster": "c", "broker": "b", "log": "1" * 32, "file_bytes": 4096, **facts}
    return Side(end=end, epochs=epochs or (ZERO,), **known)


@every_row(
    ("slave", "master", "state", "cut"),
    [
        (side(500), side(900), State.FOLLOWING, None),
        (side(900), side(900), State.FOLLOWING, None),
        (side(3000, ZERO), side(9000, ZERO, ONE, TWO), State.FOLLOWING, None),
        (side(9000, ZERO, ONE, TWO), side(9000, ZERO, ONE, TWO), State.FOLLOWING, None),
        # The old master had stored more than its slave when that was promoted.
        (side(5000, ZERO), side(4500, ZERO, ONE), State.PARTED, 4000),
        (side(5000, ZERO), side(9000, ZERO, ONE, TWO), State.PARTED, 4000),
        (side(9000, ZERO, ONE), side(8500, ZERO, ONE, TWO), State.PARTED, 8000),
        # Two were promoted behind epoch 0.
        (side(5000, ZERO, Epoch(1, 3000)), side(9000, ZERO, TWO), State.PARTED, 3000),
        (side(900), side(500), State.AHEAD, None),
        (side(900, ZERO, ONE), side(900), State.OLDER_MASTER, None),
        (side(900, log="2" * 32), side(900), State.FOREIGN, None),
        (side(900, log=""), side(900), State.FOLLOWING, None),
        (side(900, cluster="other"), side(900), State.FOREIGN, None),
        (side(900, broker="other"), side(900), State.FOREIGN, None),
        (side(900, Epoch(0, 5)), side(900), State.FOREIGN, None),
        (side(900, file_bytes=8192), side(900), State.OTHER_FILES, None),
        (side(500), side(900, begin=600), State.OVERTAKEN, None),
        (side(3000, ZERO), side(9000, ZERO, ONE, begin=8192), State.OVERTAKEN, None),
        (side(500, log=""), side(900, begin=600), State.BEHIND, None),
        (side(500), side(900, begin=600, log=""), State.BEHIND, None),
        # What the slave alone has is kept before the rest goes.
        (side(5000, ZERO), side(9000, ZERO, ONE, begin=8192), State.PARTED, 4000),
        (side(9000, ZERO, begin=4096), side(9000, ZERO, ONE), State.BEHIND, None),
    ],
)
def test_each_meeting_ends_in_a_state(slave: Side, master: Side, state: State, cut: int | None) -> None:
    verdict = judge(slave, master)
    assert (verdict.state, verdict.cut) == (state, cut)
    assert bool(verdict.reason) == bool(verdict.cure) == (state is not State.FOLLOWING)
    assert state.is_refusal == (state not in (State.FOLLOWING, State.PARTED, State.OVERTAKEN)), "it goes on by itself"


def test_an_empty_slave_takes_any_log_of_its_broker() -> None:
    assert judge(side(0, log="2" * 32, empty=True), side(900, ZERO, ONE)).state is State.FOLLOWING
    assert judge(side(0, broker="other", empty=True), side(900)).state is State.FOREIGN


def test_a_side_comes_over_the_wire_as_it_is() -> None:
    told = side(900, ZERO, ONE, begin=4, prompt=True)
    assert read_side(side_bytes(told)) == told


@pytest.mark.parametrize(
    "facts",
    [
        {"file_bytes": -1},
        {"begin": 901},
        {"begin": -1},
        {"cluster": "a\nb"},
        {"broker": "b" * 300},
        {"epochs": (ZERO, Epoch(1 << 53, 4))},
        {"epochs": (ZERO, Epoch(1, 1 << 63))},
        {"end": 1 << 63},
    ],
)
def test_a_side_that_cannot_be_is_refused(facts: dict[str, Any]) -> None:
    with pytest.raises(ProtocolError):
        read_side(side_bytes(msgspec.structs.replace(side(900), **facts)))


@given(st.binary(max_size=300))
def test_any_bytes_are_a_side_or_a_protocol_error(data: bytes) -> None:
    with contextlib.suppress(ProtocolError):
        read_side(data)
