"""What administration refuses: `mq.admin` through shared memory and TCP and the command line decide and cure alike.

    call of mq.admin · words of the command line ─▶ the type of the error, and what its text or hint says to do

What exists as it is asked for is no refusal: see `test_what_is_taken_is_taken_alike`.

Known to differ: over TCP a group is not reset while members read another topic; the command line may place a group
that is new, tells dead letters of a group that does not exist from none, and takes a place of -100 for messages.
"""

import json
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

import shmq
from shmq.testing import Broker
from tests.client.administration.groups import groups_of
from tests.tools.shell import Shell

Admin = Any
LETTERS = "a-z A-Z 0-9"
LONG = "x" * 128


class Refused(NamedTuple):
    """The same thing, asked both ways, its error and its cure."""

    call: Callable[[Admin], object]
    words: str
    kind: type[shmq.ShmqError]
    cure: str


REFUSED = {
    "a topic name": Refused(lambda a: a.create_topic("a b"), "topic create|a b", shmq.InvalidName, LETTERS),
    "an empty topic name": Refused(lambda a: a.create_topic(""), "topic create|", shmq.InvalidName, LETTERS),
    "a long topic name": Refused(lambda a: a.create_topic(LONG), f"topic create|{LONG}", shmq.InvalidName, "by 1"),
    "a name the broker keeps": Refused(
        lambda a: a.create_topic("RMQ_SYS_FOO"), "topic create|RMQ_SYS_FOO", shmq.UsageError, "choose another name"
    ),
    "a topic the broker keeps": Refused(
        lambda a: a.create_topic("SCHEDULE_TOPIC_XXXX"),
        "topic create|SCHEDULE_TOPIC_XXXX",
        shmq.UsageError,
        "choose another name",
    ),
    "no queues": Refused(
        lambda a: a.create_topic("new", queues=0), "topic create|new|--queues|0", shmq.UsageError, "1024"
    ),
    "too many queues": Refused(
        lambda a: a.create_topic("new", queues=1025), "topic create|new|--queues|1025", shmq.UsageError, "1024"
    ),
    "a kind": Refused(
        lambda a: a.create_topic("new", kind="odd"), "topic create|new|--kind|odd", shmq.UsageError, "transaction"
    ),
    "deleting no topic": Refused(
        lambda a: a.delete_topic("nothing"), "topic delete|nothing|--yes", shmq.TopicNotFound, "see: shmq topic list"
    ),
    "deleting nearly a topic": Refused(
        lambda a: a.delete_topic("order"), "topic delete|order|--yes", shmq.TopicNotFound, 'did you mean "orders"?'
    ),
    "deleting what the broker keeps": Refused(
        lambda a: a.delete_topic("TBW102"), "topic delete|TBW102|--yes", shmq.UsageError, "the broker's own"
    ),
    "changing what the broker keeps": Refused(
        lambda a: a.update_topic("TBW102", queues=2),
        "topic update|TBW102|--queues|2|--yes",
        shmq.UsageError,
        "choose another name",
    ),
    "a topic that exists otherwise": Refused(
        lambda a: a.create_topic("orders", queues=3), "topic create|orders|--queues|3", shmq.TopicExists, "topic update"
    ),
    "a topic that exists of another kind": Refused(
        lambda a: a.create_topic("orders", kind="fifo"),
        "topic create|orders|--kind|fifo",
        shmq.TopicExists,
        "topic update orders --kind fifo",
    ),
    "changing no topic": Refused(
        lambda a: a.update_topic("nothing", queues=2),
        "topic update|nothing|--queues|2|--yes",
        shmq.TopicNotFound,
        "see: ",
    ),
    "changing nothing of a topic": Refused(
        lambda a: a.update_topic("orders"), "topic update|orders", shmq.UsageError, "nothing to change was given"
    ),
    "changing nearly a topic": Refused(
        lambda a: a.update_topic("order", queues=2),
        "topic update|order|--queues|2|--yes",
        shmq.TopicNotFound,
        "did you mean",
    ),
    "queues that are written and not read": Refused(
        lambda a: a.update_topic("orders", queues=4, read_queues=2),
        "topic update|orders|--queues|4|--read-queues|2|--yes",
        shmq.UsageError,
        "write fewer, too",
    ),
    "dead letters of no name": Refused(lambda a: a.dlq("a b"), "dlq show|a b", shmq.InvalidName, LETTERS),
    "a reset to a negative offset": Refused(
        lambda a: a.groups["billing"].reset("orders", to="-5x"),
        "offset reset|billing|orders|--to|-5x|--yes",
        shmq.UsageError,
        "-2h",
    ),
    "a clone of an unread topic": Refused(
        lambda a: a.groups["billing"].clone("other", topic="unread"),
        "offset clone|billing|other|unread|--yes",
        shmq.UsageError,
        "has no offset in",
    ),
    "a clone of no topic": Refused(
        lambda a: a.groups["billing"].clone("other", topic="nothing"),
        "offset clone|billing|other|nothing|--yes",
        shmq.TopicNotFound,
        "see: ",
    ),
    "no topic": Refused(lambda a: a.topics["nothing"], "topic show|nothing", shmq.TopicNotFound, "see: "),
    "nearly a topic": Refused(lambda a: a.topics["order"], "topic show|order", shmq.TopicNotFound, "did you mean"),
    "no group": Refused(lambda a: a.groups["nothing"], "group show|nothing", shmq.GroupNotFound, "see: "),
    "nearly a group": Refused(lambda a: a.groups["billin"], "group show|billin", shmq.GroupNotFound, "did you mean"),
    "deleting no group": Refused(
        lambda a: a.groups["nothing"].delete(), "group delete|nothing|--yes", shmq.GroupNotFound, "see: "
    ),
    "a reset on no topic": Refused(
        lambda a: a.groups["billing"].reset("nothing", to="begin"),
        "offset reset|billing|nothing|--to|begin|--yes",
        shmq.TopicNotFound,
        "see: shmq topic list",
    ),
    "a reset to no place": Refused(
        lambda a: a.groups["billing"].reset("orders", to="soon"),
        "offset reset|billing|orders|--to|soon|--yes",
        shmq.UsageError,
        'use "begin", "end"',
    ),
    "a skip on no topic": Refused(
        lambda a: a.groups["billing"].skip("nothing"),
        "offset skip|billing|nothing|--yes",
        shmq.TopicNotFound,
        "see: shmq topic list",
    ),
    "a clone of no group": Refused(
        lambda a: a.groups["nothing"].clone("other"), "offset clone|nothing|other|--yes", shmq.GroupNotFound, "see: "
    ),
    "a clone to itself": Refused(
        lambda a: a.groups["billing"].clone("billing"),
        "offset clone|billing|billing|--yes",
        shmq.UsageError,
        "name another group",
    ),
    "a clone to no name": Refused(
        lambda a: a.groups["billing"].clone("a b"), "offset clone|billing|a b|--yes", shmq.InvalidName, LETTERS
    ),
}


@pytest.fixture(scope="module")
def connections() -> Iterator[tuple[shmq.Connection, shmq.Connection]]:
    with (
        Broker(tcp=True) as broker,
        broker.connect() as local,
        shmq.connect(f"rocketmq://{broker.name_server}") as remote,
    ):
        local.admin.create_topic("orders", queues=1)
        local.admin.create_topic("unread", queues=1)
        local.send("orders", b"x")
        with local.subscribe("orders", group="billing", start="begin") as subscription:
            for message in subscription.receive(1, 60.0):
                message.ack()
        yield local, remote


def _state(mq: shmq.Connection) -> object:
    found = mq.admin.groups
    groups = {name: [lag.backlog.next_offset for lag in found[name].offsets] for name in groups_of(mq)}
    return sorted(mq.admin.topics), groups


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_is_refused_alike(connections: tuple[shmq.Connection, shmq.Connection], name: str) -> None:
    call, words, kind, cure = REFUSED[name]
    verb, *arguments = words.split("|")
    before = _state(connections[0])
    for mq in connections:
        with pytest.raises(shmq.ShmqError) as refused:
            call(mq.admin)
        assert type(refused.value) is kind
        assert cure in f"{refused.value} {refused.value.hint}"
        result = Shell(mq.url).run(*verb.split(), *arguments, "--json")
        assert result.status != 0 and result.out == b"", result
        said = json.loads(result.err)
        assert (said["type"], cure in f"{said['error']} {said['hint']}") == (kind.__name__, True), said
        assert "topic create nothing" not in f"{refused.value.hint} {said['hint']}"
    assert _state(connections[0]) == before


def test_what_is_taken_is_taken_alike(connections: tuple[shmq.Connection, shmq.Connection]) -> None:
    """A topic that exists as it is asked for is left as it is, by programs and by the command line."""
    before = _state(connections[0])
    for mq in connections:
        assert mq.admin.create_topic("orders").write_queues == 1
        assert mq.admin.create_topic("orders", queues=1, kind="normal").write_queues == 1
        for words in ((), ("--queues", "1", "--kind", "normal")):
            result = Shell(mq.url).run("topic", "create", "orders", *words, "--json")
            assert (result.status, json.loads(result.out)["changed"]) == (0, False), result
    assert _state(connections[0]) == before
