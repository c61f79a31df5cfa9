"""Average allocation: every queue is read once, by the members there are."""

from hypothesis import given
from hypothesis import strategies as st

from shmq.protocol.allocation import allocate

MEMBERS = st.sets(st.text("abc0123", min_size=1, max_size=4), min_size=1, max_size=12)


@given(MEMBERS, st.integers(0, 40))
def test_the_shares_of_all_members_are_all_queues_exactly_once(members: set[str], count: int) -> None:
    queues = list(range(count))
    shares = [allocate(members, member, queues) for member in sorted(members)]
    assert [queue for share in shares for queue in share] == queues


@given(MEMBERS, st.integers(0, 40))
def test_shares_differ_by_one_at_most_and_smaller_ids_have_the_larger(members: set[str], count: int) -> None:
    sizes = [len(allocate(members, member, range(count))) for member in sorted(members)]
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)


def test_the_answer_does_not_depend_on_the_order_of_the_list() -> None:
    assert allocate(["c", "a", "b"], "b", range(8)) == allocate(["a", "b", "c", "b"], "b", range(8)) == [3, 4, 5]


def test_a_stranger_and_a_surplus_member_read_nothing() -> None:
    assert allocate(["a"], "x", range(8)) == []
    assert allocate(["a", "b", "c"], "c", range(2)) == []
