"""The promises I4, I5 and I6 of docs/features.md, over both transports and through kills.

The others have tests where their subject is: I7 and I8 at readers and keeper, I9 at a slave, I10 to I12 in front of
each change a broker makes. Each test's name begins with the invariant it states.
"""

import itertools
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import shmq
from shmq.testing import Broker
from tests.conformance.conftest import Named, url_of

Eventually = Callable[..., Any]
QUEUES = 2
EACH = 150


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    """A broker of this module's own, because its daemon is killed; what it acknowledges is on disk."""
    with Broker(tcp=True, flush="sync") as broker:
        yield broker


def ways(broker: Broker) -> list[str]:
    return [url_of(broker, "shm"), url_of(broker, "tcp")]


def stored(broker: Broker, topic: str) -> dict[int, list[shmq.Message]]:
    """Every message of a topic by queue, in the order of the queue."""
    found: dict[int, list[shmq.Message]] = {queue: [] for queue in range(QUEUES)}
    with broker.connect() as mq, mq.pull_consumer(topic) as consumer:
        while messages := consumer.poll(500, wait=0.3):
            for message in messages:
                found[message.queue_id].append(message)
    return found


def offsets_of(broker: Broker, group: str) -> dict[int, int]:
    """What a group has committed, by the index of the queue."""
    with broker.connect() as mq:
        store = mq._local().wire.store
        index = store.group_find(group)
        return {row[2]: row[3] for row in store.offsets() if row[1] == index and row[3] >= 0}


def harm(broker: Broker) -> None:
    broker.kill_daemon()
    broker.start()


def test_i4_each_queue_counts_from_0_without_a_gap_and_a_send_that_began_later_lies_behind(
    broker: Broker, named: Named
) -> None:
    topic = named("order")
    with shmq.connect(ways(broker)[0], timeout=60.0) as mq:
        mq.admin.create_topic(topic, queues=QUEUES)
    receipts: dict[str, list[shmq.Receipt]] = {}

    def produce(name: str, url: str) -> None:
        with shmq.connect(url, timeout=60.0) as mq:
            receipts[name] = [mq.send(topic, f"{name} {number}".encode(), queue_id=0) for number in range(EACH)]

    threads = [
        threading.Thread(target=produce, args=(f"{way}{number}", url))
        for number in range(2)
        for way, url in enumerate(ways(broker))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    for sent in receipts.values():
        offsets = [receipt.offset for receipt in sent]
        assert offsets == sorted(set(offsets)), "one producer's sends follow each other"
    assert sorted(receipt.offset for sent in receipts.values() for receipt in sent) == list(range(4 * EACH))
    with shmq.connect(ways(broker)[0], timeout=60.0) as one, shmq.connect(ways(broker)[1], timeout=60.0) as other:
        turns = [mq.send(topic, b"in turn", queue_id=1).offset for _ in range(20) for mq in (one, other)]
    assert turns == list(range(40)), "who was acknowledged first lies in front, whichever way it came"
    before = {queue: [(m.offset, m.body) for m in messages] for queue, messages in stored(broker, topic).items()}
    harm(broker)
    after = {queue: [(m.offset, m.body) for m in messages] for queue, messages in stored(broker, topic).items()}
    assert after == before and [offset for offset, _ in after[0]] == list(range(4 * EACH))


def test_i5_every_acknowledged_message_is_delivered_to_every_group_and_only_a_kill_delivers_twice(
    broker: Broker, transport: str, named: Named, eventually: Eventually
) -> None:
    topic, url = named("once"), url_of(broker, transport)
    sent = {b"%d" % number for number in range(EACH)}
    with shmq.connect(url, timeout=60.0) as mq:
        mq.admin.create_topic(topic, queues=QUEUES)
        for body in sent:
            mq.send(topic, body)
    with shmq.connect(url, timeout=60.0) as mq, mq.subscribe(topic, group=named("calm"), start="first") as calm:
        seen = drain(calm, len(sent), eventually)
    assert seen == Counter(sent), "no process was killed"
    group = named("killed")
    victim = shmq.connect(url, timeout=60.0)
    first = drain(victim.subscribe(topic, group=group, start="first"), EACH // 2, eventually)
    victim._vanish()
    harm(broker)
    heir = shmq.connect(url_of(broker, transport), timeout=60.0)  # the ports may be others now
    with heir, heir.subscribe(topic, group=group, start="first") as subscription:
        rest = drain_until(subscription, lambda found: first.keys() | found.keys() >= sent, eventually)
    assert first.keys() | rest.keys() == sent
    assert max(rest.values()) == 1, "the kill explains one more delivery, not two"


def drain(subscription: Any, count: int, eventually: Eventually) -> Counter[bytes]:
    return drain_until(subscription, lambda found: sum(found.values()) >= count, eventually, most=count)


def drain_until(
    subscription: Any, is_enough: Callable[[Counter[bytes]], bool], eventually: Eventually, most: int = 1 << 20
) -> Counter[bytes]:
    """Acknowledge what comes until it is enough, and see that nothing comes behind it."""
    found: Counter[bytes] = Counter()

    def take() -> bool:
        for message in subscription.receive(min(32, most - sum(found.values())), 0.2):
            found[bytes(message.body)] += 1
            message.ack()
        return is_enough(found)

    eventually(take)
    return found


def test_i6_a_groups_offset_only_grows_is_never_above_what_is_durable_and_a_kill_never_moves_it_on(
    broker: Broker, transport: str, named: Named, eventually: Eventually
) -> None:
    topic, group, url = named("progress"), named("g"), url_of(broker, transport)
    history: list[dict[int, int]] = []
    with shmq.connect(url, timeout=60.0) as mq:
        mq.admin.create_topic(topic, queues=QUEUES)
        for number in range(EACH):
            mq.send(topic, b"%d" % number)
        with mq.subscribe(topic, group=group, start="first") as subscription:
            for _ in range(5):
                drain(subscription, EACH // 10, eventually)
                history.append(offsets_of(broker, group))
            mq._vanish()
    before = eventually(lambda: offsets_of(broker, group))
    harm(broker)
    history += [before, offsets_of(broker, group)]
    for earlier, later in itertools.pairwise(history):
        assert all(later.get(queue, -1) >= offset for queue, offset in earlier.items()), "the host lives"
    assert history[-1] == before, "and none goes on"
    with broker.connect() as observer:
        store = observer._local().wire.store
        for queue, offset in before.items():
            assert offset <= store.queue(queue)[1], "every message of it is there, and synchronous flush has it on disk"
