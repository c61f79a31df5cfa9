"""Held answers go out once, in order, one write for a connection, and late ones say so."""

from __future__ import annotations

import pytest

from shmq.daemon.bridge.held_answers import HeldAnswers, send
from shmq.daemon.bridge.send_path import Held
from shmq.protocol.codes import Codec, Response
from shmq.protocol.command import Command
from shmq.protocol.header import CommandDecoder, encode_command


class Connection:
    """Notes what it is given."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.held_bytes = 0

    def released(self, answers: bytes, held_bytes: int) -> None:
        self.writes.append(answers)
        self.held_bytes -= held_bytes


def answer(opaque: int, codec: Codec = Codec.JSON) -> bytes:
    return encode_command(Command(code=10, opaque=opaque, codec=codec).reply(ext={"queueOffset": str(opaque)}))


def commands(data: bytes) -> list[Command]:
    decoder = CommandDecoder()
    decoder.feed(data)
    return list(iter(decoder.take, None))


def held(end: int, answers: bytes) -> Held:
    return Held(end, answers, (0,), 1)


def test_one_pass_releases_what_is_durable_and_writes_once_to_each() -> None:
    answers, one, other = HeldAnswers(5.0), Connection(), Connection()
    for number, (end, connection) in enumerate(((100, one), (200, other), (300, one), (400, one))):
        answers.hold(connection, held(end, answer(number)), 0.0, code=310, began_ns=0)
    assert answers.wanted_end == 100
    taken = answers.take_durable(399)
    send(taken, Response.SUCCESS)
    assert (one.writes, other.writes) == ([answer(0) + answer(2)], [answer(1)])
    assert (one.held_bytes, other.held_bytes) == (-len(answer(0) + answer(2)), -len(answer(1)))
    assert answers.wanted_end == 400 and answers.take_durable(399) == []
    assert [entry.held.end for entry in answers.take_durable(400)] == [400] and answers.wanted_end is None


def test_late_answers_say_that_the_disk_was_too_slow() -> None:
    answers, connection = HeldAnswers(5.0), Connection()
    for at, codec in ((1.0, Codec.JSON), (2.0, Codec.BINARY), (3.0, Codec.JSON)):
        answers.hold(connection, held(int(at), answer(int(at), codec) * 2), at, code=310, began_ns=0)
    assert answers.take_late(5.9) == []
    send(answers.take_late(7.0), Response.FLUSH_DISK_TIMEOUT)
    told = commands(b"".join(connection.writes))
    assert [(each.opaque, each.code, each.ext["queueOffset"]) for each in told] == [
        (opaque, Response.FLUSH_DISK_TIMEOUT, str(opaque)) for opaque in (1, 1, 2, 2)
    ]
    assert connection.held_bytes == -2 * len(answer(1) + answer(2, Codec.BINARY))
    send(answers.take_all(), Response.FLUSH_DISK_TIMEOUT)
    assert answers.wanted_end is None and commands(connection.writes[-1])[0].opaque == 3


def test_what_has_no_answer_is_released_too() -> None:
    answers, connection = HeldAnswers(5.0), Connection()
    answers.hold(connection, held(10, b""), 0.0, code=310, began_ns=0)
    send(answers.take_durable(10), Response.SUCCESS)
    assert connection.writes == [b""]


def test_who_cannot_be_answered_takes_no_answer_of_others_along() -> None:
    class Broken(Connection):
        def released(self, answers: bytes, held_bytes: int) -> None:
            raise KeyError("broken on purpose")

    answers, connection = HeldAnswers(5.0), Connection()
    for number, waiter in enumerate((Broken(), connection, Broken())):
        answers.hold(waiter, held(number, answer(number)), 0.0, code=310, began_ns=0)
    with pytest.raises(ExceptionGroup) as raised:
        send(answers.take_all(), Response.SUCCESS)
    assert len(raised.value.exceptions) == 2 and connection.writes == [answer(1)]
