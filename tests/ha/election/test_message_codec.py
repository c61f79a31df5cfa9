"""What members of an election say to each other survives the way, and nothing else is believed."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shmq.daemon.ha.election.effects import (
    HandOverWanted,
    Leaving,
    Left,
    Message,
    OldEpoch,
    Position,
    Promise,
    PromiseWanted,
)
from shmq.daemon.ha.election.message_codec import message_bytes, read_message
from shmq.daemon.ha.stream import MESSAGE_BYTES_MAX
from shmq.errors import ProtocolError
from tests.tables.rows import every_row

NUMBER = st.integers(0, (1 << 63) - 1)
EPOCH = st.integers(0, (1 << 53) - 1)
MESSAGES = st.one_of(
    st.builds(Position, EPOCH, NUMBER, NUMBER),
    st.builds(OldEpoch, EPOCH, st.booleans()),
    *(st.builds(kind, EPOCH, NUMBER) for kind in (Promise, PromiseWanted)),
    *(st.builds(kind, EPOCH) for kind in (Leaving, Left, HandOverWanted)),
)


@given(MESSAGES)
def test_a_message_comes_as_it_was_said(message: Message) -> None:
    data = message_bytes(message)
    assert len(data) <= MESSAGE_BYTES_MAX
    assert read_message(data) == message and type(read_message(data)) is type(message)


@given(st.binary(max_size=80) | st.text(max_size=80).map(str.encode))
def test_any_bytes_are_a_message_or_refused(data: bytes) -> None:
    try:
        read_message(data)
    except ProtocolError:
        return


@every_row(
    "values",
    [
        {"kind": "Promise", "epoch": 1},
        {"kind": "Promise", "epoch": 1, "number": 2, "more": 3},
        {"kind": "Promise", "epoch": "1", "number": 2},
        {"kind": "Promise", "epoch": True, "number": 2},
        {"kind": "Promise", "epoch": -1, "number": 2},
        {"kind": "Promise", "epoch": 1 << 53, "number": 2},
        {"kind": "Promise", "epoch": 1, "number": 1 << 63},
        {"kind": "OldEpoch", "epoch": 1 << 53, "is_leader": True},
        {"kind": "OldEpoch", "epoch": 1, "is_leader": 1},
        {"kind": "Promote", "epoch": 1},
        [],
    ],
)
def test_what_is_no_message_is_refused(values: object) -> None:
    with pytest.raises(ProtocolError):
        read_message(json.dumps(values).encode())
