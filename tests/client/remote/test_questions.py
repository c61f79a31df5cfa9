"""Pull requests and what their answers mean."""

import pytest

from shmq.client.redelivery.send_back import delay_level
from shmq.client.remote.questions import EMPTY_PAUSE, ERROR_PAUSE, PullQuestion, pull_command, read_pulled
from shmq.errors import ProtocolError, RemoteError
from shmq.protocol.command import Command
from shmq.protocol.dialect import MessageQueue
from tests.tables.rows import every_row

QUESTION = PullQuestion("g", MessageQueue("a", 1, "T"), 10)


def answer(code: int, next_offset: object = 10, body: bytes = b"", **others: str) -> Command:
    ext = {"nextBeginOffset": str(next_offset), "minOffset": "0", "maxOffset": "99", "suggestWhichBrokerId": "0"}
    return Command(code=code, ext={**ext, **others}, body=body, remark="words")


def test_flags_say_what_is_in_the_request() -> None:
    assert pull_command(QUESTION).ext["sysFlag"] == "2"
    assert pull_command(QUESTION._replace(commit_offset=5)).ext["sysFlag"] == "3"
    assert pull_command(QUESTION._replace(hold=0.0, expression="a || b")).ext["sysFlag"] == "4"
    ext = pull_command(QUESTION._replace(commit_offset=5, expression="a")).ext
    assert (ext["commitOffset"], ext["subscription"], ext["suspendTimeoutMillis"]) == ("5", "a", "15000")


def test_found_is_delivered_and_pulled_on_at_once() -> None:
    pulled = read_pulled(answer(0, 12, b"records"), QUESTION, 0.0)
    assert (pulled.body, pulled.next_offset, pulled.offset_max, pulled.pause, pulled.error) == (
        b"records",
        12,
        99,
        0.0,
        None,
    )


def test_an_empty_answer_that_was_not_held_is_not_repeated_at_once() -> None:
    assert read_pulled(answer(19), QUESTION, 0.001).pause == EMPTY_PAUSE
    assert read_pulled(answer(19), QUESTION, 5.0).pause == 0.0
    assert read_pulled(answer(20, 500), QUESTION, 0.001).pause == 0.0
    assert read_pulled(answer(20, 10), QUESTION, 0.001).pause == EMPTY_PAUSE


def test_an_offset_that_moved_is_followed_but_not_in_a_loop() -> None:
    pulled = read_pulled(answer(21, 4), QUESTION, 0.0)
    assert (pulled.moved, pulled.next_offset, pulled.pause) == (True, 4, 0.0)
    assert read_pulled(answer(21, 10), QUESTION, 0.0).pause == ERROR_PAUSE


@pytest.mark.parametrize("code", [24, 25])
def test_a_subscription_the_broker_does_not_know_is_registered_again(code: int) -> None:
    assert read_pulled(answer(code), QUESTION, 0.0).register


@every_row("code", [1, 2, 16, 17, 26, 1500])
def test_any_other_code_is_an_error_after_which_the_same_offset_is_pulled(code: int) -> None:
    pulled = read_pulled(answer(code, 77), QUESTION, 0.0)
    assert pulled.error is not None and pulled.next_offset == 10 and pulled.pause == ERROR_PAUSE
    assert isinstance(pulled.error, RemoteError) or code == 17


@pytest.mark.parametrize("text", ["", "-1", "x", "9" * 30, "1.5"])
def test_a_number_that_is_none_makes_the_answer_an_error(text: str) -> None:
    for name in ("nextBeginOffset", "maxOffset", "suggestWhichBrokerId"):
        pulled = read_pulled(answer(0, **{name: text}), QUESTION, 0.0)
        assert isinstance(pulled.error, ProtocolError) and pulled.next_offset == 10 and pulled.body == b""


def test_a_found_answer_never_moves_back() -> None:
    assert read_pulled(answer(0, 3), QUESTION, 0.0).next_offset == 10


@every_row(
    ("after", "level"), [(None, 0), (1, 1), (1.5, 2), (5, 2), (10, 3), (30, 4), (45, 5), (7200, 18), (99999, 18)]
)
def test_a_delay_takes_the_next_level_that_is_not_shorter(after: float | None, level: int) -> None:
    assert delay_level(after) == level
