"""The checker's own test: every anomaly is found in a history that has it, and none in one that has not."""

import pytest

from tests.crash.history.history import History, Place, body_of, delivered_anomalies, name_in, stored_anomalies


def history(*names: str, losses: set[str] | None = None) -> History:
    """A history in which all of these were sent to queue 0 one after the other, and acknowledged."""
    made = History(losses=losses or set())
    for offset, name in enumerate(names):
        made.attempt(name)
        made.ack(name, ("t", 0, offset))
    return made


def stored(*names: str) -> dict[Place, bytes]:
    return {("t", 0, offset): body_of(name, 50) for offset, name in enumerate(names)}


def kinds(found: dict[Place, bytes], told: History, end: int | None = None) -> list[str]:
    bounds = {("t", 0): (0, len(found) if end is None else end)}
    return [each.kind for each in stored_anomalies(found, bounds, told.acks, told)]


@pytest.mark.parametrize("size", [0, 1, 12, 50, 5000])
def test_a_body_has_its_name_and_a_changed_one_has_none(size: int) -> None:
    body = body_of("plain-1-2", size)
    assert name_in(body) == "plain-1-2"
    assert len(body) == max(size, len("plain-1-2|"))
    for at in range(0, len(body), max(1, len(body) // 40)):
        assert name_in(body[:at] + bytes([body[at] ^ 1]) + body[at + 1 :]) != "plain-1-2"


def test_a_history_that_fits_has_no_anomaly() -> None:
    assert kinds(stored("a-0-0", "a-0-1"), history("a-0-0", "a-0-1")) == []


def test_what_was_not_answered_may_be_stored_or_not() -> None:
    told = history("a-0-0")
    told.attempt("a-0-1")
    assert kinds(stored("a-0-0"), told) == kinds(stored("a-0-0", "a-0-1"), told) == []


def test_an_acknowledged_message_that_is_not_stored_is_lost() -> None:
    assert kinds(stored("a-0-0"), history("a-0-0", "a-0-1")) == ["lost-write"]


def test_a_message_without_a_known_place_is_looked_for_everywhere() -> None:
    told = history("a-0-0")
    told.attempt("tx-0-1")
    told.ack("tx-0-1", None)
    assert kinds(stored("a-0-0"), told) == ["lost-write"]
    assert kinds(stored("a-0-0", "tx-0-1"), told) == []


def test_two_messages_that_changed_places_are_inconsistent() -> None:
    assert kinds(stored("a-0-1", "a-0-0"), history("a-0-0", "a-0-1")) == ["inconsistent-offset"] * 2


def test_what_was_not_sent_is_unexpected() -> None:
    assert kinds(stored("a-0-0", "a-0-9"), history("a-0-0")) == ["unexpected"]


def test_what_was_reported_as_not_stored_is_unexpected() -> None:
    told = history("a-0-0", losses={"a-0-1"})
    told.attempt("a-0-1")
    assert kinds(stored("a-0-0", "a-0-1"), told) == ["unexpected"]


def test_a_changed_body_is_corrupt() -> None:
    found = stored("a-0-0")
    found["t", 0, 0] = found["t", 0, 0][:-1] + b"?"
    assert kinds(found, history("a-0-0")) == ["corrupt"]


def test_a_message_that_is_stored_twice_is_a_duplicate() -> None:
    assert kinds(stored("a-0-0", "a-0-0"), history("a-0-0")) == ["duplicate"]


def test_an_offset_that_holds_nothing_is_a_gap() -> None:
    assert kinds(stored("a-0-0"), history("a-0-0"), end=2) == ["gap"]


def test_a_group_that_got_everything_once_or_more_often_is_well() -> None:
    told = history("a-0-0", "a-0-1")
    given = [body_of(name, 9) for name in ("a-0-1", "a-0-0", "a-0-0")]
    assert delivered_anomalies(given, told.acks, told) == []


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        (["a-0-0"], "lost-write"),
        (["a-0-0", "a-0-1", "a-0-7"], "unexpected"),
        (["a-0-0", "a-0-1", "back-0-2"], "aborted-read"),
        (["a-0-0", "a-0-1", "a-0-3"], "unexpected"),
    ],
)
def test_a_group_that_got_too_little_or_what_it_must_not_get_is_seen(given: list[str], kind: str) -> None:
    told = history("a-0-0", "a-0-1", losses={"a-0-3"})
    for name in ("back-0-2", "a-0-3"):
        told.attempt(name)
    found = delivered_anomalies([body_of(name, 9) for name in given], ["a-0-0", "a-0-1"], told)
    assert [each.kind for each in found] == [kind]


def test_a_group_that_got_a_changed_body_is_seen() -> None:
    told = history("a-0-0")
    found = delivered_anomalies([body_of("a-0-0", 9), b"a-0-0|other"], told.acks, told)
    assert [each.kind for each in found] == ["corrupt"]


def test_a_place_that_is_known_to_be_damaged_is_no_gap_and_a_loss_if_it_was_acknowledged() -> None:
    told = history("a-0-0")
    bounds = {("t", 0): (0, 2)}
    assert stored_anomalies(stored("a-0-0"), bounds, told.acks, told, damaged={("t", 0, 1)}) == []
    found = stored_anomalies({}, {("t", 0): (0, 1)}, told.acks, told, damaged={("t", 0, 0)})
    assert [each.kind for each in found] == ["lost-write"]
