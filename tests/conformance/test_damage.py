"""A damaged record is handed out by no door of the broker, over neither way, and nothing behind it is kept back."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import shmq
from shmq.testing import Broker
from tests.conformance.conftest import QUEUES, Named, url_of
from tests.deadline import eventually
from tests.tables.rows import every_row

BEFORE, DAMAGED, BEHIND = b"before", b"the one that is damaged", b"behind"
GOOD = [BEFORE, BEHIND]
BODY_AT = 88


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    """A broker whose answered sends are on disk: only there anything counts as damaged."""
    with Broker(tcp=True, timeout=90.0, flush="sync") as broker:
        yield broker


@pytest.fixture
def url(broker: Broker, transport: str) -> str:
    return url_of(broker, transport)


def flip(broker: Broker, position: int) -> None:
    files = sorted((broker.store / "commitlog").iterdir())
    size = files[0].stat().st_size
    with Path(broker.store / "commitlog" / f"{position // size * size:020d}").open("r+b") as file:
        file.seek(position % size)
        byte = file.read(1)[0]
        file.seek(position % size)
        file.write(bytes([byte ^ 0xFF]))


def sent(mq: shmq.Connection, topic: str) -> list[shmq.Receipt]:
    return [mq.send(topic, body, queue_id=0, key="k") for body in (BEFORE, DAMAGED, BEHIND)]


def good(take: Callable[[], list[shmq.Message]]) -> list[bytes]:
    """Take until the last message came; a reader of this host gets one error for the damage."""
    bodies: list[bytes] = []
    told = 0

    def done() -> bool:
        nonlocal told
        try:
            for message in take():
                bodies.append(message.body)
                message.ack()
        except shmq.DamagedMessage as error:
            assert (error.queue_id, error.offset) == (0, 1)
            told += 1
        return BEHIND in bodies

    eventually(done)
    assert told <= 1
    return bodies


# ---- doors: each returns the bodies that came out of it ------------------------------------------------------------


def by_receiving(mq: shmq.Connection, topic: str, group: str, _: list[shmq.Receipt]) -> list[bytes]:
    with mq.subscribe(topic, group=group) as subscription:
        return good(lambda: subscription.receive(10, 0.5))


def by_iterating(mq: shmq.Connection, topic: str, group: str, _: list[shmq.Receipt]) -> list[bytes]:
    with mq.subscribe(topic, group=group) as subscription:
        return good(lambda: [next(iter(subscription))])


def by_filter(mq: shmq.Connection, topic: str, group: str, _: list[shmq.Receipt]) -> list[bytes]:
    with mq.subscribe(topic, group=group, where="KEYS = 'k'") as subscription:
        return good(lambda: subscription.receive(10, 0.5))


def by_listener(mq: shmq.Connection, topic: str, group: str, _: list[shmq.Receipt]) -> list[bytes]:
    bodies: list[bytes] = []
    mq.listener(topic, group=group)(lambda message: bodies.append(message.body))
    mq.start()
    eventually(lambda: BEHIND in bodies)
    return bodies


def by_several_threads(mq: shmq.Connection, topic: str, group: str, _: list[shmq.Receipt]) -> list[bytes]:
    bodies: list[bytes] = []
    mq.listener(topic, group=group, threads=2, ordered=True)(lambda message: bodies.append(message.body))
    mq.start()
    eventually(lambda: BEHIND in bodies)
    return bodies


def by_pulling(mq: shmq.Connection, topic: str, _: str, __: list[shmq.Receipt]) -> list[bytes]:
    with mq.pull_consumer(topic) as consumer:
        return good(lambda: consumer.poll(10, 0.5))


def by_hiding(mq: shmq.Connection, topic: str, group: str, _: list[shmq.Receipt]) -> list[bytes]:
    with mq.simple_consumer(topic, group=group, invisible=30.0) as consumer:
        return good(lambda: consumer.receive(10, 0.5))


def by_browsing(mq: shmq.Connection, topic: str, _: str, __: list[shmq.Receipt]) -> list[bytes]:
    return [message.body for message in mq.browse(topic)]


def by_key(mq: shmq.Connection, topic: str, _: str, __: list[shmq.Receipt]) -> list[bytes]:
    found = eventually(lambda: len(bodies := [m.body for m in mq.browse(topic, key="k")]) >= 2 and bodies)
    return list(found)


def by_id(mq: shmq.Connection, topic: str, _: str, receipts: list[shmq.Receipt]) -> list[bytes]:
    def found() -> list[bytes]:
        return [message.body for receipt in receipts for message in mq.browse(topic, id=receipt.message_id)]

    return list(eventually(lambda: len(bodies := found()) >= 2 and bodies))


DOORS = [
    by_receiving,
    by_iterating,
    by_filter,
    by_listener,
    by_several_threads,
    by_pulling,
    by_hiding,
    by_browsing,
    by_key,
    by_id,
]
PLACES = {"body": BODY_AT + 3, "header": 20, "magic": 5, "properties": BODY_AT + len(DAMAGED) + 30}


@every_row("place", PLACES)
@every_row("door", DOORS)
def test_no_door_hands_out_damage_and_everything_behind_it_comes(
    broker: Broker, mq: shmq.Connection, named: Named, door: Callable[..., list[bytes]], place: str
) -> None:
    row = f"{door.__name__}-{place}"
    topic = named(f"orders-{row}")
    mq.admin.create_topic(topic, queues=QUEUES)
    receipts = sent(mq, topic)
    flip(broker, receipts[1].log_position + PLACES[place])
    assert door(mq, topic, named(f"readers-{row}"), receipts) == GOOD


def test_a_group_goes_on_behind_damage_and_gets_one_error(
    broker: Broker, mq: shmq.Connection, topic: str, named: Named
) -> None:
    receipts = sent(mq, topic)
    flip(broker, receipts[1].log_position + BODY_AT)
    group = named("billing")
    assert by_receiving(mq, topic, group, receipts) == GOOD
    assert eventually(lambda: mq.admin.groups[group].lag.total == 0 or None)
    mq.send(topic, b"later", queue_id=0)
    with mq.subscribe(topic, group=group) as subscription:
        found: Any = eventually(lambda: subscription.receive(10, 0.5))
        assert [message.body for message in found] == [b"later"]


def test_a_copy_is_kept_and_health_names_it(broker: Broker, mq: shmq.Connection, topic: str, named: Named) -> None:
    (_, receipt, _) = receipts = sent(mq, topic)
    flip(broker, receipt.log_position + BODY_AT)
    by_receiving(mq, topic, named("billing"), receipts)
    copy = broker.store / "quarantine" / f"{receipt.log_position:020d}.record"
    eventually(copy.exists)
    assert DAMAGED[1:] in copy.read_bytes()
    eventually(lambda: "record.damaged" in broker.log)


def trusting_pull(mq: shmq.Connection, topic: str, _: str) -> shmq.PullConsumer:
    return mq.pull_consumer(topic, verify=False)


def trusting_simple(mq: shmq.Connection, topic: str, group: str) -> shmq.SimpleConsumer:
    return mq.simple_consumer(topic, group=group, invisible=30.0, hidden_by="process", verify=False)


@pytest.mark.parametrize("consumer_of", [trusting_pull, trusting_simple])
@pytest.mark.parametrize("transport", ["shm"])
def test_who_does_not_ask_for_checksums_gets_what_lies_there(
    broker: Broker, mq: shmq.Connection, topic: str, named: Named, consumer_of: Callable[..., Any]
) -> None:
    receipts = sent(mq, topic)
    flip(broker, receipts[1].log_position + BODY_AT + 3)
    with consumer_of(mq, topic, named("trusting")) as consumer:
        take = consumer.poll if isinstance(consumer, shmq.PullConsumer) else consumer.receive
        bodies: list[bytes] = []
        eventually(lambda: bodies.extend(message.body for message in take(10, 0.5)) or len(bodies) >= 3)
    assert [len(body) for body in bodies] == [len(BEFORE), len(DAMAGED), len(BEHIND)] and bodies[1] != DAMAGED


@pytest.mark.parametrize("transport", ["shm"])
def test_a_popped_message_is_looked_at_as_the_consumer_asks(
    broker: Broker, mq: shmq.Connection, topic: str, named: Named
) -> None:
    receipt = mq.send(topic, DAMAGED, queue_id=0)
    store = mq._live().wire.store  # type: ignore[attr-defined]
    flip(broker, receipt.log_position + BODY_AT)
    assert store.message_at(receipt.log_position, 0, None, None, False).body != DAMAGED
    for verify in (True, None):
        with pytest.raises(shmq.ShmqError):
            store.message_at(receipt.log_position, 0, None, None, verify)


def bytes_of_a_record(broker: Broker, topic: str) -> int:
    """Of the first of a queue: the next one is no measure, as the broker's own records may lie between."""
    with broker.connect() as mq:  # over TCP a record comes without its checksum
        return int(mq.browse(topic, queue_id=0)[0].record_bytes)


def damaged_everywhere(broker: Broker, mq: shmq.Connection, topic: str, flip_at: Callable[[int, int], None]) -> int:
    """Send pairs of messages, the second of each damaged at another byte; returns how many pairs."""
    for number in range(2):
        mq.send(topic, b"%08d" % number, queue_id=0, key="k")
    size = bytes_of_a_record(broker, topic)
    for number in range(size):
        mq.send(topic, b"%08d" % (2 * number + 2), queue_id=0, key="k")
        receipt = mq.send(topic, b"%08d" % (2 * number + 3), queue_id=0, key="k")
        flip_at(receipt.log_position, number)
    return size


def test_each_byte_of_a_record_may_be_damaged(
    broker: Broker, mq: shmq.Connection, topic: str, named: Named, transport: str
) -> None:
    pairs = damaged_everywhere(broker, mq, topic, lambda position, byte: flip(broker, position + byte))
    bodies: list[int] = []
    told: list[int] = []
    with mq.subscribe(topic, group=named("readers"), auto_ack=True) as subscription:

        def done() -> bool:
            try:
                bodies.extend(int(message.body) for message in subscription.receive(100, 0.2))
            except shmq.DamagedMessage as error:
                told.append(error.offset)
            return bool(bodies) and bodies[-1] == 2 * pairs

        eventually(done)
    assert bodies == [0, 1, *range(2, 2 * pairs + 2, 2)]
    assert told == (list(range(3, 2 * pairs + 2, 2))[: len(told)] if transport == "shm" else [])
    assert transport == "tcp" or len(told) >= pairs - 1


def test_each_byte_of_a_unit_may_be_damaged_and_is_mended(
    broker: Broker, mq: shmq.Connection, topic: str, named: Named
) -> None:
    bodies = [b"%08d" % number for number in range(24)]
    positions = [mq.send(topic, body, queue_id=0).log_position for body in bodies]
    size = bytes_of_a_record(broker, topic)
    instance = broker._instance()
    assert instance is not None
    path = Path("/dev/shm") / str(instance.segments[1]).lstrip("/")
    units = path.read_bytes()[: 64 << 20]
    for position, byte in zip(positions[2:], range(12), strict=False):
        at = units.index(position.to_bytes(8) + size.to_bytes(4))
        with path.open("r+b") as file:
            file.seek(at + byte)
            file.write(bytes([units[at + byte] ^ 0xFF]))
    found: list[bytes] = []
    with mq.subscribe(topic, group=named("readers"), auto_ack=True) as subscription:
        eventually(lambda: found.extend(m.body for m in subscription.receive(100, 0.5)) or len(found) >= len(bodies))
    assert found == bodies
    eventually(lambda: "units.mended" in broker.log)
