"""The workload of what must be seen at once: a topic that was created, and a message that was sent with a key.

    route   CREATE_TOPIC at the broker   ──▶ GET_ROUTEINFO at the name server, again until it answers with a route
    key     SEND_MESSAGE at the broker   ──▶ QUERY_MESSAGE by key there, again until it answers with the message

Times begin with the first request. The name server is a process of its own for every broker, and each party is asked
over one connection that is there already.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable

from shmq.measurement.measure import percentile
from tests.interop.peers.wire import Frame, Wire

CREATE_TOPIC, ROUTE, SEND, QUERY = 17, 105, 310, 12
TOPICS, TOPICS_MIN = 300, 20
MESSAGES, MESSAGES_MIN = 1000, 50
TIMEOUT_NS = 60 * 10**9
FOREVER_MS = 1 << 62
_serial = itertools.count(1)


def routes(broker_address: str, name_server: str, count: int) -> dict[str, float]:
    """Create topics one after the other; returns p50_ms and p99_ms until the name server has each."""
    with Wire(broker_address) as broker, Wire(name_server) as names:
        return _percentiles(_route(broker, names, _unique("Routed")) for _ in range(count))


def keys(broker_address: str, count: int) -> dict[str, float]:
    """Send messages one after the other; returns p50_ms and p99_ms until each is found by its key."""
    topic = _unique("Keyed")
    with Wire(broker_address) as broker:
        _create(broker, topic)
        return _percentiles(_key(broker, topic, f"key{number}") for number in range(count))


def _unique(stem: str) -> str:
    return f"{stem}{next(_serial)}_{time.monotonic_ns():x}"


def _percentiles(times_ns: Iterable[int]) -> dict[str, float]:
    ordered = sorted(times_ns)
    return {"p50_ms": percentile(ordered, 0.5) / 1e6, "p99_ms": percentile(ordered, 0.99) / 1e6}


def _route(broker: Wire, names: Wire, topic: str) -> int:
    begin_ns = time.perf_counter_ns()
    _create(broker, topic)
    return _until(begin_ns, lambda: names.ask(ROUTE, {"topic": topic}))


def _create(broker: Wire, topic: str) -> None:
    fields = {"topic": topic, "readQueueNums": "4", "writeQueueNums": "4", "perm": "6", "order": "false"}
    _checked(broker.ask(CREATE_TOPIC, fields | {"defaultTopic": "TBW102", "topicFilterType": "SINGLE_TAG"}))


def _key(broker: Wire, topic: str, key: str) -> int:
    born_ms = str(int(time.time() * 1000))
    values = ("keyed", topic, "TBW102", "4", "0", "0", born_ms, "0", f"KEYS\x01{key}\x02")
    query = {"topic": topic, "key": key, "maxNum": "1", "beginTimestamp": "0", "endTimestamp": str(FOREVER_MS)}
    begin_ns = time.perf_counter_ns()
    _checked(broker.ask(SEND, dict(zip("abcdefghi", values, strict=True)), b"x" * 128))
    return _until(begin_ns, lambda: broker.ask(QUERY, query))


def _checked(reply: Frame | None) -> None:
    if reply is None or reply.code != 0:
        raise RuntimeError(f"a request was answered {reply}")


def _until(begin_ns: int, ask: Callable[[], Frame | None]) -> int:
    """Nanoseconds until something is answered with success and a body."""
    while True:
        reply, took = ask(), time.perf_counter_ns() - begin_ns
        if reply is None or took > TIMEOUT_NS:
            raise RuntimeError(f"after {took / 1e9:.1f} s the answer is {reply}")
        if reply.code == 0 and reply.body:
            return took
