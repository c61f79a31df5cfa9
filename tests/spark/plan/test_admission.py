"""Limits of a micro-batch: kept, shared by backlog, and no queue left standing."""

from hypothesis import given
from hypothesis import strategies as st

from shmq.spark.plan.admission import UNITS_MAX, admit_bytes, admit_rows

QUEUES = st.dictionaries(
    st.tuples(st.just("orders"), st.integers(0, 40)),
    st.tuples(st.integers(0, 1 << 40), st.integers(0, 5000)),
    max_size=20,
)


@given(QUEUES, st.integers(1, 10_000))
def test_rows_are_limited_and_every_queue_moves(queues: dict, rows_max: int) -> None:
    start = {key: at for key, (at, _) in queues.items()}
    top = {key: at + count for key, (at, count) in queues.items()}
    ends = admit_rows(start, top, rows_max)
    assert ends.keys() == top.keys() and all(start[key] <= ends[key] <= top[key] for key in top)
    assert all(ends[key] > start[key] for key in top if top[key] > start[key])
    assert sum(ends[key] - start[key] for key in top) <= rows_max + len(queues)


def test_shares_follow_the_backlog() -> None:
    start, top = {("a", 0): 0, ("a", 1): 0, ("a", 2): 7}, {("a", 0): 900, ("a", 1): 100, ("a", 2): 7}
    assert admit_rows(start, top, 100) == {("a", 0): 90, ("a", 1): 10, ("a", 2): 7}


@given(QUEUES, st.integers(1, 1 << 20), st.integers(1, 5000))
def test_bytes_are_limited_but_for_one_message_a_queue(queues: dict, bytes_max: int, size: int) -> None:
    start = {key: at for key, (at, _) in queues.items()}
    top = {key: at + count for key, (at, count) in queues.items()}
    ends = admit_bytes(start, top, bytes_max, lambda key, first, end: [size] * (end - first))
    moved = {key: ends[key] - start[key] for key in top}
    assert all(0 <= moved[key] <= top[key] - start[key] for key in top)
    assert all(moved[key] for key in top if top[key] > start[key])
    over = sum(count * size for count in moved.values()) > bytes_max
    assert not over or any(count == 1 for count in moved.values())


@given(QUEUES, st.integers(1, 1 << 20), st.integers(1, 300), st.integers(1, 700))
def test_sizes_that_come_in_pieces_change_nothing(queues: dict, bytes_max: int, size: int, piece: int) -> None:
    start = {key: at for key, (at, _) in queues.items()}
    top = {key: at + count for key, (at, count) in queues.items()}
    whole = admit_bytes(start, top, bytes_max, lambda key, first, end: [size] * (end - first))
    pieces = admit_bytes(start, top, bytes_max, lambda key, first, end: [size] * min(piece, end - first))
    assert pieces == whole


def test_a_batch_looks_at_so_many_messages_of_a_queue_and_no_more() -> None:
    top = {("a", 0): 1 << 30}
    ends = admit_bytes({("a", 0): 0}, top, 1 << 50, lambda key, first, end: [1] * min(65_536, end - first))
    assert ends == {("a", 0): UNITS_MAX}
