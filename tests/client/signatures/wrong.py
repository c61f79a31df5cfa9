"""A program in which a type checker has something against every line that says so, and nothing against the others."""

from __future__ import annotations

from dataclasses import dataclass

import shmq
import shmq.aio


@dataclass
class Order:
    number: str


def send(mq: shmq.Connection) -> None:
    mq.send("orders", "42 apples")  # wrong: arg-type
    mq.send("orders", {"apples": 42})  # wrong: arg-type
    mq.send("orders", 42)  # wrong: arg-type
    mq.send("orders", None)  # wrong: arg-type
    mq.send("orders", Order("o-42"))  # wrong: arg-type
    mq.send(b"orders", b"42")  # wrong: arg-type
    mq.send("orders")  # wrong: call-arg
    mq.send("orders", b"42", tga="fruit")  # wrong: call-arg
    mq.send("orders", b"42", tag=["a", "b"])  # wrong: arg-type
    mq.send("orders", b"42", keys=[1, 2])  # wrong: list-item
    mq.send("orders", b"42", properties={"shop": 7})  # wrong: dict-item
    mq.send("orders", b"42", properties=b"")  # wrong: arg-type
    mq.send("orders", b"42", delay="3 s")  # wrong: arg-type
    mq.send_oneway("orders", "tick")  # wrong: arg-type
    mq.send_batch("orders", ["a", "b"])  # wrong: list-item
    mq.request("prices", "apple")  # wrong: arg-type
    mq.topic("orders", Order).send(b"o-42")  # wrong: arg-type
    with mq.producer(group="shop") as producer:
        producer.send("orders", "1")  # wrong: arg-type
        producer.send_nowait("orders", {"apples": 42})  # wrong: arg-type
        producer.send_nowait("orders", b"1", tga="fruit")  # wrong: call-arg
        producer.transaction("orders", "2")  # wrong: arg-type


def listen(mq: shmq.Connection) -> None:
    @mq.listener("orders", group="billing")  # wrong: type-var
    def nothing_taken() -> None: ...

    @mq.listener("orders", group="billing")  # wrong: type-var
    def two_taken(message: shmq.Message, number: int) -> None:
        print(message, number)

    @mq.listener("orders", group="billing")  # wrong: type-var
    def text_taken(message: str) -> None:
        print(message)

    @mq.replier("prices", group="shop")  # wrong: type-var
    def text_given(message: shmq.Message) -> str:
        return message.tag or ""

    @mq.transaction_checker("shop")  # wrong: type-var
    def truth_given(message: shmq.Message) -> bool:
        return message.key is not None

    @mq.listener("orders")  # wrong: call-arg
    def without_a_group(message: shmq.Message) -> None:
        print(message)

    mq.listener("orders", group="billing")("bill")  # wrong: type-var
    mq.listener("orders", group="billing", threads="4")  # wrong: arg-type


async def asynchronous(mq: shmq.aio.Connection) -> None:
    await mq.send("orders", "42 apples")  # wrong: arg-type
    await mq.send("orders", {"apples": 42})  # wrong: arg-type
    await mq.send_batch("orders", ["a"])  # wrong: list-item
    await mq.request("prices", "apple")  # wrong: arg-type
    mq.send("orders", b"42")  # wrong: unused-coroutine

    @mq.listener("orders", group="billing")  # wrong: type-var
    def plain(message: shmq.aio.Message) -> None:
        print(message)
