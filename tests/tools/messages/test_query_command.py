"""`shmq query`: topics are tables, whatever form the answer has, and what is refused says the cure."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest

from shmq.testing import Broker, SharedBroker
from shmq.tools.messages import topic_tables
from tests.tools.shell import Inside, Shell, interrupt, until

DUCKDB = pytest.importorskip("duckdb", reason="duckdb is not installed: pip install -e '.[sql]'")
pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install -e '.[sql]'")


@pytest.fixture
def inside(shmq_shared_broker: SharedBroker, capfdbinary: pytest.CaptureFixture[bytes]) -> Inside:
    return Inside(shmq_shared_broker.url, capfdbinary)


@pytest.fixture
def topic(shmq_shared_broker: SharedBroker) -> Iterator[str]:
    """Six messages in two queues: four of tag fruit, one body that is no text, one that would steer a terminal."""
    name = shmq_shared_broker.named("Orders")
    with shmq_shared_broker.connect() as mq:
        mq.admin.create_topic(name, queues=2)
        for number in range(4):
            mq.send(name, b"order %d" % number, queue_id=number % 2, tag="fruit", properties={"number": str(number)})
        mq.send(name, b"\xff\x00", queue_id=0, tag="veg")
        mq.send(name, b"\x1b[2Jclear\tall", queue_id=1)
        yield name


def test_a_table_for_people(inside: Inside, topic: str) -> None:
    out = inside.ok("query", f'select tags, count(*) as n from "{topic}" group by tags order by n desc, tags').decode()
    assert [line.split() for line in out.splitlines()] == [["TAGS", "N"], ["fruit", "4"], ["veg", "1"], ["–", "1"]]


def test_a_body_cannot_steer_the_terminal(inside: Inside, topic: str) -> None:
    out = inside.ok("query", f'select body, decode(body) from "{topic}" where tags is null')
    assert b"\x1b" not in out and out.count(rb"\x1b[2Jclear\tall") == 2


def test_json_has_types_and_values(inside: Inside, topic: str) -> None:
    query = f'''select body, properties, store_timestamp as at, sum(queue_id) over () as total, 1.5 as d,
    'nan'::double as n from "{topic}" where queue_offset = 0 and queue_id = 0'''
    document = inside.json("query", "query", query)
    (row,) = document["rows"]
    assert row["body"] == "order 0" and row["properties"]["number"] == "0" and row["at"].endswith("Z")
    assert (row["total"], row["d"], row["n"]) == (0, "1.5", "nan")
    assert [column["name"] for column in document["columns"]] == list(row)
    assert document["columns"][0]["type"] == "BLOB"


def test_lines_and_csv_and_names_that_come_twice(inside: Inside, topic: str) -> None:
    query = f'select queue_id, body, queue_id from "{topic}" where queue_id = 0 order by queue_offset'
    lines = [json.loads(line) for line in inside.ok("query", query, "--jsonl").splitlines()]
    assert lines[0] == {"queue_id": 0, "body": "order 0", "queue_id_2": 0}
    assert lines[2]["body"] == {"base64": "/wA="}
    csv = inside.ok("query", query, "-o", "csv").decode().splitlines()
    assert csv[:2] == ["queue_id,body,queue_id_2", "0,order 0,0"]


def test_more_rows_than_are_fetched_at_once(inside: Inside) -> None:
    assert len(inside.ok("query", "select * from range(2500)", "-o", "csv").splitlines()) == 2501


@pytest.mark.parametrize(
    ("query", "value"),
    [
        ("select count(*) from {upper}", 6),
        ("select count(*) from {topic} a join {topic} b using (commitlog_offset)", 6),
        ("with o as (from {topic}) select count(*) from o", 6),
        ("create table t as from {topic} where tags = 'fruit'; select count(*) from t", 4),
        ("select sum(fruit) from (pivot {topic} on tags using count(*) group by queue_id)", 4),
        ("select count(*) from {topic} where tags = 'fruit' and body <> 'order 1'::blob and queue_offset < 2", 3),
        ("select count(body) from {topic} where keys is null and properties['number'] = '3'", 1),
        ("select count(*) from (select queue_id from {topic} order by commitlog_offset desc limit 3)", 3),
    ],
)
def test_topics_are_tables_like_others(inside: Inside, topic: str, query: str, value: int) -> None:
    names = {"topic": f'"{topic}"', "upper": f'"{topic.upper()}"'}
    (row,) = inside.json("query", "query", query.format(**names))["rows"]
    assert list(row.values()) == [value]


def test_retry_and_dead_letter_topics(inside: Inside, shmq_shared_broker: SharedBroker, topic: str) -> None:
    group = shmq_shared_broker.named("billing")
    with shmq_shared_broker.connect() as mq, mq.subscribe(topic, group=group, tags="veg", attempts_max=1) as consumer:
        (message,) = consumer.receive(1, 20.0)
        message.nack(after=0)
        until(lambda: mq.admin.dlq(group))
        (row,) = inside.json("query", "query", f'select octet_length(body) as n from "%DLQ%{group}"')["rows"]
    assert row == {"n": 2}


def test_since_and_until_bound_every_topic(inside: Inside, topic: str) -> None:
    query = f'select count(*) as n from "{topic}" a full join "{topic}" b using (commitlog_offset)'
    for words, count in ((["--since", "-1h"], 6), (["--until", "-1h"], 0), (["--since", "2040-01-01"], 0)):
        assert inside.json("query", "query", query, *words)["rows"] == [{"n": count}]


def test_a_query_from_stdin_and_to_a_file(shmq_shared_broker: SharedBroker, topic: str, tmp_path: Path) -> None:
    shell, path = Shell(shmq_shared_broker.url), tmp_path / "orders.parquet"
    shell.ok("query", "-", stdin=f"copy (from \"{topic}\") to '{path}'".encode())
    assert json.loads(shell.ok("query", f"select count(*) as n from '{path}'", "--jsonl")) == {"n": 6}


@pytest.mark.parametrize(
    ("query", "status", "error", "hint"),
    [
        ("selct 1", 64, "syntax error", "quote names"),
        ("select bdy from {topic}", 64, "bdy", "describe TOPIC"),
        ("select cast('x' as int)", 64, "Could not convert", "what is wrong"),
        ("select * from {topic}x", 1, "does not exist on broker", "did you mean"),
        ("select * from inside", 1, 'topic "inside" does not exist', "shmq topic list"),
        ("  ", 64, "there is no query", "shmq query"),
    ],
)
def test_what_is_refused_says_the_cure(
    inside: Inside, topic: str, query: str, status: int, error: str, hint: str
) -> None:
    quoted = query.replace("{topic}x", f'"{topic}x"').replace("{topic}", f'"{topic}"')
    document = inside.fails(status, "query", quoted)
    assert error in document["error"] and hint in document["hint"]


def test_two_topics_that_differ_in_case_are_not_mixed_up(
    inside: Inside, shmq_shared_broker: SharedBroker, topic: str
) -> None:
    with shmq_shared_broker.connect() as mq:
        mq.send(topic.lower(), b"another")
    assert inside.json("query", "query", f'select count(*) n from "{topic.lower()}"')["rows"] == [{"n": 1}]
    assert inside.json("query", "query", f'select count(*) n from "{topic}"')["rows"] == [{"n": 6}]
    document = inside.fails(64, "query", f'select * from "{topic}", "{topic.lower()}"')
    assert "one name in SQL" in document["error"]


def test_a_damaged_message_ends_with_65_and_its_place() -> None:
    with Broker(flush="sync") as broker:
        with broker.connect() as mq:
            mq.admin.create_topic("orders", queues=1)
            sent = [mq.send("orders", body) for body in (b"before", b"damaged")]
        with (broker.store / "commitlog" / f"{0:020d}").open("r+b") as file:
            file.seek(sent[1].log_position + 88)
            file.write(b"D")
        document = Shell(broker.url).fails(65, "query", "select sum(octet_length(body)) from orders")
    assert "queue 0, offset 1" in document["error"] and document["type"] == "CorruptionError"


@pytest.mark.parametrize("error", [RuntimeError("Query interrupted"), duckdb.InterruptException("Interrupted!")])
def test_ctrl_c_is_one_however_duckdb_says_it(error: Exception) -> None:
    with pytest.raises(KeyboardInterrupt), topic_tables._heeding_interrupts():
        raise error


def test_ctrl_c_ends_with_130(shmq_shared_broker: SharedBroker) -> None:
    query = "select 'begun'; select count(*) from range(1000000) a, range(1000000) b where a.range * b.range % 7 = 3"
    with Shell(shmq_shared_broker.url).start("query", query, "-v") as process:
        assert process.stderr is not None and b"DuckDB" in process.stderr.readline()
        assert interrupt(process).status == 130


def test_a_broker_over_tcp_is_refused_with_the_cure(inside: Inside) -> None:
    document = inside.fails(64, "query", "select 1", "-u", "rocketmq://127.0.0.1:1")
    assert "over TCP" in document["error"] and "shmq://NAME" in document["hint"]


def test_without_duckdb_the_error_names_the_extra(inside: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    monkeypatch.delitem(sys.modules, "shmq.tools.messages.topic_tables", raising=False)
    document = inside.fails(64, "query", "select 1")
    assert document["hint"] == "pip install 'shmq[sql]'"


def test_the_command_itself_loads_no_duckdb() -> None:
    program = "import sys, shmq.tools.messages.query_command\nprint('duckdb' in sys.modules, 'pyarrow' in sys.modules)"
    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, env=os.environ)
    assert done.stdout.split() == ["False", "False"]
