"""A search by key asks on until it has everything, of a broker that pages as ours do and of one as RocketMQ's."""

from typing import Any, NamedTuple

import pytest

from shmq.client.search import NO_MORE, KeyPages, KeyQuery

SECOND = 1000
BEGIN = 1_790_000_000_123


class Stored(NamedTuple):
    """What the pages look at of a message."""

    log_position: int
    store_ms: int


def rocketmq(stored: list[Stored], query: KeyQuery) -> list[Stored]:
    """Answer as RocketMQ does: the newest 64 within a time that its index knows in whole seconds."""
    begin = stored[0].store_ms

    def indexed(message: Stored) -> int:
        return begin + (message.store_ms - begin) // SECOND * SECOND

    fitting = [message for message in stored if query.begin_ms <= indexed(message) <= query.end_ms]
    return sorted(fitting)[-64:]


def asked(stored: list[Stored], *, begin_ms: int = 0, enough: int = 1_000) -> Any:
    pages: Any = KeyPages(KeyQuery("orders", "o-42", begin_ms=begin_ms), enough, lambda message: True)
    for _ in range(2_000):
        if pages.is_done:
            return pages
        page = rocketmq(stored, pages.query)
        pages.take(page, None if page else NO_MORE)
    raise AssertionError("it asks for ever")


@pytest.mark.parametrize("step_ms", [1, 16, 17, 40, 999, 1000, 1001, 90_000])
@pytest.mark.parametrize("count", [1, 63, 64, 65, 500])
def test_pages_back_in_time_bring_what_a_broker_can_hand_out_and_tell_a_cut(step_ms: int, count: int) -> None:
    stored = [Stored(100 * number, BEGIN + step_ms * number) for number in range(count)]
    pages = asked(stored)
    found = sorted(pages.found)
    assert len(found) == len(set(found)) and set(found) <= set(stored)
    assert pages.is_cut or found == stored, "what is missing is reported"
    if step_ms * 64 > 2 * SECOND or count < 64:
        assert found == stored and not pages.is_cut


def test_a_crowded_second_hides_nothing_that_is_older() -> None:
    old = [Stored(number, BEGIN + number * SECOND) for number in range(100)]
    crowd = [Stored(1_000 + number, BEGIN + 200 * SECOND) for number in range(200)]
    pages = asked([*old, *crowd])
    assert pages.is_cut and set(old) <= set(pages.found) and len(pages.found) == 164


def test_pages_do_not_go_back_before_the_time_asked_for() -> None:
    stored = [Stored(number, BEGIN + number * SECOND) for number in range(500)]
    pages = asked(stored, begin_ms=BEGIN + 400 * SECOND)
    assert set(pages.found) >= set(stored[400:]) and len(pages.found) <= 164


def test_a_broker_that_pages_is_asked_from_where_it_says_until_enough_was_found() -> None:
    pages: Any = KeyPages(KeyQuery("orders", "o-42"), 5, lambda message: message.log_position != 2)
    assert pages.query.fields["fromPosition"] == "0"
    pages.take([Stored(1, BEGIN), Stored(2, BEGIN), Stored(3, BEGIN)], 17)
    assert not pages.is_done and pages.query.fields["fromPosition"] == "17"
    pages.take([], 40)
    pages.take([Stored(41, BEGIN), Stored(42, BEGIN), Stored(43, BEGIN)], 50)
    assert pages.is_done and [message.log_position for message in pages.found] == [1, 3, 41, 42, 43]


def test_the_last_page_ends_it() -> None:
    pages: Any = KeyPages(KeyQuery("orders", "o-42"), 5, lambda message: True)
    pages.take([Stored(1, BEGIN)], NO_MORE)
    assert pages.is_done and not pages.is_cut
