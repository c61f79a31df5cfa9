"""A connection that is opened, renewed and closed while other threads use it."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import shmq
from shmq.client.link import live_connections
from shmq.client.wire_shm.control import ControlClient
from shmq.errors import BrokerNotRunning, UsageError
from shmq.protocol.body import ConsumerData, HeartbeatData, decode_body
from shmq.protocol.codes import Request
from shmq.protocol.command import Command
from shmq.shm.place import Place
from shmq.testing import SharedBroker
from tests.interruption import by_another_thread, interrupted_everywhere, met_everywhere


@pytest.fixture
def mq(shmq_shared_broker: SharedBroker) -> Iterator[shmq.Connection]:
    with shmq_shared_broker.connect() as connection:
        yield connection


def test_who_finds_the_session_of_a_connection_that_is_opened_anew_can_send(
    mq: shmq.Connection, shmq_shared_broker: SharedBroker
) -> None:
    topic = shmq_shared_broker.named("orders")
    mq.send(topic, b"x")
    before, mq._session = mq._session, None
    assert before is not None
    mq._bind_to(mq._revive)  # as in a forked child
    failures: list[str] = []

    def send() -> None:
        if mq._session is not None:
            try:
                mq.send(topic, b"x")
            except RecursionError as error:
                failures.append(str(error))

    assert interrupted_everywhere(mq._live, send) > 100
    before.close()
    assert not failures


class Sends:
    """Senders that say of which generation of segments they are."""

    def __init__(self, sends: Any) -> None:
        self.generation = 0
        self.host_of, self.store_trace = sends.host_of, sends.store_trace

    def sender(self, *_: object, **__: object) -> Any:
        of = self.generation

        def generation(*_: object) -> int:
            return of

        return SimpleNamespace(send=generation, send_oneway=generation, send_batch=generation, reserve=generation)


class RenewalMeetsProducer:
    """The segments change, and all that sends is bound anew, while a thread makes a producer."""

    def __init__(self, mq: shmq.Connection) -> None:
        self.mq = mq
        self.session: Any = mq._session
        self.session.sends = self.sends = Sends(self.session.sends)
        self.session.renew = lambda: True
        self.made: list[shmq.Producer] = []
        self.is_renewed = False

    def action(self) -> None:
        self.made.append(self.mq.producer())

    def other(self) -> None:
        self.sends.generation += 1
        by_another_thread(self.renew, unless_held=self.mq._lock)

    def renew(self) -> None:
        self.is_renewed = True
        self.mq._reattach()

    def check(self) -> None:
        if not self.is_renewed:
            self.renew()
        assert [producer.send("orders", b"x") for producer in self.made] == [self.sends.generation]
        self.made.pop().close()


def test_no_producer_stays_with_segments_that_were_given_up(mq: shmq.Connection) -> None:
    assert met_everywhere(lambda: RenewalMeetsProducer(mq)) > 20


def test_connections_may_be_made_while_another_thread_looks_at_all_of_them(shmq_shared_broker: SharedBroker) -> None:
    with contextlib.ExitStack() as opened:
        opened.enter_context(shmq_shared_broker.connect())
        assert interrupted_everywhere(live_connections, lambda: opened.enter_context(shmq_shared_broker.connect()))


def test_producers_may_be_made_while_another_thread_closes_their_connection(shmq_shared_broker: SharedBroker) -> None:
    mq = shmq_shared_broker.connect()
    made = [mq.producer(), mq.producer()]

    def make() -> None:
        with contextlib.suppress(UsageError):
            made.append(mq.producer())

    assert interrupted_everywhere(mq.close, make) > 50
    with pytest.raises(UsageError, match="is closed"):
        mq.producer()


class Link:
    """A control link to a broker that reads, and does not answer."""

    is_closed = False

    def send(self, *_: object) -> None:
        if self.is_closed:
            raise BrokerNotRunning("it is closed")

    def close(self) -> None:
        self.is_closed = True


class LossMeetsRequest:
    """A control link is lost while a thread that has just taken it begins a request."""

    def __init__(self, directory: Path) -> None:
        self.link: Any = Link()
        self.client: Any = ControlClient(Place("default", directory), client_id="c", role=0, timeout=60.0)
        self.client._link = self.link
        self.client._usable_link = lambda _deadline: self.link
        self.begun: list[object] = []
        self.ended: list[object] = []

    def action(self) -> None:
        self.client._lose(self.link)

    def other(self) -> None:
        by_another_thread(self.begin, unless_held=self.client._changed)

    def begin(self) -> None:
        self.begun.append(None)
        try:
            self.client.begin(1, {}, then=self.ended.append)
        except BrokerNotRunning as error:
            self.ended.append(error)

    def check(self) -> None:
        assert len(self.ended) == len(self.begun), "it would wait for ever"


def test_every_request_over_a_link_that_is_lost_ends(tmp_path: Path) -> None:
    assert met_everywhere(lambda: LossMeetsRequest(tmp_path)) > 5


class ReturnMeetsLeaving:
    """The broker is back and hears of all groups, while a thread leaves one of them."""

    def __init__(self, directory: Path) -> None:
        self.groups: set[str] = set()
        self.client: Any = ControlClient(Place("default", directory), client_id="c", role=0, timeout=60.0)
        self.client.ask = self.ask
        self.client.heartbeat([], [ConsumerData("billing", []), ConsumerData("shipping", [])])

    def ask(self, command: Command, timeout: float | None = None) -> None:
        if command.code == Request.HEART_BEAT:
            self.groups |= {data.groupName for data in decode_body(command.body, HeartbeatData).consumerDataSet}
        else:
            self.groups.discard(command.ext["consumerGroup"])

    def action(self) -> None:
        assert self.client._register_again() is None

    def other(self) -> None:
        self.client.unregister("shipping")

    def check(self) -> None:
        left = set(self.groups)
        assert self.client._register_again() is None
        assert self.groups == left, "the next return of the broker registers a group that was left"


class LeavingMeetsLeaving(ReturnMeetsLeaving):
    """Two threads leave a group each."""

    def action(self) -> None:
        self.client.unregister("billing")

    def check(self) -> None:
        super().check()
        assert "billing" not in self.groups


@pytest.mark.parametrize("meeting", [ReturnMeetsLeaving, LeavingMeetsLeaving])
def test_a_group_that_is_left_stays_left(tmp_path: Path, meeting: type[ReturnMeetsLeaving]) -> None:
    assert met_everywhere(lambda: meeting(tmp_path)) > 1
