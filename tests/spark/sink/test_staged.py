"""Rows written once, as Spark's tasks and driver do it, over a real broker: tried again, killed, over TCP."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow
import pytest

from shmq.errors import MessageTooLarge, ShmqError, TransactionError, UsageError
from shmq.spark.sink.connection import find_broker
from shmq.spark.sink.options import SinkOptions, parse_sink_options
from shmq.spark.sink.plain import send_all
from shmq.spark.sink.staged import StagedRows, Task, check_staging, commit_batch, drop_batch, stage_task
from tests.spark.stored_rows import stored

Eventually = Callable[..., Any]
GUARANTEES = ("transactional", "at_least_once")


@pytest.fixture(scope="module")
def staged_broker() -> Iterator[Any]:
    from shmq.testing import Broker

    with Broker(tcp=True, file_bytes=4 << 20) as running:
        yield running


def options(broker: Any, topic: str, guarantee: str, *, transport: str = "shm", **more: str) -> SinkOptions:
    url = broker.url if transport == "shm" else f"rocketmq://{broker.name_server}"
    texts = {"store": url, "topic": topic, "guarantee": guarantee, "batchBytes": "4k", "timeoutMs": "60000"}
    return parse_sink_options({**texts, **more})


def reached(choice: SinkOptions) -> Any:
    return find_broker(choice)[0]


def batches(first: int, count: int, **columns: Any) -> Iterator[Any]:
    for start in range(first, first + count, 100):
        numbers = range(start, min(start + 100, first + count))
        yield pyarrow.record_batch({"body": [str(number) for number in numbers], **columns})


def task(choice: SinkOptions, number: int, rows: Iterator[Any], writer: str = "w", batch: int = 0) -> StagedRows:
    return stage_task(reached(choice), choice, ("body",), Task(writer, batch, number), rows)


def numbers(broker: Any, topic: str) -> list[int]:
    return sorted(int(row.body) for row in stored(broker, topic))


WORDS = ("", "a b", " a", "a ", "\u3000", "\u3000a", "a\u00a0b", "a\0b", "a\x01", "a\x02b", "a\x7f", "a\x85", "a\tb")
WORDS += ("*", "a|b", "REDIRECT", "w" * 40_000)
PAIRS = pyarrow.map_(pyarrow.string(), pyarrow.string())
COLUMNS: dict[str, Callable[[str], tuple[str, Any]]] = {
    "tag": lambda word: ("tag", [word]),
    "keys": lambda word: ("keys", [["first", word]] if word else [[]]),
    "message group": lambda word: ("message_group", [word]),
    "topic": lambda word: ("topic", [word]),
    "name of a property": lambda word: ("properties", pyarrow.array([[(word or "n", "x")]], PAIRS)),
    "value of a property": lambda word: ("properties", pyarrow.array([[("name", word or "x")]], PAIRS)),
}


def refusal(send: Callable[..., object], *given: Any) -> tuple[type | None, str]:
    try:
        send(*given)
    except MessageTooLarge:
        return MessageTooLarge, ""  # how much room there is differs by the ids that are added
    except ShmqError as error:
        return type(error), str(error)
    return None, ""


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_every_guarantee_takes_the_same_words_and_refuses_the_others_in_the_same_words(
    staged_broker: Any, transport: str
) -> None:
    once, plain = (options(staged_broker, "words", each, transport=transport) for each in GUARANTEES)
    different, number = {}, 0
    for kind, column in COLUMNS.items():
        for word in WORDS:
            name, values = column(word)
            batch, number = pyarrow.record_batch({"body": ["x"], name: values}), number + 1
            mine = Task(f"words-{transport}", number, 0)
            said = refusal(stage_task, reached(once), once, ("body", name), mine, iter([batch]))
            other = refusal(send_all, reached(plain), plain, ("body", name), iter([batch]))
            if said != other:
                different[kind, word[:20]] = said, other
    assert not different


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_transactional_batch_is_seen_whole_and_once(staged_broker: Any, transport: str) -> None:
    topic = f"whole-{transport}"
    choice = options(staged_broker, topic, "transactional", transport=transport)
    check_staging(reached(choice), choice)
    failed = task(choice, 0, batches(0, 150), writer=topic)
    done = [task(choice, 0, batches(0, 250), writer=topic), task(choice, 1, batches(250, 250), writer=topic)]
    assert stored(staged_broker, topic) == [] and failed.rows == 150
    commit_batch(reached(choice), choice, done)
    assert numbers(staged_broker, topic) == list(range(500))
    again = [task(choice, 0, batches(0, 100), writer=topic), task(choice, 1, batches(0, 5), writer=topic)]
    assert all(each.is_there for each in again)
    commit_batch(reached(choice), choice, again)
    assert numbers(staged_broker, topic) == list(range(500))


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_an_idempotent_task_that_is_tried_again_adds_nothing_in_any_order(staged_broker: Any, transport: str) -> None:
    topic = f"once-{transport}"
    choice = options(staged_broker, topic, "idempotent", transport=transport)
    task(choice, 0, batches(0, 300), writer=topic)
    assert numbers(staged_broker, topic) == list(range(300))
    task(choice, 0, iter(list(batches(0, 300))[::-1]), writer=topic)
    task(choice, 1, batches(300, 10), writer=topic)
    assert numbers(staged_broker, topic) == list(range(310))
    with pytest.raises(UsageError, match="not the same"):
        task(choice, 0, batches(0, 299), writer=topic)
    assert numbers(staged_broker, topic) == list(range(310))


def test_a_task_that_fails_and_a_batch_that_is_aborted_leave_nothing(staged_broker: Any) -> None:
    choice = options(staged_broker, "aborted", "transactional")

    def breaking() -> Iterator[Any]:
        yield from batches(0, 200)
        raise RuntimeError("the source broke")

    with pytest.raises(RuntimeError):
        task(choice, 0, breaking(), writer="aborted")
    done = task(choice, 0, batches(0, 200), writer="aborted")
    drop_batch(reached(choice), choice, "aborted", 0, None)
    with pytest.raises(TransactionError, match="not staged any more"):
        commit_batch(reached(choice), choice, [done])
    assert stored(staged_broker, "aborted") == []


def test_columns_arrive_as_with_any_other_guarantee(staged_broker: Any) -> None:
    with staged_broker.connect() as mq:
        mq.admin.create_topic("full", queues=4)
    choice = options(staged_broker, "full", "transactional")
    columns = ("body", "tag", "keys", "properties", "message_group", "queue_id")
    batch = pyarrow.record_batch(
        {
            "body": ["a", "b", "c"],
            "tag": ["t", None, None],
            "keys": ["k", None, None],
            "properties": pyarrow.array([[("p", "1")], None, None], pyarrow.map_(pyarrow.string(), pyarrow.string())),
            "message_group": [None, "g", "g"],
            "queue_id": pyarrow.array([3, None, None], pyarrow.int32()),
        }
    )
    done = stage_task(reached(choice), choice, columns, Task("full", 0, 0), iter([batch]))
    commit_batch(reached(choice), choice, [done])
    a, b, c = sorted(stored(staged_broker, "full"))
    assert (a.queue_id, a.tag, a.keys, a.properties["p"]) == (3, "t", ["k"], "1")
    assert b.queue_id == c.queue_id and b.tag is None


def test_a_broker_that_cannot_stage_is_named_on_the_driver(staged_broker: Any) -> None:
    choice = options(staged_broker, "x", "transactional", writerId="w9", batchId="5")
    commit_batch(reached(choice), choice, [task(choice, 0, batches(0, 1), writer="w9", batch=5)])
    check_staging(reached(choice), choice)
    over = options(staged_broker, "x", "transactional", writerId="w9", batchId="4")
    with pytest.raises(TransactionError, match="batch 5, batch 4 is over"):
        check_staging(reached(over), over)


@pytest.mark.parametrize("victim", ["bridge", "keeper"])
def test_killed_daemons_cost_no_row_and_double_none(staged_broker: Any, victim: str) -> None:
    topic = f"killed-{victim}"
    choice = options(staged_broker, topic, "transactional", batchBytes="2k")
    stop = threading.Event()

    def kill() -> None:
        for pause in (0.4, 0.4, 0.8, 1.6, 3.2):  # growing: a slow machine gets on between two kills at last
            if stop.wait(pause):
                return
            process = staged_broker.processes.get(victim)
            if process is not None:
                os.kill(process.pid, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        for batch in range(4):
            first = 1000 * batch
            done = [task(choice, part, batches(first + 500 * part, 500), topic, batch) for part in range(2)]
            commit_batch(reached(choice), choice, done)
    finally:
        stop.set()
        killer.join()
    assert numbers(staged_broker, topic) == list(range(4000))
