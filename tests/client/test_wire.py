"""Questions to several brokers at once: at most 16 on their way, answers in the order of the questions."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from shmq.client.wire import CONCURRENT_MAX, Question, ask_each
from shmq.errors import BrokerNotRunning, RequestTimeout, ShmqError
from shmq.protocol.codes import Response
from shmq.protocol.command import Command
from shmq.protocol.failure import Answer, reply_of


class Brokers:
    """A wire whose brokers answer when the test says so."""

    timeout = 5.0

    def __init__(self, answer: Callable[[str], Answer]) -> None:
        self._answer = answer
        self.asked: list[str] = []
        self.waiting: list[Callable[[], None]] = []
        self.changed = threading.Condition()

    def begin(
        self,
        question: Question,
        then: Callable[[Answer], None],
        *,
        timeout: float | None = None,
        slave_may_answer: bool = False,
    ) -> None:
        with self.changed:
            self.asked.append(question.broker)
            self.waiting.append(lambda: then(self._answer(question.broker)))
            self.changed.notify_all()

    def answer_last_first(self) -> None:
        with self.changed:
            waiting, self.waiting = self.waiting, []
        for each in reversed(waiting):
            each()


def asked_in_background(brokers: Any, names: list[str]) -> tuple[threading.Thread, list[Answer]]:
    found: list[Answer] = []
    thread = threading.Thread(target=lambda: found.extend(ask_each(brokers, [Question(name, 1) for name in names])))
    thread.start()
    return thread, found


def test_at_most_sixteen_questions_are_on_their_way_and_answers_keep_the_order() -> None:
    brokers = Brokers(lambda name: Command(code=Response.SUCCESS, remark=name))
    names = [f"b{number}" for number in range(CONCURRENT_MAX + 5)]
    thread, found = asked_in_background(brokers, names)
    for expected in (CONCURRENT_MAX, len(names)):
        with brokers.changed:
            assert brokers.changed.wait_for(lambda expected=expected: len(brokers.asked) == expected, 10)
        brokers.answer_last_first()
    thread.join(10)
    assert [answer.remark for answer in found if isinstance(answer, Command)] == names


def test_a_broker_that_cannot_be_asked_leaves_the_others_their_answers() -> None:
    brokers = Brokers(lambda name: BrokerNotRunning(name) if name == "b" else Command(code=Response.SUCCESS))
    thread, found = asked_in_background(brokers, ["a", "b", "c"])
    with brokers.changed:
        assert brokers.changed.wait_for(lambda: len(brokers.asked) == 3, 10)
    brokers.answer_last_first()
    thread.join(10)
    assert [isinstance(answer, ShmqError) for answer in found] == [False, True, False]
    with pytest.raises(BrokerNotRunning, match="b"):
        reply_of(found[1])
    with pytest.raises(ShmqError, match="no such thing"):
        reply_of(Command(code=Response.SYSTEM_ERROR, remark="no such thing"))


def test_an_answer_that_never_comes_ends_the_wait() -> None:
    brokers: Any = Brokers(lambda name: Command(code=Response.SUCCESS))
    brokers.timeout = -0.9  # with the margin, a tenth of a second
    with pytest.raises(RequestTimeout):
        ask_each(brokers, [Question("a", 1)])
