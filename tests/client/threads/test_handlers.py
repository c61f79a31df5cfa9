"""A handler of a signal that does what its thread is just doing; a plain lock between the two would wait for ever."""

import contextlib
from collections.abc import Callable

import msgspec
import pytest

from shmq.addresses import Address
from shmq.client.remote.send_policy import QueueChoice
from shmq.client.wire_tcp.route import Route
from shmq.protocol.dialect import MessageQueue
from shmq.shm.presence import attach_presence, detach_presence
from shmq.testing import SharedBroker
from shmq.typed_json import decoder
from tests.interruption import met_everywhere

Use = Callable[[], object]
QUEUES = (MessageQueue("a", 0, "orders"),)
ROUTE = Route("orders", QUEUES, (), {"a": {0: Address("h", 1)}}, QUEUES)


def sending(broker: SharedBroker, opened: contextlib.ExitStack) -> Callable[[], Use]:
    mq, topic = opened.enter_context(broker.connect()), broker.named("orders")

    def begin() -> Use:
        producer = opened.enter_context(mq.producer())
        return lambda: producer.send_nowait(topic, b"x")

    return begin


def transactions(broker: SharedBroker, opened: contextlib.ExitStack) -> Callable[[], Use]:
    session = opened.enter_context(broker.connect())._local()

    def begin() -> Use:
        session._transactions = None
        return lambda: session.transactions

    return begin


def connecting(broker: SharedBroker, opened: contextlib.ExitStack) -> Callable[[], Use]:
    instance = opened.enter_context(broker.connect())._local().wire.instance

    def attach() -> None:
        attach_presence(instance)
        detach_presence(instance)

    return lambda: attach


def reading(_: SharedBroker, __: contextlib.ExitStack) -> Callable[[], Use]:
    def begin() -> Use:
        kind = msgspec.defstruct("Order", ["fruit"])
        return lambda: decoder(kind)

    return begin


def choosing(_: SharedBroker, __: contextlib.ExitStack) -> Callable[[], Use]:
    choice = QueueChoice(None)
    choice.report("a", 0.1, 0.0, failed=False)
    return lambda: lambda: choice.fastest(ROUTE, 0.0)


class Doing:
    """The thread, and the handler that comes once."""

    def __init__(self, use: Use) -> None:
        self.action = self.other = use

    def check(self) -> None:
        """Both have ended."""


@pytest.mark.parametrize("make", [sending, transactions, connecting, reading, choosing])
def test_a_handler_of_a_signal_may_do_what_its_thread_is_doing(
    make: Callable[[SharedBroker, contextlib.ExitStack], Callable[[], Use]], shmq_shared_broker: SharedBroker
) -> None:
    with contextlib.ExitStack() as opened:
        begin = make(shmq_shared_broker, opened)
        assert met_everywhere(lambda: Doing(begin())) > 3


def test_no_turn_is_given_twice_where_threads_take_one() -> None:
    choice, turns = QueueChoice(None), list[int]()

    def take() -> None:
        turns.append(choice._turn("orders"))

    met_everywhere(lambda: Doing(take), before="opcode")
    assert len(set(turns)) == len(turns)
