"""The figure of consumer offsets measures what it says."""

from benchmarks import features, offsets


def test_it_is_one_of_the_features() -> None:
    assert "offsets_persist" in {workload.name for workload in features.workloads()}


def test_the_progress_of_many_groups_is_timed() -> None:
    assert offsets.offsets_persist(0.001)["ms"] > 0
