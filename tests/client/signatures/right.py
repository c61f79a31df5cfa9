"""A program that a type checker has nothing against: what users write of every kind of call."""

from __future__ import annotations

import array
import functools
import mmap
from dataclasses import dataclass
from datetime import timedelta

import shmq
import shmq.aio


@dataclass
class Order:
    number: str
    count: int


class Biller:
    def bill(self, message: shmq.Message) -> None:
        print(self, message.body)

    def __call__(self, message: shmq.Message) -> None:
        print(self, message.key)


def read(body: bytes) -> Order:
    return Order(body.decode(), 1)


def handle(factor: int, message: shmq.Message) -> None:
    print(factor, message.offset)


def send(mq: shmq.Connection, mapped: mmap.mmap) -> shmq.Receipt:
    receipt = mq.send("orders", b"42 apples", tag="fruit", key="order-42", properties={"shop": "7"})
    for body in (bytearray(3), memoryview(b"abc"), array.array("d", [1.0]), mapped):
        mq.send("orders", body, keys=["a", "b"], delay=timedelta(seconds=3))
    mq.send_oneway("orders", b"tick", message_group="shop-7")
    mq.send_batch("orders", [b"a", bytearray(b"b")], keys=["a", "b"])
    with mq.reserve("frames", 3) as slot:
        slot.view[:] = b"abc"
    with mq.producer(group="shop", timeout=2.0) as producer:
        producer.send_nowait("orders", b"1", tag="fruit").result()
        with producer.transaction("orders", b"2", key="o-2"):
            pass
    print(mq.request("prices", b"apple", timeout=3.0).body)
    mq.topic("orders", Order).send(Order("o-42", 3), tag="fruit")
    return receipt


def listen(mq: shmq.Connection) -> None:
    @mq.listener("orders", group="billing", threads=4)
    def bill(message: shmq.Message) -> None:
        if not message.body:
            raise shmq.Reject("empty")

    @mq.listener("orders", group="typed", codec=read)
    def decoded(message: shmq.TypedMessage[Order]) -> shmq.Action:
        return shmq.Action.COMMIT_MESSAGE if message.value.count else shmq.Action.RECONSUME_LATER

    @mq.topic("orders", Order).listener(group="shop")
    def typed(message: shmq.TypedMessage[Order]) -> None:
        print(message.value.number)

    @mq.replier("prices", group="shop")
    def price(message: shmq.Message) -> bytes | None:
        return message.body or None

    @mq.transaction_checker("shop")
    def check(message: shmq.Message) -> shmq.TxState:
        return shmq.COMMIT if message.key else shmq.UNKNOWN

    mq.listener("orders", group="methods")(Biller().bill)
    mq.listener("orders", group="objects")(Biller())
    mq.listener("orders", group="partials")(functools.partial(handle, 3))
    mq.listener("orders", group="lambdas")(lambda message: print(message.body))
    bill(mq.pull_consumer("orders").poll(1, 0.0)[0])


def consume(mq: shmq.Connection) -> None:
    with mq.subscribe("orders", group="billing", tags=["fruit"], start="begin") as subscription:
        for message in subscription:
            message.ack()
    for received in mq.simple_consumer("orders", group="simple").receive(3, 1.0):
        received.nack(after=3.0)
    mq.admin.create_topic("orders", queues=8)


async def asynchronous() -> None:
    async with shmq.aio.connect() as mq:

        @mq.listener("orders", group="billing")
        async def bill(message: shmq.aio.Message) -> None:
            await message.ack()

        await mq.send("orders", b"3")
        print((await mq.request("prices", b"apple", timeout=1.0)).body)
