"""DuckDB, polars and pandas read what `Connection.arrow` returns."""

from collections.abc import Iterator

import pytest

import shmq
from shmq.testing import SharedBroker

pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install -e '.[arrow]'")

MESSAGES = 20_000
BODY_BYTES = sum(number % 100 for number in range(MESSAGES))


@pytest.fixture(scope="module")
def filled(_shmq_session_broker: shmq.testing.Broker) -> Iterator[tuple[shmq.Connection, str]]:
    """A topic with a few batches of messages in each of two queues."""
    name = SharedBroker(_shmq_session_broker, "libraries").named("numbers")
    with _shmq_session_broker.connect() as mq:
        mq.admin.create_topic(name, queues=2)
        for begin in range(0, MESSAGES, 100):
            mq.send_batch(name, [bytes(number % 100) for number in range(begin, begin + 100)])
        yield mq, name


def test_duckdb(filled: tuple[shmq.Connection, str]) -> None:
    duckdb = pytest.importorskip("duckdb", reason="duckdb is not installed: pip install -e '.[sql]'")
    mq, name = filled
    with duckdb.connect() as database:
        database.register("topic", mq.arrow(name))
        query = "select count(*), sum(octet_length(body)), count(distinct queue_id) from topic"
        assert database.execute(query).fetchall() == [(MESSAGES, BODY_BYTES, 2)]


def test_polars(filled: tuple[shmq.Connection, str]) -> None:
    polars = pytest.importorskip("polars", reason="polars is not installed: pip install polars")
    mq, name = filled
    frame = polars.from_arrow(mq.arrow(name, columns=["queue_id", "body", "store_timestamp"]))
    assert frame.height == MESSAGES and frame["body"].bin.size().sum() == BODY_BYTES
    assert frame["store_timestamp"].dtype.time_zone == "UTC"


def test_pandas(filled: tuple[shmq.Connection, str]) -> None:
    pytest.importorskip("pandas", reason="pandas is not installed: pip install pandas")
    mq, name = filled
    frame = mq.arrow(name, columns=["queue_offset", "body"]).read_pandas()
    assert len(frame) == MESSAGES and frame["body"].str.len().sum() == BODY_BYTES
