"""Names, property text, suggestions; and what a word may be (shmq/words.py)."""

import functools
import re
import string
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shmq.client.keywords import message_properties
from shmq.client.spec import parse_tags
from shmq.errors import InvalidName, MessageTooLarge, PermissionDenied, UsageError
from shmq.message import (
    CONSUMER_GROUP_BYTES_MAX,
    GROUP_BYTES_MAX,
    TOPIC_BYTES_MAX,
    check_consumer_group,
    check_group,
    check_open_topic,
    check_popping,
    check_topic,
    dead_letter_topic,
    is_system_topic,
    nearest,
    retry_topic,
)
from shmq.properties import (
    PROPERTIES_BYTES_MAX,
    RESERVED_PROPERTIES,
    check_properties,
    encode_properties,
    is_control,
    parse_properties,
)
from shmq.shm import core
from shmq.testing import SharedBroker
from shmq.words import check_word, escaped, keys_in, sent_again, tags_in
from tests.tables.rows import every_row

TOPIC_RULE = re.compile(r"[%|a-zA-Z0-9_-]{1,127}")
ALPHABET = string.ascii_letters + string.digits + "%|_-"
TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\x01\x02"), min_size=1, max_size=40)


@given(st.text(max_size=140) | st.text(ALPHABET, max_size=140))
def test_a_topic_is_accepted_exactly_when_rocketmq_accepts_it(name: str) -> None:
    if TOPIC_RULE.fullmatch(name):
        assert check_topic(name) == name
    else:
        with pytest.raises(InvalidName) as caught:
            check_topic(name)
        assert caught.value.hint


@every_row("name", ["%RETRY%g+t", "%RETRY%" + "g" * 60 + "+" + "t" * 59, "%RETRY%g+%RETRY%h", "%RETRY%g+%RETRY%h+t"])
def test_a_plus_stands_in_the_name_of_a_pop_retry_topic_to_which_no_client_sends(name: str) -> None:
    assert check_topic(name) == name
    with pytest.raises(PermissionDenied):
        check_open_topic(name)
    with pytest.raises(InvalidName):
        check_group(name)


@every_row("name", ["a+b", "%RETRY%+", "%RETRY%g+", "%RETRY%+t", "%RETRY%g+t+u", "%DLQ%g+t", "%RETRY%g+t t"])
def test_a_plus_stands_in_no_other_name(name: str) -> None:
    with pytest.raises(InvalidName):
        check_topic(name)


def test_names_are_bounded_at_their_exact_length() -> None:
    assert check_topic("t" * TOPIC_BYTES_MAX)
    assert check_group("g" * GROUP_BYTES_MAX)
    with pytest.raises(InvalidName, match="128 characters, 127 are allowed"):
        check_topic("t" * (TOPIC_BYTES_MAX + 1))
    with pytest.raises(InvalidName, match="256 characters, 255 are allowed"):
        check_group("g" * (GROUP_BYTES_MAX + 1))
    assert len(retry_topic(check_consumer_group("g" * CONSUMER_GROUP_BYTES_MAX))) == TOPIC_BYTES_MAX
    with pytest.raises(InvalidName, match="121 characters, 120 are allowed"):
        check_consumer_group("g" * (CONSUMER_GROUP_BYTES_MAX + 1))
    for group, topic in (("g" * 60, "t" * 59), ("g" * 118, "t"), ("g", "t" * 118)):
        check_popping(group, topic)
        with pytest.raises(InvalidName, match="120 characters, 119 are allowed"):
            check_popping(group, topic + "t")


@every_row("name", ["", "a b", "a/b", "..", "a\n", "ärger", "a\x00", "\ud800"])
def test_a_wrong_name_names_its_wrong_character(name: str) -> None:
    with pytest.raises(InvalidName) as caught:
        check_group(name)
    str(caught.value).encode("ascii")  # the message itself must never be unprintable


def test_a_name_that_is_not_text_is_refused() -> None:
    with pytest.raises(InvalidName, match="not bytes"):
        check_topic(b"orders")  # type: ignore[arg-type]


@given(st.dictionaries(TEXT, TEXT, max_size=20))
def test_properties_survive_their_text(properties: dict[str, str]) -> None:
    assert parse_properties(encode_properties(properties)) == properties


def test_property_text_is_rocketmqs() -> None:
    assert encode_properties({"TAGS": "fruit", "KEYS": "a b"}) == "TAGS\x01fruit\x02KEYS\x01a b\x02"
    assert encode_properties({}) == ""


@given(st.text(st.sampled_from("\x01\x02ab"), max_size=60))
def test_parsing_never_fails_and_never_invents(text: str) -> None:
    for key, value in parse_properties(text).items():
        assert key and value
        assert f"{key}\x01{value}" in text


@pytest.mark.parametrize(
    ("text", "properties"),
    [
        ("a\x011\x02b\x012", {"a": "1", "b": "2"}),
        ("a\x011\x02\x02b\x012\x02", {"a": "1", "b": "2"}),
        ("a\x011\x02a\x012\x02", {"a": "2"}),
        ("\x011\x02a\x01\x02b", {}),
        ("a\x011\x012\x02", {"a": "1\x012"}),
    ],
)
def test_parsing_skips_what_rocketmq_skips(text: str, properties: dict[str, str]) -> None:
    assert parse_properties(text) == properties


@every_row("properties", [{"": "v"}, {"k": ""}, {"k\x01": "v"}, {"k": "v\x02"}, {"k": 1}, {"k": "\ud800"}])
def test_properties_the_text_cannot_carry_are_refused(properties: dict[str, str]) -> None:
    with pytest.raises(UsageError):
        encode_properties(properties)


def test_properties_are_bounded_in_bytes_not_characters() -> None:
    most = PROPERTIES_BYTES_MAX - len("k\x01\x02")
    assert encode_properties({"k": "v" * most})
    with pytest.raises(MessageTooLarge, match="32768 bytes"):
        encode_properties({"k": "v" * (most + 1)})
    with pytest.raises(MessageTooLarge):
        encode_properties({"k": "ä" * (most // 2 + 1)})


def test_reserved_keys_are_refused_as_free_properties_only() -> None:
    check_properties({"region": "eu"})
    for key in RESERVED_PROPERTIES:
        with pytest.raises(UsageError, match="reserved"):
            check_properties({key: "x"})
        assert encode_properties({key: "x"})


def test_topics_of_the_broker_are_known() -> None:
    assert is_system_topic("SCHEDULE_TOPIC_XXXX")
    assert is_system_topic("RMQ_SYS_TRANS_HALF_TOPIC")
    assert not is_system_topic("orders")
    assert not is_system_topic(retry_topic("billing"))
    assert retry_topic("g") == "%RETRY%g"
    assert dead_letter_topic("g") == "%DLQ%g"


@every_row(
    ("typed", "meant"),
    [
        ("ordres", ["orders"]),
        ("Orders", ["orders", "orders2"]),
        ("order", ["orders"]),
        ("oders", ["orders"]),
        ("invoice", ["invoices"]),
        ("zebra", []),
        ("", []),
    ],
)
def test_a_typing_mistake_finds_the_name_that_was_meant(typed: str, meant: list[str]) -> None:
    found = nearest(typed, ["orders", "orders2", "invoices", "metrics"])
    assert found[: len(meant)] == meant
    assert meant or not found


@given(st.text("abc", max_size=8), st.text("abc", max_size=8))
def test_a_suggestion_is_never_farther_than_a_third_of_the_word(typed: str, other: str) -> None:
    def distance(left: str, right: str) -> int:  # plain recursion over the definition, as the oracle
        if not left or not right:
            return len(left) + len(right)
        best = min(
            distance(left[1:], right) + 1,
            distance(left, right[1:]) + 1,
            distance(left[1:], right[1:]) + (left[0] != right[0]),
        )
        if len(left) > 1 and len(right) > 1 and left[0] == right[1] and left[1] == right[0]:
            best = min(best, distance(left[2:], right[2:]) + 1)
        return best

    if len(typed) + len(other) > 9:
        return
    limit = max(1, min(3, len(typed) // 3))
    assert (nearest(typed, [other]) == [other]) == (distance(typed, other) <= limit)


def test_suggestions_stay_cheap_among_ten_thousand_similar_names() -> None:
    calls = 0

    class Counting(str):
        def lower(self) -> str:
            nonlocal calls
            calls += 1
            return str.lower(self)

    names = [Counting("topic" * 20 + f"{number:05}") for number in range(10_000)]
    found = nearest("topic" * 20 + "00012", names)
    assert "topic" * 20 + "00012" in found
    assert calls <= 201


def test_the_limits_are_those_of_the_tables_and_records() -> None:
    assert (TOPIC_BYTES_MAX, PROPERTIES_BYTES_MAX) == (core.TOPIC_BYTES_MAX, core.PROPERTIES_BYTES_MAX)


# -- words

KINDS = ("tag", "key", "message_group")
LETTERS = st.characters() | st.sampled_from("a *|\x00\x01\x02\x7f\x85\ud800\u3000")
ANY = st.text(LETTERS, max_size=12)


@functools.cache
def controls() -> list[str]:
    return [chr(code) for code in range(0x110000) if is_control(chr(code))]


def blanks() -> list[str]:
    return [chr(code) for code in range(0x80, 0x110000) if chr(code).isspace() and not is_control(chr(code))]


@every_row("kind", KINDS)
def test_a_word_holds_no_control_character_no_half_of_a_pair_and_is_not_empty(kind: str) -> None:
    for text in ("", "\ud800", "a\udfffb", *(f"a{control}b" for control in controls())):
        with pytest.raises(UsageError) as caught:
            check_word(kind, text)
        assert str(caught.value).isascii() and caught.value.hint


@every_row("kind", KINDS)
def test_a_blank_that_is_not_ascii_is_a_letter(kind: str) -> None:
    assert {"\u3000", "\u00a0"} <= set(blanks())
    for blank in blanks():
        for text in (blank, f"{blank}a", f"a{blank}", f"a{blank}b"):
            check_word(kind, text)
            assert parse_tags([text]) == parse_tags(f" {text} ") == (text,)
            assert keys_in(f"{text} b") == [text, "b"]


@every_row("tag", [" ", " a", "a ", "*", "a|b", "||"])
def test_a_tag_that_no_subscription_can_name_is_refused(tag: str) -> None:
    with pytest.raises(UsageError, match="in a subscription"):
        check_word("tag", tag)


@given(ANY)
def test_every_tag_that_is_taken_can_be_subscribed_to(text: str) -> None:
    try:
        check_word("tag", text)
    except UsageError:
        return
    assert parse_tags(text) == parse_tags([text]) == (text,)
    assert tags_in(f"{text} ||b") == [text, "b"]


@given(st.dictionaries(ANY | st.sampled_from(["TAGS", "KEYS", "__SHARDINGKEY"]), ANY, max_size=6))
def test_whatever_is_stored_can_be_sent_again(properties: dict[str, str]) -> None:
    again: dict[str, Any] = sent_again(properties)
    keys = again["keys"] or ()
    found = message_properties(again["tag"], keys, again["message_group"], again["properties"])
    assert parse_properties(encode_properties(found)) == found


def test_what_is_sent_again_is_what_was_sent_but_for_what_may_not_be() -> None:
    stored = {"TAGS": "sour fruit", "KEYS": "a\u3000b  c", "__SHARDINGKEY": "g", "n": "a\nb", "UNIQ_KEY": "1"}
    stored["own"] = "2"
    assert sent_again(stored, without=["own"]) == {
        "tag": "sour fruit",
        "keys": ["a\u3000b", "c"],
        "properties": {"n": "a\nb"},
        "message_group": "g",
    }
    assert sent_again({}) == {"tag": None, "keys": None, "properties": None, "message_group": None}


@every_row(
    ("kind", "text", "written"),
    [
        ("tag", "a\0b", r"a\x00b"),
        ("tag", " a| ", r"\x20a\x7c\x20"),
        ("tag", "*", r"\x2a"),
        ("tag", "**", "**"),
        ("tag", "a b\u3000", "a b\u3000"),
        ("key", "a\x85b", r"a\x85b"),
        ("message_group", "a\ud800", r"a\ud800"),
        ("value", "a\x01\tb", "a\\x01\tb"),
        ("environment", "a\0\x01", "a\\x00\x01"),
    ],
)
def test_what_may_not_be_is_written_as_an_escape(kind: str, text: str, written: str) -> None:
    assert escaped(kind, text) == written


def test_the_core_keeps_the_same_properties_for_rocketmq(shmq_shared_broker: SharedBroker) -> None:
    topic = shmq_shared_broker.named("kept")
    with shmq_shared_broker.connect() as mq:
        for name in RESERVED_PROPERTIES:
            with pytest.raises(UsageError, match="reserved by RocketMQ"):
                mq.send(topic, b"x", properties={name: "x"})
        assert mq.browse(topic) == []
