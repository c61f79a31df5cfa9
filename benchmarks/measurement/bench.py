"""Measures shmq itself, through its public API only: throughput, half round trips, many topics.

Each measurement is given the URL of a running broker. Comparisons with other products are in `benchmarks/`.

    throughput   n producers -> 1 consumer    send() each, iterate, ack() each; or send_batch() and receive(max)
    latency      ping -> pong -> ping         half of each round trip; bodies copied, or written and read in place
    many_topics  1 producer                   sends to one topic against sends spread over all of them

(1) The warm-up checks every body, in any order; the timed part checks count, first and last.
(2) Every measurement uses topics of its own, so what was stored before is not read again.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

import shmq
from shmq.measurement.measure import (
    Meet,
    Receive,
    Role,
    Send,
    check_body,
    clock,
    half_trips_us,
    messages_per_second,
    numbered_body,
    ping,
    plain_body,
    pong,
    run_roles,
)

BLOCK_BYTES = 512  # unit of st_blocks, whatever the file system
GROUP = "bench"
WARM_UP_MESSAGES = 2000
WARM_UP_TRIPS = 500
RECEIVE_MAX = 512
RECEIVE_SECONDS = 1.0


@dataclass(frozen=True)
class Plan:
    """One measurement: where, and how much of what."""

    url: str | None
    topic: str
    size: int
    count: int  # messages of one producer, or round trips
    batch: int = 1  # bodies of one send_batch; 1 means send()
    producers: int = 1
    spinning: bool = False
    in_place: bool = False
    pause_ns: int = 0


def _fresh_topic() -> str:
    return f"bench-{secrets.token_hex(4)}"


# ---- throughput ------------------------------------------------------------------------------------------


def _send_each(send: Callable[..., object], topic: str, bodies: list[bytes], plain: bytes, count: int) -> None:
    send(topic, bodies[0])
    for _ in range(count - 2):
        send(topic, plain)
    send(topic, bodies[1])


def _send_many(send: Callable[..., object], topic: str, bodies: list[bytes], plan: Plan) -> None:
    plain = [plain_body(plan.size)] * plan.batch
    send(topic, [bodies[0], *plain[1:]])
    for _ in range(plan.count // plan.batch - 2):
        send(topic, plain)
    send(topic, [*plain[1:], bodies[1]])


def _produce(meet: Meet, plan: Plan) -> tuple[int, float]:
    bodies = [numbered_body(0, plan.size), numbered_body(plan.count - 1, plan.size)]
    with shmq.connect(plan.url) as mq, mq.producer() as producer:
        meet()  # the consumer is there
        for number in range(WARM_UP_MESSAGES):
            producer.send(plan.topic, numbered_body(number, plan.size))
        meet()
        used, started = time.process_time_ns(), clock()
        if plan.batch > 1:
            _send_many(producer.send_batch, plan.topic, bodies, plan)
        else:
            _send_each(producer.send, plan.topic, bodies, plain_body(plan.size), plan.count)
        share = (time.process_time_ns() - used) / (clock() - started)
        meet()
    return started, share


def _take_each(messages: Iterator[Any], count: int) -> bytes:
    body = b""
    for message in islice(messages, count):
        body = message.body
        message.ack()
    return body


def _take_polled(poll: Callable[[int, float], list[Any]], count: int) -> bytes:
    body = b""
    while count > 0:
        messages = poll(RECEIVE_MAX, RECEIVE_SECONDS)
        for message in messages:
            body = message.body
        count -= len(messages)
    return body


def _warm_up(messages: Iterator[Any], plan: Plan) -> None:
    expected = [numbered_body(number, plan.size) for number in range(WARM_UP_MESSAGES)] * plan.producers
    received = []
    for message in islice(messages, len(expected)):
        received.append(message.body)
        message.ack()  # of no consequence to a pull consumer, which commits its positions
    if sorted(received) != sorted(expected):
        raise ValueError("the warm-up received other messages than it sent")


def _consume(meet: Meet, plan: Plan) -> tuple[int, float]:
    with shmq.connect(plan.url) as mq:
        if plan.batch > 1:
            mq.admin.create_topic(plan.topic)
            with mq.pull_consumer(plan.topic) as pull:
                messages: Iterator[shmq.Message] = chain.from_iterable(
                    iter(lambda: pull.poll(RECEIVE_MAX, RECEIVE_SECONDS), None)
                )
                taken = _take_all(meet, plan, messages, lambda count: _take_polled(pull.poll, count))
                pull.commit(group=GROUP)
                return taken
        with mq.subscribe(plan.topic, group=GROUP) as subscription:
            messages = iter(subscription)
            return _take_all(meet, plan, messages, lambda count: _take_each(messages, count))


def _take_all(meet: Meet, plan: Plan, messages: Iterator[Any], take: Callable[[int], bytes]) -> tuple[int, float]:
    sent = [numbered_body(0, plan.size), plain_body(plan.size), numbered_body(plan.count - 1, plan.size)]
    meet()
    _warm_up(messages, plan)
    meet()
    used, started = time.process_time_ns(), clock()
    first = take(1) if plan.batch == 1 else b""
    last = take(plan.count * plan.producers - (plan.batch == 1))
    ended = clock()
    share = (time.process_time_ns() - used) / (ended - started)
    if plan.batch == 1:
        check_body(first, sent)
    check_body(last, sent)
    meet()
    return ended, share


def throughput(
    url: str | None = None, *, producers: int = 1, count: int = 1_000_000, size: int = 256, batch: int = 1
) -> dict[str, float]:
    """Measure messages per second from `producers` processes to one consumer process.

    Returns:
        rate (messages/s), bytes (bodies, bytes/s), producer and consumer (shares of one processor).
    """
    each = count // producers
    each -= each % batch
    if each < 2 * batch:
        raise shmq.UsageError(f"{count} messages are too few", hint=f"at least {2 * batch * producers}")
    plan = Plan(url, _fresh_topic(), size, each, batch=batch, producers=producers)
    *made, taken = run_roles([*(Role(_produce, (plan,)) for _ in range(producers)), Role(_consume, (plan,))])
    rate = messages_per_second(each * producers, [started for started, _ in made], taken[0])
    share = sum(share for _, share in made) / producers
    return {"rate": rate, "bytes": rate * size, "producer": share, "consumer": taken[1]}


# ---- latency ------------------------------------------------------------------------------------------


def _sender(producer: Any, topic: str, plan: Plan) -> Send:
    send, reserve, size = producer.send, producer.reserve, plan.size

    def send_copy(body: bytes) -> None:
        send(topic, body)

    def send_in_place(body: bytes) -> None:
        with reserve(topic, size) as slot:
            slot.view[:] = body

    return send_in_place if plan.in_place else send_copy


def _receiver(subscription: Any, plan: Plan) -> Receive:
    messages, take = iter(subscription), subscription.receive

    def next_message() -> Any:
        if not plan.spinning:
            return next(messages)
        while not (received := take(1)):
            pass
        return received[0]

    def receive_copy() -> Any:
        message = next_message()
        message.ack()
        return message.body

    def receive_in_place() -> Any:
        message = next_message()
        message.ack()
        return message.view

    return receive_in_place if plan.in_place else receive_copy


def _ping(meet: Meet, plan: Plan) -> list[int]:
    with (
        shmq.connect(plan.url) as mq,
        mq.producer() as producer,
        mq.subscribe(f"{plan.topic}-pong", group="bench-ping") as subscription,
    ):
        send, receive = _sender(producer, f"{plan.topic}-ping", plan), _receiver(subscription, plan)
        meet()
        for number in range(min(WARM_UP_TRIPS, plan.count)):
            send(numbered_body(number, plan.size))
            check_body(receive(), [numbered_body(number, plan.size)])
        times = ping(send, receive, plain_body(plan.size), plan.count, plan.pause_ns)
        meet()
    return times


def _pong(meet: Meet, plan: Plan) -> None:
    with (
        shmq.connect(plan.url) as mq,
        mq.producer() as producer,
        mq.subscribe(f"{plan.topic}-ping", group="bench-pong") as subscription,
    ):
        send, receive = _sender(producer, f"{plan.topic}-pong", plan), _receiver(subscription, plan)
        meet()
        for number in range(min(WARM_UP_TRIPS, plan.count)):
            check_body(receive(), [numbered_body(number, plan.size)])
            send(numbered_body(number, plan.size))
        pong(send, receive, plain_body(plan.size), plan.count)
        meet()


def latency(
    url: str | None = None,
    *,
    trips: int = 20_000,
    size: int = 256,
    spinning: bool = False,
    in_place: bool = False,
    pause_us: int = 0,
) -> dict[str, float]:
    """Measure half round trips between two processes, in microseconds.

    Args:
        spinning: receive(1) in a loop instead of iterating, which sleeps when nothing comes.
        in_place: bodies are written into a reserved slot and read through `view`, not copied.
        pause_us: wait so long before each ping, so that the receiver is really asleep.

    Returns:
        p50, p90, p99, p99.9 and max.
    """
    plan = Plan(url, _fresh_topic(), size, trips, spinning=spinning, in_place=in_place, pause_ns=pause_us * 1000)
    times, _ = run_roles([Role(_ping, (plan,)), Role(_pong, (plan,))])
    return half_trips_us(times)


# ---- many topics ------------------------------------------------------------------------------------------


def _segment_bytes(segments: str) -> int:
    """Memory behind this broker's shared segments: blocks in use, not their length."""
    return sum(entry.stat().st_blocks * BLOCK_BYTES for entry in Path("/dev/shm").glob(segments))


def _send_round(send: Callable[..., object], topics: list[str], rounds: int) -> float:
    """Nanoseconds of one send, of `rounds` sends to each topic."""
    body = plain_body(256)
    started = clock()
    for _ in range(rounds):
        for topic in topics:
            send(topic, body)
    return (clock() - started) / (rounds * len(topics))


def many_topics(
    url: str | None = None, *, topics: int = 10_000, queues: int = 8, segments: str = "shmq.*"
) -> dict[str, float]:
    """Compare sends to one topic with sends that go round all topics and queues.

    Args:
        queues: queues of a topic; each gets a message before anything is timed.
        segments: which files of /dev/shm are the broker's.

    Returns:
        one_ns and many_ns (one send), ratio, and bytes_per_queue: what the segments grew by for each queue used.
    """
    prefix = _fresh_topic()
    names = [f"{prefix}-{number}" for number in range(topics)]
    with shmq.connect(url) as mq, mq.producer() as producer:
        for name in names:
            producer.send(name, b"creates the topic", queue_id=0)
        before = _segment_bytes(segments)
        for name in names:
            for queue_id in range(1, queues):
                producer.send(name, b"uses the queue", queue_id=queue_id)
        grown = _segment_bytes(segments) - before
        one = min(_send_round(producer.send, names[:1] * topics, 1) for _ in range(queues))
        many = min(_send_round(producer.send, names, 1) for _ in range(queues))
    return {
        "one_ns": one,
        "many_ns": many,
        "ratio": many / one,
        "bytes_per_queue": grown / (topics * (queues - 1)),
    }
