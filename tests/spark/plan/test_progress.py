"""The offset of a streaming query survives JSON, and nothing else is taken for one."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shmq.errors import UsageError
from shmq.spark.plan.progress import Progress, progress_of
from shmq.spark.scan.stream_lag import lag_from_progress
from tests.tables.rows import every_row

KEYS = st.tuples(st.sampled_from(["orders", "%RETRY%g", "a-b_c"]), st.integers(0, 1000))
OFFSETS = st.dictionaries(KEYS, st.integers(0, 1 << 62))


@given(OFFSETS, OFFSETS, st.dictionaries(st.sampled_from(["orders", "x"]), st.integers(0, 1 << 62)))
def test_what_is_written_is_read(end: dict, start: dict, born: dict) -> None:
    whole = Progress(end, start, born)
    assert progress_of(json.loads(json.dumps(whole.to_json("broker-a"))), "broker-a") == whole


@every_row(
    ("data", "words"),
    [
        (None, "version"),
        ({"v": 2, "end": {}}, "version 2"),
        ({"v": 1}, "damaged"),
        ({"v": 1, "end": {"orders/broker-a": 1}, "from": {}, "born": {}}, "damaged"),
        ({"v": 1, "end": {"orders/broker-b/0": 1}, "from": {}, "born": {}}, "broker-b"),
        ({"v": 1, "end": [], "from": {}, "born": {}}, "damaged"),
    ],
)
def test_what_is_no_offset_of_ours_is_refused(data: object, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        progress_of(data, "broker-a")


def test_a_lag_is_what_is_visible_less_what_was_read() -> None:
    done = Progress({("a", 0): 5, ("a", 1): 9}).to_json("b")
    latest = Progress({("a", 0): 15, ("a", 1): 9, ("a", 2): 2}).to_json("b")
    rate = {"description": "rate", "endOffset": 5, "latestOffset": 6}
    progress = {"sources": [rate, {"endOffset": json.dumps(done), "latestOffset": latest}]}
    for form in (progress, json.dumps(progress)):
        (lag,) = lag_from_progress(form)
        assert (lag.broker, lag.total, lag.least, lag.most, lag.average) == ("b", 12, 0, 10, 4.0)
        assert lag.queues == {("a", 0): 10, ("a", 1): 0, ("a", 2): 2} and lag.oldest_age_ms is None
    assert lag_from_progress({"sources": [{"endOffset": done, "latestOffset": None}]}) == []
