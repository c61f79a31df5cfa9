"""What may be handed to another process is: receipts and figures as they are, connections by opening anew.

All else says that it stays, and what to hand over instead. Every public type is in one of these three tables.
"""

import asyncio
import copy
import inspect
import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

import shmq
import shmq.aio
from shmq.testing import Broker
from tests.conformance.conftest import PATIENCE, Named, url_of
from tests.deadline import eventually
from tests.tables.rows import every_row

WAYS: dict[str, Callable[[Any], Any]] = {
    "pickle": lambda thing: pickle.loads(pickle.dumps(thing)),
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
}


@dataclass
class Order:
    """What a typed topic holds."""

    number: int


@pytest.fixture
def things(mq: shmq.Connection, named: Named) -> Iterator[dict[str, Any]]:
    """One of each public type."""
    topic, group = named("orders"), named("billing")
    sent = mq.send(topic, b"x", key="o-42")
    consumer, simple = mq.subscribe(topic, group=group), mq.simple_consumer(topic, group=named("simple"))
    [message] = consumer.receive(1, PATIENCE)
    consumer.reject(message, "bad")
    letter = eventually(lambda: mq.admin.dlq(group), "the dead letter to be stored")[0]
    producer = mq.producer(group="shop")
    transaction = producer.transaction(topic, b"x")
    groups, slot = mq.admin.groups, mq.reserve(topic, 3)
    mq.pull_consumer(topic).commit(group, offsets={0: 0})
    lag = groups[group].lag
    admin, health = mq.admin, mq.admin.health()
    yield {
        **{"Receipt": sent, "TopicInfo": admin.topics[topic], "QueueInfo": admin.topics[topic].queues[0]},
        **{"Health": health, "Finding": health.checks[0], "GroupLag": lag, "QueueLag": lag.offsets[0]},
        **{
            "ResetStep": groups[group].reset(topic, to="end", dry_run=True)[0],
            "TxState": shmq.COMMIT,
            "Verdict": health.verdict,
        },
        **{"Action": shmq.Action.RECONSUME_LATER, "Connection": mq, "Topic": mq.topic(topic, Order)},
        **{"Message": message, "Subscription": consumer, "SimpleConsumer": simple, "Producer": producer},
        **{"PullConsumer": mq.pull_consumer(topic), "Transaction": transaction, "Slot": slot, "Admin": admin},
        **{"Group": groups[group], "DeadLetter": letter, "groups": groups, "send": mq.send},
        "TypedSubscription": mq.topic(topic, Order).subscribe(group=named("typed")),
    }
    transaction.rollback()
    for each in (consumer, simple, producer):
        each.close()


VALUES = (
    "Receipt",
    "TopicInfo",
    "QueueInfo",
    "Health",
    "Finding",
    "GroupLag",
    "QueueLag",
    "ResetStep",
    "TxState",
    "Verdict",
    "Action",
)
OPENED = ("Connection", "Topic")
STAYING = (
    *("Message", "Subscription", "SimpleConsumer", "Producer", "PullConsumer", "Transaction", "Slot", "Admin", "Group"),
    *("DeadLetter", "groups", "send", "TypedSubscription"),
)


def _facts(thing: Any) -> list[Any]:
    names = [name for name in dir(thing) if not name.startswith("_")]
    return [type(thing), repr(thing), *((name, repr(getattr(thing, name))) for name in names if name != "from_bytes")]


def test_every_public_type_is_in_one_of_the_tables() -> None:
    shapes = {"Codec", "TypedMessage"}  # protocols
    types = {name for name in shmq.__all__ if inspect.isclass(getattr(shmq, name))}
    types -= {name for name in types if issubclass(getattr(shmq, name), BaseException)}
    assert types - shapes == {name for name in (*VALUES, *OPENED, *STAYING) if name[0].isupper()}


def test_values_are_copied(things: dict[str, Any], mq: shmq.Connection, named: Named) -> None:
    receipts = [things["Receipt"], mq.send(named("orders"), b"x", delay=600), *mq.send_batch(named("orders"), [b"a"])]
    for thing in (*receipts, *(things[name] for name in VALUES if name != "Receipt")):
        for way in WAYS.values():
            again = way(thing)
            if isinstance(thing, shmq.Receipt):
                values = [name for name in dir(thing) if not name.startswith("_")]
                assert [getattr(again, name) for name in values] == [getattr(thing, name) for name in values]
                assert repr(again) == repr(thing) and again == thing and {again, thing} == {thing}
            else:
                assert again == thing and type(again) is type(thing)
    for way in WAYS.values():
        mq.recall(way(receipts[1]))  # a copied receipt takes its message back
        receipts[1] = mq.send(named("orders"), b"x", delay=600)


def test_receipts_are_equal_where_they_are_of_one_message(mq: shmq.Connection, named: Named) -> None:
    topic = named("counted")
    mq.admin.create_topic(topic, queues=2)
    receipts = [mq.send(topic, b"x", delay=delay) for delay in (None, None, None, 600)]
    receipts += mq.send_batch(topic, [b"a", b"b", b"c"])
    again = pickle.loads(pickle.dumps(receipts))
    assert again == receipts and len({*receipts, *again}) == len(receipts)
    assert receipts[0] != receipts[1] and receipts[0] != repr(receipts[0])
    with pytest.raises(TypeError):
        assert receipts[0] < receipts[1]  # type: ignore[operator]


def test_connections_and_typed_topics_open_anew(things: dict[str, Any], named: Named) -> None:
    with pickle.loads(pickle.dumps(things["Connection"])) as again:
        assert again.url == things["Connection"].url and again.send(named("orders"), b"x").message_id
    typed = pickle.loads(pickle.dumps(things["Topic"]))
    assert typed.send(Order(7)).topic == typed.name == things["Topic"].name
    typed._connection.close()


def test_what_stays_says_what_to_hand_over_instead(things: dict[str, Any]) -> None:
    for name in STAYING:
        for way in WAYS.values():
            if name == "send" and way is not WAYS["pickle"]:
                continue  # copying a bound method is not needed
            with pytest.raises(shmq.WrongKind, match="can be neither pickled nor copied") as refused:
                way(things[name])
            assert any(word in refused.value.hint for word in ("hand over", "end it here")), name


@every_row("transport", ["shm", "tcp"])
def test_what_asyncio_has_stays_too_and_its_connection_opens_anew(broker: Broker, named: Named, transport: str) -> None:
    url, topic = url_of(broker, transport), named(f"orders-{transport}")

    async def tried() -> None:
        async with shmq.aio.connect(url, name="invoices") as mq:
            await mq.send(topic, b"x")
            async with pickle.loads(pickle.dumps(mq)) as again:
                assert (await again.send(topic, b"x")).topic == topic and again.client_id.endswith("@invoices")
            async with mq.subscribe(topic, group="billing", start="begin") as consumer:
                [message] = await consumer.receive(1, PATIENCE)
                for thing in (message, consumer, mq.producer(), mq.pull_consumer(topic)):
                    with pytest.raises(shmq.WrongKind, match="can be neither pickled nor copied"):
                        pickle.dumps(thing)

    asyncio.run(tried())
