"""Routes: which queues may be written and read, where, and what users call them."""

import json
from typing import Any

import pytest

from shmq.addresses import Address
from shmq.client.wire_tcp.route import QueueNumbers, decode_route, route_of_default
from shmq.errors import ProtocolError, UsageError
from shmq.protocol.dialect import MessageQueue


def body(*queues: tuple[str, int, int, int], brokers: dict[str, dict[str, str]] | None = None) -> bytes:
    """A route as a name server writes it: (broker, read queues, write queues, perm)."""
    known = brokers if brokers is not None else {name: {"0": f"{name}:10911"} for name, *_ in queues}
    data: dict[str, Any] = {
        "brokerDatas": [{"brokerName": n, "brokerAddrs": a, "cluster": "c"} for n, a in known.items()],
        "queueDatas": [
            {"brokerName": name, "readQueueNums": read, "writeQueueNums": write, "perm": perm, "topicSysFlag": 0}
            for name, read, write, perm in queues
        ],
    }
    return json.dumps(data, separators=(",", ":")).encode()


def test_queues_are_listed_as_rocketmq_sorts_them() -> None:
    route = decode_route("T", body(("b", 1, 2, 6), ("a", 2, 1, 6)))
    assert [(queue.brokerName, queue.queueId) for queue in route.writable] == [("a", 0), ("b", 0), ("b", 1)]
    assert [(queue.brokerName, queue.queueId) for queue in route.readable] == [("a", 0), ("a", 1), ("b", 0)]
    assert route.master("a") == Address("a", 10911)


def test_both_ways_of_writing_broker_ids_are_read() -> None:
    odd = body(("a", 1, 1, 6)).replace(b'"0":', b"0:")
    assert decode_route("T", odd) == decode_route("T", body(("a", 1, 1, 6)))


def test_perm_and_a_missing_master_take_queues_away() -> None:
    brokers = {"a": {"0": "a:1"}, "b": {"0": "b:1"}, "c": {"1": "c:1"}}
    route = decode_route("T", body(("a", 1, 1, 4), ("b", 1, 1, 2), ("c", 1, 1, 6), brokers=brokers))
    assert {queue.brokerName for queue in route.writable} == {"b"}
    assert [queue.brokerName for queue in route.permitted] == ["b", "c"], "what is placed by a hash must not move"
    assert {queue.brokerName for queue in route.readable} == {"a", "c"}
    assert route.reader("c") == Address("c", 1)


def test_a_pull_goes_where_the_broker_suggests_if_that_is_there() -> None:
    route = decode_route("T", body(("a", 1, 1, 6), brokers={"a": {"0": "m:1", "1": "s:1"}}))
    assert [route.reader("a", number) for number in (0, 1, 7)] == [Address("m", 1), Address("s", 1), Address("m", 1)]
    assert route.reader("z") is None


@pytest.mark.parametrize(
    "data",
    [
        b"nonsense",
        body(("a", 1 << 20, 1, 6)),
        body(("a", 1, -1, 6)),
        body(("a", 1, 1, 6), brokers={"a": {"0": "no-port"}}),
        b'{"brokerDatas":[{"brokerName":7}]}',
    ],
)
def test_an_impossible_route_is_an_error_not_a_crash(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_route("T", data)


def test_an_unknown_topic_is_written_to_few_queues_of_the_default_topic() -> None:
    default = decode_route("TBW102", body(("a", 8, 8, 7), ("b", 8, 2, 7)))
    route = route_of_default("fresh", default)
    assert {queue.topic for queue in route.writable} == {"fresh"}
    assert [(queue.brokerName, queue.queueId) for queue in route.writable] == [
        *(("a", number) for number in range(4)),
        *(("b", number) for number in range(2)),
    ]
    assert route.readable == ()


def test_with_one_broker_a_queue_number_is_the_queue_id() -> None:
    numbers = QueueNumbers()
    numbers.learn(decode_route("T", body(("a", 4, 4, 6))).brokers)
    queue = MessageQueue("a", 3, "T")
    assert numbers.number(queue) == 3 and numbers.queue("T", 3) == queue


def test_queue_numbers_of_several_brokers_and_of_a_retry_topic_differ_and_lead_back() -> None:
    numbers = QueueNumbers()
    numbers.learn(decode_route("T", body(("b", 2, 2, 6), ("a", 2, 2, 6))).brokers)
    queues = [MessageQueue(name, number, topic) for topic in ("T", "%RETRY%g") for name in "ab" for number in (0, 1)]
    made = [numbers.number(queue, retry=queue.topic != "T") for queue in queues]
    assert len(set(made)) == len(queues) and made[:2] == [0, 1]
    assert [numbers.queue("T", number, group="g") for number in made] == queues
    numbers.learn(decode_route("T", body(("0-new", 2, 2, 6), ("a", 2, 2, 6))).brokers)
    assert numbers.number(queues[0]) == 0


def test_a_number_of_no_broker_is_refused() -> None:
    with pytest.raises(UsageError, match="no queue 70000"):
        QueueNumbers().queue("T", 70_000)
