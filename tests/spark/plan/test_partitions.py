"""Partition planning: each offset once, in order, in about equal tasks, and few where there is little to read."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from shmq.spark.access.broker import Range
from shmq.spark.plan.partitions import Sized, plan

SIZED = st.builds(
    lambda topic, queue, start, count, size: Sized(Range(topic, queue, 0, start, start + count), count * size),
    st.sampled_from("ab"),
    st.integers(0, 30),
    st.integers(0, 1 << 40),
    st.integers(1, 100_000),
    st.integers(91, 100_000),
)


def same_queue(sized: Sized) -> tuple[str, int]:
    return sized.range.topic, sized.range.queue_id


@given(
    st.lists(SIZED, max_size=30, unique_by=same_queue),
    st.integers(1 << 20, 1 << 30),
    st.integers(0, 50),
    st.integers(1, 8),
)
def test_every_offset_is_in_one_partition_and_queues_are_in_order(
    sized: list[Sized], bytes_max: int, wanted: int, slots: int
) -> None:
    partitions = plan(sized, bytes_max=bytes_max, wanted=wanted, slots=slots)
    assert partitions == plan(sized, bytes_max=bytes_max, wanted=wanted, slots=slots)
    pieces = [each for part in partitions for each in part]
    for part in partitions:
        assert part == tuple(sorted(part, key=lambda each: (each.topic, each.queue_id, each.start)))
    for whole in sized:
        own = sorted((p for p in pieces if (p.topic, p.queue_id) == same_queue(whole)), key=lambda each: each.start)
        assert own[0].start == whole.range.start and own[-1].end == whole.range.end
        assert all(left.end == right.start for left, right in itertools.pairwise(own))
        assert all(each.count > 0 for each in own)


def test_a_large_range_is_cut_and_small_ones_share_a_task() -> None:
    large = Sized(Range("a", 0, 0, 0, 1_000_000), 1 << 30)
    assert len(plan([large], bytes_max=128 << 20, slots=2)) == 8
    small = [Sized(Range("a", queue, 0, 0, 10), 1000) for queue in range(10_000)]
    assert len(plan(small, bytes_max=256 << 20, slots=2)) <= 4
    assert plan([], bytes_max=1 << 20) == []


def test_as_many_partitions_as_are_wanted_as_far_as_there_are_messages() -> None:
    one = [Sized(Range("a", 0, 0, 5, 105), 100_000)]
    assert len(plan(one, bytes_max=256 << 20, wanted=7, slots=1)) == 7
    assert len(plan([Sized(Range("a", 0, 0, 0, 3), 300)], bytes_max=256 << 20, wanted=7, slots=1)) == 3


def test_tasks_are_about_equal_though_queues_are_not() -> None:
    sized = [Sized(Range("a", queue, 0, 0, 1000 * (queue + 1)), (queue + 1) << 20) for queue in range(16)]
    partitions = plan(sized, bytes_max=256 << 20, wanted=4, slots=4)
    loads = [sum(each.count for each in part) for part in partitions]
    assert max(loads) < 1.5 * min(loads)
