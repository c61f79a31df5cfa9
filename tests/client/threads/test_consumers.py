"""Consumers that are opened, renewed and closed while other threads use them."""

import contextlib
import threading
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from shmq.client.consumers.consumer import Consumer, ConsumerContext
from shmq.client.consumers.kept_offsets import OffsetKeeper
from shmq.client.consumers.listener import Listeners
from shmq.client.consumers.membership import Membership
from shmq.client.consumers.pull import PullConsumer
from shmq.client.leader import Leader
from shmq.client.position import BEGIN
from shmq.client.redelivery.redelivery import Redelivery
from shmq.client.requests.requester import Requests
from shmq.client.spec import ConsumerSpec
from shmq.client.timetable import Clock, Timetable
from shmq.client.wire import ignore
from shmq.errors import BrokerNotRunning, NotMaster, ShmqError, UsageError
from shmq.testing import SharedBroker
from tests.interruption import by_another_thread, interrupted_everywhere, met_everywhere


def timetable() -> Timetable:
    """Jobs that never run."""
    made = Timetable(Clock())
    made.stop(0.0)
    return made


class Broker:
    """The groups of one client, as a broker keeps them: a group stays until the client leaves it."""

    def __init__(self) -> None:
        self.groups: set[str] = set()

    def register(self, _producer_groups: object, specs: Iterable[ConsumerSpec]) -> None:
        self.groups.update(spec.group for spec in specs if spec.group)

    def unregister(self, group: str) -> None:
        self.groups.discard(group)


def consumer(group: str) -> Consumer:
    """A consumer that reads nothing."""
    session: Any = SimpleNamespace(queues=SimpleNamespace(resolve=ignore))
    context = ConsumerContext("shmq://x", timetable(), lambda: session, lambda *_: False, ignore, None)
    return Consumer(context, ConsumerSpec("orders", group, start=BEGIN))


class Members:
    """A connection with two consumers, each of a group of its own."""

    def __init__(self) -> None:
        self.broker = Broker()
        session: Any = SimpleNamespace(members=self.broker)
        self.membership = Membership(
            timetable(),
            live=lambda: session,
            current=lambda: session,
            producer_groups=lambda: (),
            registered=ignore,
        )
        self.first, self.second = consumer("billing"), consumer("shipping")
        self.membership._consumers += (self.first, self.second)
        self.membership.register()

    def check(self) -> None:
        assert self.broker.groups == {each.group for each in self.membership.consumers}


class RegistrationMeetsLeaving(Members):
    """Every 20 s the brokers hear of all groups, while a thread closes a consumer."""

    def action(self) -> None:
        self.membership.register()

    def other(self) -> None:
        self.membership.left(self.second)


class LeavingMeetsJoining(Members):
    """A thread closes the last consumer of a group, another one opens the next."""

    def action(self) -> None:
        self.membership.left(self.first)

    def other(self) -> None:
        self.membership._consumers.append(consumer("billing"))
        self.membership.register()


@pytest.mark.parametrize("meeting", [RegistrationMeetsLeaving, LeavingMeetsJoining])
def test_brokers_know_the_groups_that_are_read_and_no_other(meeting: Callable[[], Any]) -> None:
    assert met_everywhere(meeting) > 10


def test_a_renewed_consumer_keeps_the_lock_that_its_threads_wait_for(shmq_shared_broker: SharedBroker) -> None:
    topic, group = shmq_shared_broker.named("orders"), shmq_shared_broker.named("billing")
    with shmq_shared_broker.connect() as mq, mq.subscribe(topic, group=group) as subscription:
        seen = {(subscription._lock, subscription._renewed)}
        interrupted_everywhere(subscription._renew, lambda: seen.add((subscription._lock, subscription._renewed)))
    assert len(seen) == 1


class OpeningMeetsClose:
    """A consumer is opened anew by its first use, and closed by another thread."""

    def __init__(self) -> None:
        self.consumer: Any = consumer("billing")
        self.consumer._open = self.open

    def open(self, _session: object) -> None:
        self.consumer._source = SimpleNamespace(stop=lambda: None, close=lambda: None)

    def action(self) -> None:
        with contextlib.suppress(UsageError):
            self.consumer._live_source()

    def other(self) -> None:
        by_another_thread(self.consumer.close, unless_held=self.consumer._lock)

    def check(self) -> None:
        assert not (self.consumer._closed and self.consumer._source), "it would read on, and own its queues"


def test_a_consumer_that_is_closed_while_it_is_opened_reads_nothing() -> None:
    assert met_everywhere(OpeningMeetsClose) > 5


class PollMeetsRenewal:
    """A thread takes messages from the segments of before while their reader is given up."""

    def __init__(self, made: PullConsumer) -> None:
        self.consumer = made
        made.seek(0, "begin")
        self.reader = made._live_reader()
        self.taken = 0

    def action(self) -> None:
        self.consumer._renew()

    def other(self) -> None:
        with contextlib.suppress(UsageError):
            self.taken += len(self.reader.poll(1))

    def check(self) -> None:
        assert self.consumer._positions[0] == self.taken


def test_what_was_taken_before_a_renewal_does_not_come_again(shmq_shared_broker: SharedBroker) -> None:
    topic = shmq_shared_broker.named("orders")
    with shmq_shared_broker.connect() as mq:
        mq.send_batch(topic, [b"x"] * 4, queue_id=0)
        with mq.pull_consumer(topic) as made:
            assert met_everywhere(lambda: PollMeetsRenewal(made)) > 3


class UseMeetsEnd:
    """A thread needs the leader while another one closes the connection."""

    def __init__(self) -> None:
        store: Any = SimpleNamespace(leader="h:1")
        self.leader = Leader(lambda: store, broker="b", cluster="c", client_id="i", timeout=1.0)
        self.leader._open = self.open  # type: ignore[method-assign, assignment]
        self.opened: set[str] = set()
        self.has_ended = False

    def open(self, address: str) -> Any:
        self.opened.add(address)
        return SimpleNamespace(close=self.opened.clear)

    def action(self) -> None:
        with contextlib.suppress(BrokerNotRunning, NotMaster):
            assert self.leader.session

    def other(self) -> None:
        def end() -> None:
            self.leader.close()
            self.has_ended = True

        lock: Any = self.leader._lock
        if not lock._is_owned():  # a thread is being started under it, and no other one can be meanwhile
            by_another_thread(end, unless_held=lock)

    def check(self) -> None:
        for thread in threading.enumerate():
            if thread.name in ("shmq-dial", "shmq-leave"):
                thread.join()
        assert not (self.has_ended and self.opened)


def test_no_session_with_the_leader_outlives_its_connection() -> None:
    assert met_everywhere(UseMeetsEnd) > 5


class Way:
    """Requests leave, and replies never come."""

    poll = None

    def skip(self) -> None: ...
    def send(self, *_: object, **__: object) -> None: ...
    def close(self) -> None: ...


class Kept:
    """A file of offsets in memory."""

    def save(self, _offsets: object) -> None: ...
    def close(self) -> None: ...


def requests() -> tuple[Callable[[], object], Callable[[], object]]:
    made = Requests(Way, lambda *_: True)
    return lambda: made.request("orders", b"x", 0.001), made.close


def redelivery() -> tuple[Callable[[], object], Callable[[], object]]:
    made, message = Redelivery(timetable(), attempts_max=3, deliver=ignore), Any
    message = SimpleNamespace(queue_id=0, offset=0, attempt=1, settled=False)
    return lambda: made.requeue(message), made.close  # type: ignore[arg-type]


def membership() -> tuple[Callable[[], object], Callable[[], object]]:
    made = Members().membership
    return made.register, made.close


def kept_offsets() -> tuple[Callable[[], object], Callable[[], object]]:
    made = OffsetKeeper(Kept(), timetable(), dict)  # type: ignore[arg-type]
    return made._again, made.close


def leader() -> tuple[Callable[[], object], Callable[[], object]]:
    made = UseMeetsEnd().leader
    return lambda: made.session, made.close


@pytest.mark.parametrize("make", [requests, redelivery, membership, kept_offsets, leader])
def test_a_handler_of_a_signal_may_close_what_its_thread_is_using(
    make: Callable[[], tuple[Callable[[], object], Callable[[], object]]],
) -> None:
    use, close = make()

    def used() -> None:
        with contextlib.suppress(ShmqError):
            use()

    assert interrupted_everywhere(used, close) > 3


class Started:
    """A listener during whose start a handler of a signal stops the connection."""

    def __init__(self, listeners: Listeners, *, stops: bool) -> None:
        self.listeners, self.stops = listeners, stops
        self.failure = None
        self.runs = False

    def start(self, _on_failure: object) -> None:
        self.runs = True
        if self.stops:
            self.listeners.stop(0.0)

    def stop(self) -> None:
        self.runs = False

    def join(self, _deadline: float) -> bool:
        return True


def test_no_listener_runs_behind_a_stop_that_came_while_they_were_started() -> None:
    listeners = Listeners()
    made: list[Any] = [Started(listeners, stops=number == 1) for number in range(3)]
    for each in made:
        listeners.add(each)
    interrupted_everywhere(listeners.start, lambda: None)
    assert not any(each.runs for each in made)


def test_no_listener_is_started_while_another_thread_waits_for_its_end() -> None:
    listeners, refused = Listeners(), []

    class Awaited(Started):
        def join(self, _deadline: float) -> bool:
            with pytest.raises(UsageError, match="being stopped") as caught:
                listeners.start()
            refused.append(caught.value.hint)
            return True

    made: Any = Awaited(listeners, stops=False)
    listeners.add(made)
    listeners.start()
    assert listeners.stop(0.0) == [] and refused and not made.runs
    listeners.start()
    assert made.runs
