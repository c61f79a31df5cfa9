"""The session over this host's memory, when its broker has made new segments."""

from collections.abc import Iterator
from typing import Any

import pytest

from shmq.client.client_id import new_client_id
from shmq.client.local_session import LocalSession
from shmq.client.wire_shm import wire as wire_module
from shmq.client.wire_shm.wire import ShmWire
from shmq.errors import SegmentError
from shmq.testing import Broker
from tests.deadline import eventually
from tests.interruption import by_another_thread, interrupted_everywhere, met_everywhere


@pytest.fixture
def session() -> Iterator[LocalSession]:
    """A session whose broker has given its segments up, and has others."""
    with Broker() as broker:
        made = LocalSession(broker.place, client_id=new_client_id(), timeout=60.0)
        broker.restart()
        eventually(lambda: made.wire.alive and not made.wire.is_current, lambda: "the broker is back")
        yield made
        made.close()


def test_segments_that_could_not_be_mapped_are_mapped_at_the_next_try(
    session: LocalSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object, **__: object) -> None:
        raise SegmentError("not now")

    before = session.wire.store
    with monkeypatch.context() as patched:
        patched.setattr(wire_module, "map_segments", refused)
        with pytest.raises(SegmentError):
            session.renew()
    assert not session.wire.is_current
    assert session.renew() and session.wire.store is not before
    assert session.sends.internal_producer.send("orders", b"x").offset == 0


def test_what_other_threads_take_while_it_is_renewed_is_not_kept(session: LocalSession) -> None:
    before, seen = session.wire.store, []

    def take() -> None:
        by_another_thread(lambda: session.transactions, unless_held=session._making)
        if session.wire.is_current and session.wire.store is before:
            seen.append("segments of before that are called current")
        if session.requests._over is not None:
            seen.append("requests that say that the connection is closed")

    assert interrupted_everywhere(session.renew, take) > 50
    assert not seen
    made: Any = session.transactions
    assert made._store is session.wire.store


def test_segments_that_become_others_just_before_they_are_asked_for_leave_nothing_of_those_of_before(
    session: LocalSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    before: Any = session.transactions, session.requests
    with monkeypatch.context() as patched:
        known: Any = ShmWire.is_current
        looks = iter([True])  # the control thread attaches again behind the first look
        patched.setattr(ShmWire, "is_current", property(lambda wire: next(looks, False) or known.fget(wire)))
        assert session.renew()
    made: Any = session.transactions
    assert made is not before[0] and made._store is session.wire.store
    assert session.requests is not before[1]
    assert session.sends.internal_producer.send("orders", b"x").offset == 0


class RenewalMeetsUse:
    """The segments change while a thread asks for the producer of answers and traces."""

    def __init__(self, session: LocalSession, stores: tuple[Any, Any]) -> None:
        self.sends, self.stores = session.sends, stores
        self.wire: Any = session.wire
        self.made: list[object] = []
        self.wire.store = stores[0]
        self.sends.renew()

    def action(self) -> None:
        self.made.append(self.sends.internal_producer)

    def other(self) -> None:
        self.wire.store = self.stores[1]
        self.sends.renew()

    def check(self) -> None:
        self.other()
        assert None not in self.made
        self.sends.internal_producer.send("orders", b"x")


@pytest.fixture
def stores(session: LocalSession) -> tuple[Any, Any]:
    before = session.wire.store
    session.renew()
    session.queues.resolve("orders")
    return before, session.wire.store


def test_the_producer_of_answers_is_one_of_the_segments_of_now(session: LocalSession, stores: tuple[Any, Any]) -> None:
    assert met_everywhere(lambda: RenewalMeetsUse(session, stores), before="opcode") > 20
