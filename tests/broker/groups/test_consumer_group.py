"""Among whom topics are divided, where retries lie, and which ways of reading do not go together."""

from typing import NamedTuple

import pytest

from shmq.daemon.broker.groups.consumer_group import ConsumerGroup, Member, Origin, check_way
from shmq.daemon.broker.groups.subscriptions import subscription_of
from shmq.errors import SubscriptionConflict
from shmq.protocol.body import SubscriptionData
from shmq.protocol.codes import Language
from tests.tables.rows import every_row

RETRY = "%RETRY%g"


def member(text: str) -> Member:
    """`a:t,u` is ours; `A:t` a client of RocketMQ; `a:t?` pops t; `a:t!` broadcasts."""
    name, _, topics = text.partition(":")
    model = "BROADCASTING" if "!" in topics else "CLUSTERING"
    names = [topic.strip("?!") for topic in topics.split(",")]
    return Member(
        name,
        Origin(1, is_local=False, language=Language.PYTHON, version=409),
        subscription_of("g", (SubscriptionData(topic=topic) for topic in (*names, RETRY))),
        0,
        model=model,
        shares_by_topic=name.islower(),
        popped=frozenset(topic.strip("?!") for topic in topics.split(",") if "?" in topic),
    )


def group_of(*members: str) -> ConsumerGroup:
    made = [member(text) for text in members]
    return ConsumerGroup("g", "CLUSTERING", "", {each.client_id: each for each in made})


class Row(NamedTuple):
    members: tuple[str, ...]
    shares: dict[str, str]
    """topic -> letters of those that divide it; "" as clients of RocketMQ ask."""
    homes: dict[str, str]
    """topic -> where its retries lie."""
    unread: tuple[str, ...] = ()


ROWS = {
    "all read alike": Row(
        ("a:t,u", "b:t,u"), {"t": "ab", "u": "ab", "": "ab", RETRY: "ab", f"{RETRY}+t": "ab"}, {"t": RETRY, "u": RETRY}
    ),
    "one reads another topic": Row(
        ("a:t", "b:u"),
        {"t": "a", "u": "b", RETRY: "", f"{RETRY}+t": "a", f"{RETRY}+u": "b"},
        {"t": f"{RETRY}+t", "u": f"{RETRY}+u", "gone": f"{RETRY}+gone"},
        (RETRY,),
    ),
    "one reads more": Row(
        ("a:t", "b:t,u"), {"t": "ab", "u": "b", RETRY: "", f"{RETRY}+t": "ab"}, {"t": f"{RETRY}+t"}, (RETRY,)
    ),
    "one that pops": Row(("a:t?",), {"t": "a", RETRY: ""}, {"t": f"{RETRY}+t"}, (RETRY,)),
    "clients of RocketMQ only": Row(
        ("A:t", "B:u"),
        {"": "AB", "t": "AB", "u": "AB", RETRY: "AB"},
        {"t": RETRY},
        (f"{RETRY}+t", f"{RETRY}+u"),
    ),
    "ours beside one of RocketMQ": Row(
        ("A:t", "b:t"),
        {"": "Ab", "t": "Ab", RETRY: "Ab", f"{RETRY}+t": ""},
        {"t": RETRY, "gone": RETRY},
        (f"{RETRY}+t",),
    ),
    "one of ours beside it reads something else": Row(
        ("A:t", "b:t", "c:u"),
        {"": "Ab", "t": "Ab", "u": "c", RETRY: "Ab", f"{RETRY}+t": "", f"{RETRY}+u": "c"},
        {"t": RETRY, "u": f"{RETRY}+u", "gone": RETRY},
        (f"{RETRY}+t",),
    ),
    "one of ours beside it reads more": Row(
        ("A:t", "b:t,u", "c:u"),
        {"t": "Ab", "u": "bc", RETRY: "Ab", f"{RETRY}+u": "bc"},
        {"u": f"{RETRY}+u"},
        (f"{RETRY}+t",),
    ),
    "those that broadcast divide nothing": Row(("A:t!", "b:t"), {"": "b", "t": "b", RETRY: "b"}, {"t": RETRY}),
}


@every_row("row", ROWS.values(), ids=list(ROWS))
def test_who_divides_a_topic_and_where_its_retries_lie(row: Row) -> None:
    group = group_of(*row.members)
    assert {topic: "".join(group.sharers(topic)) for topic in row.shares} == row.shares
    assert {topic: group.retry_home(topic) for topic in row.homes} == row.homes
    assert tuple(group.unread_retry_topics()) == row.unread


@every_row("row", ROWS.values(), ids=list(ROWS))
def test_what_a_retry_is_stored_in_is_read_by_those_that_read_its_topic(row: Row) -> None:
    group = group_of(*row.members)
    for topic in {topic for each in group.members.values() for topic in each.subscription}:
        home = group.retry_home(topic)
        readers = group.sharers(home)
        assert home not in group.unread_retry_topics()
        assert readers == group.sharers(topic if home != RETRY else RETRY) != []
        assert any(group.members[name].subscription.keys() >= {topic} for name in readers)


def test_names_too_long_for_a_retry_topic_of_their_own_share_the_groups() -> None:
    group = group_of("a:t", f"b:{'u' * 119}")
    assert not group.differs and group.retry_home("t") == group.retry_home("u" * 119) == RETRY
    assert group.sharers(RETRY) == ["a", "b"] and group.unread_retry_topics() == []


WAYS: dict[str, tuple[str, str | None, list[str], str]] = {
    "the same": ("a:t", None, ["b:t"], ""),
    "another topic in another way": ("a:t?", None, ["b:u"], ""),
    "the queues beside who pops": ("a:t", None, ["b:t?"], 'takes messages as a simple consumer of topic "t", this'),
    "popping beside the queues": ("a:t,u?", None, ["c:t", "b:u"], 'reads the queues of topic "u", this member takes'),
    "what it has done all along": ("a:t", "a:t", ["b:t?"], ""),
    "the other way from now on": (
        "a:t?",
        "a:t",
        ["b:t"],
        'reads the queues of topic "t", this member takes messages as a simple consumer: both',
    ),
    "popping beside a client of RocketMQ, which may pop": ("a:t?", None, ["B:t"], ""),
    "broadcasting beside sharing": ("a:t!", None, ["b:t"], "consumes CLUSTERING, this member BROADCASTING"),
    "sharing beside broadcasting": ("a:t", None, ["B:t!"], "consumes BROADCASTING, this member CLUSTERING"),
    "sharing as before": ("a:t", "a:t", ["B:t!"], ""),
}


@every_row("new, own, others, said", WAYS.values(), ids=list(WAYS))
def test_ways_of_reading_that_take_messages_from_each_other_are_refused(
    new: str, own: str | None, others: list[str], said: str
) -> None:
    asked = member(new), member(own) if own else None, [member(other) for other in others]
    if not said:
        check_way("g", *asked)
        return
    with pytest.raises(SubscriptionConflict, match=said) as refused:
        check_way("g", *asked)
    assert refused.value.hint
