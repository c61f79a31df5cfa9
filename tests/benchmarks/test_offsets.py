"""The figure of consumer offsets measures what it says."""

from benchmarks.workloads import offsets


def test_the_progress_of_many_groups_is_timed() -> None:
    assert offsets.offsets_persist(0.001)["ms"] > 0
