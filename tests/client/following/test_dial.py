"""How long a host that follows waits for its leader: each call its own time, and one dial for all of them."""

from __future__ import annotations

import errno
import sys
import threading
import traceback
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

import shmq.client
from shmq.client import leader as leader_module
from shmq.client import refusals, remote_session
from shmq.client.leader import FollowingSender, Leader
from shmq.client.wire import Question
from shmq.client.wire_shm.wire import ShmWire
from shmq.errors import BrokerNotRunning, NotMaster, PermissionDenied
from shmq.protocol.codes import Request
from shmq.protocol.failure import Answer
from shmq.shm.core import READ_ONLY_FOLLOWER, Store
from shmq.testing import SharedBroker
from tests.deadline import eventually

PATIENCE_SECONDS = 5.0  # of a dial that a call of no time waits for
CODE = Request.CONSUMER_SEND_MSG_BACK


class Reached:
    """A session with a leader."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.is_closed = threading.Event()
        self.asked: list[Question] = []
        self.wire = SimpleNamespace(begin=self.begin, request=lambda question, timeout: self.asked.append(question))
        self.sends = SimpleNamespace(sender=lambda *_, **__: None)

    def begin(self, question: Question, then: object, *, timeout: float) -> None:
        self.asked.append(question)

    def close(self) -> None:
        self.is_closed.set()


class Host:
    """A host that follows; a dial of its leader goes on until the test lets it end."""

    def __init__(self) -> None:
        self.segments = SimpleNamespace(standing=READ_ONLY_FOLLOWER, leader="h:1", topic_find=lambda topic: 0)
        store = cast(Store, self.segments)
        self.leader = Leader(lambda: store, broker="b", cluster="c", client_id="i", timeout=60.0)
        self.leader._open = self.open  # type: ignore[method-assign, assignment]
        self.dialled: list[str] = []
        self.opened: list[Reached] = []
        self.silent = {"h:1": threading.Event()}
        self.now, self.dial_seconds = 1_000.0, 0.0
        self.error: Exception | None = None

    def open(self, address: str) -> Reached:
        self.dialled.append(address)
        if (silent := self.silent.get(address)) is not None:
            assert silent.wait(PATIENCE_SECONDS), "a call of no time waits for the dial"
        self.now += self.dial_seconds
        if self.error is not None:
            raise self.error
        self.opened.append(Reached(address))
        return self.opened[-1]

    def ask(self) -> None:
        self.leader.request(CODE, timeout=0.0)


@pytest.fixture
def host() -> Iterator[Host]:
    made = Host()
    yield made
    for silent in made.silent.values():
        silent.set()
    made.leader.close()
    for thread in threading.enumerate():
        if thread.name == "shmq-dial":
            thread.join()


@pytest.fixture
def answering(host: Host) -> Host:
    """A host whose dials end by themselves, on a clock that stands."""
    host.silent.clear()
    return host


def test_calls_of_no_time_wait_for_no_dial_and_all_of_them_make_one(host: Host) -> None:
    sender = FollowingSender(host.leader, cast(Any, None), lambda to: to.sends.sender(1.0), 1.0)
    for _ in range(4):
        with pytest.raises(NotMaster, match="h:1, which cannot be reached: no connection within 0 s"):
            host.ask()
        with pytest.raises(NotMaster, match="no connection within 0 s"):
            sender.send("orders", b"x", timeout=0.0)
    assert host.dialled == ["h:1"]


def test_what_a_dial_brings_is_there_for_the_calls_after_those_that_did_not_wait(host: Host) -> None:
    with pytest.raises(NotMaster):
        host.ask()
    host.silent["h:1"].set()
    session: Any = host.leader.session
    assert session is host.opened[0] and host.dialled == ["h:1"]


@pytest.mark.parametrize(("dial_seconds", "stands_seconds"), [(3.0, 1.0), (0.25, 0.25), (0.0, 0.0)])
def test_a_failure_stands_as_long_as_its_dial_took_and_a_second_at_most(
    answering: Host, monkeypatch: pytest.MonkeyPatch, dial_seconds: float, stands_seconds: float
) -> None:
    monkeypatch.setattr(leader_module, "time", SimpleNamespace(monotonic=lambda: answering.now))
    answering.dial_seconds, answering.error = dial_seconds, BrokerNotRunning("nothing listens there")
    with pytest.raises(NotMaster, match="nothing listens there") as first:
        _ = answering.leader.session
    assert first.value.__cause__ is answering.error
    if stands_seconds:
        answering.now += stands_seconds / 2
        with pytest.raises(NotMaster, match="nothing listens there") as again:
            _ = answering.leader.session
        assert again.value is not first.value and again.value.__cause__ is answering.error
        assert len(answering.dialled) == 1
        answering.now += stands_seconds / 2
    with pytest.raises(NotMaster):
        _ = answering.leader.session
    assert len(answering.dialled) == 2


def test_the_next_leader_is_dialled_at_once_whatever_became_of_the_one_before(
    answering: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leader_module, "time", SimpleNamespace(monotonic=lambda: answering.now))
    answering.dial_seconds, answering.error = 3.0, BrokerNotRunning("nothing listens there")
    with pytest.raises(NotMaster):
        _ = answering.leader.session
    answering.segments.leader, answering.error = "h:2", None
    session: Any = answering.leader.session
    assert session.address == "h:2"


def test_a_dial_of_the_leader_before_ends_no_session_with_the_leader_of_now(host: Host) -> None:
    with pytest.raises(NotMaster):
        host.ask()
    host.segments.leader = "h:2"
    session: Any = host.leader.session
    host.silent["h:1"].set()
    late = eventually(lambda: next((each for each in host.opened if each.address == "h:1"), None))
    assert late.is_closed.wait(60)
    now: Any = host.leader.session
    assert now is session and not session.is_closed.is_set()


def test_a_call_that_waits_for_the_leader_before_goes_on_with_the_leader_of_now(host: Host) -> None:
    got: list[Any] = []
    waiting = threading.Thread(target=lambda: got.append(host.leader.session))
    waiting.start()
    eventually(lambda: host.dialled == ["h:1"])
    host.segments.leader = "h:2"
    waiting.join(60)
    assert [session.address for session in got] == ["h:2"]


def test_a_call_whose_dial_was_overtaken_goes_on_with_the_leader_of_now(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leader_module, "_LOOK_SECONDS", 60.0)  # it waits for its dial alone
    got: list[Any] = []
    waiting = threading.Thread(target=lambda: got.append(host.leader.session))
    waiting.start()
    eventually(lambda: host.dialled == ["h:1"])
    host.segments.leader = "h:2"
    now: Any = host.leader.session
    host.silent["h:1"].set()
    waiting.join(60)
    assert got == [now] and now.address == "h:2"


def test_each_call_that_a_dial_has_failed_raises_an_error_of_its_own(
    answering: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leader_module, "time", SimpleNamespace(monotonic=lambda: answering.now))
    answering.dial_seconds, answering.error = 1.0, PermissionDenied("not for you", hint="ask")
    errors = []
    for _ in range(3):
        with pytest.raises(PermissionDenied, match="not for you") as raised:
            _ = answering.leader.session
        errors.append(raised.value)
        raised.value.maybe_stored = True
    first, second, last = errors
    assert len(answering.dialled) == 1
    assert first is not second and second is not last and last.hint == "ask"
    assert len(traceback.extract_tb(last.__traceback__)) == len(traceback.extract_tb(second.__traceback__))
    with pytest.raises(PermissionDenied) as raised:
        _ = answering.leader.session
    assert not raised.value.maybe_stored


def test_a_dial_imports_nothing_in_its_thread_which_a_fork_would_leave_locked(
    answering: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shmq.client, "remote_session", remote_session)  # put back at the end
    monkeypatch.delitem(sys.modules, remote_session.__name__)
    seen: list[bool] = []
    reach = answering.open

    def opening(address: str) -> Reached:
        seen.append(remote_session.__name__ in sys.modules)
        return reach(address)

    answering.leader._open = opening  # type: ignore[method-assign, assignment]
    _ = answering.leader.session
    assert seen == [True]


@pytest.mark.parametrize(
    "error", [None, BrokerNotRunning("nothing listens there"), OSError(errno.EMFILE, "nothing more can be opened")]
)
def test_what_must_not_wait_is_asked_when_the_dial_has_ended(host: Host, error: Exception | None) -> None:
    wire = cast(ShmWire, SimpleNamespace(control=SimpleNamespace(leader=host.leader)))
    question, answers = Question("b", CODE), list[Answer]()
    ShmWire.begin(wire, question, answers.append)
    assert not answers and not host.opened
    host.error = error
    host.silent["h:1"].set()
    if error is None:
        assert eventually(lambda: host.opened and host.opened[0].asked) == [question]
    else:
        [answer] = eventually(lambda: answers)
        assert isinstance(answer, NotMaster) and str(error) in str(answer)


@pytest.mark.parametrize(("name", "given"), [("send", 0.5), ("reserve", 3.0)])
def test_a_dial_takes_of_the_time_of_a_send_and_not_of_that_of_a_later_commit(
    answering: Host, monkeypatch: pytest.MonkeyPatch, name: str, given: float
) -> None:
    monkeypatch.setattr(leader_module, "time", SimpleNamespace(monotonic=lambda: answering.now))
    monkeypatch.setattr(refusals, "time", SimpleNamespace(monotonic=lambda: answering.now))
    answering.dial_seconds = 2.5
    taken = SimpleNamespace(**{name: lambda *_, timeout: timeout})
    sender = FollowingSender(answering.leader, cast(Any, None), lambda _: cast(Any, taken), 60.0)
    assert getattr(sender, name)("orders", 1, timeout=3.0) == given


@pytest.mark.parametrize("name", ["request", "transaction"])
def test_what_goes_over_a_session_waits_for_it_no_longer_than_its_own_time(
    host: Host, shmq_shared_broker: SharedBroker, name: str
) -> None:
    with shmq_shared_broker.connect() as mq:
        session: Any = mq._live()
        own, session.leader = session.leader, host.leader
        try:
            with pytest.raises(NotMaster, match="no connection within 0 s"):
                if name == "request":
                    mq.request("orders", b"x", timeout=0.0)
                else:
                    mq._begin_half("shop", "orders", b"x", 0.0)
        finally:
            session.leader = own


def test_a_connection_that_is_closed_dials_no_more(host: Host) -> None:
    with pytest.raises(NotMaster):
        host.ask()
    host.leader.close()
    with pytest.raises(BrokerNotRunning, match="closed"):
        host.ask()
    host.silent["h:1"].set()
    assert eventually(lambda: host.opened)[0].is_closed.wait(60)
