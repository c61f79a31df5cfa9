"""One table of exit statuses holds for every verb: what does not exist is 1, a wrong call is 64, no broker is 69."""

import importlib.util
import itertools
import re
from collections.abc import Iterator

import click
import pytest

from shmq.testing import SharedBroker
from shmq.tools.cli import cli
from tests.tables.rows import every_row
from tests.tools.shell import Inside

ID = "7F0000010000000000000000DEADBEEF"  # an offset message id of a place where nothing is
NONE = "no-such-name"

# Every verb that names something of the broker, called with a name that nothing has.
NOT_FOUND = [
    ("topic", "show", NONE),
    ("topic", "update", NONE, "--queues", "2"),
    ("topic", "delete", NONE, "--yes"),
    ("group", "show", NONE),
    ("group", "delete", NONE, "--yes"),
    ("offset", "show", NONE),
    ("offset", "show", NONE, "{topic}"),
    ("offset", "reset", NONE, "--to", "end", "--yes"),
    ("offset", "reset", NONE, NONE, "--to", "end", "--yes"),
    ("offset", "skip", NONE, "--yes"),
    ("offset", "clone", NONE, "other", "--yes"),
    ("offset", "clone", NONE, "other", "{topic}", "--yes"),
    ("dlq", "show", NONE),
    ("dlq", "resend", NONE, "--yes"),
    ("dlq", "resend", "{group}", "--offset", "4711", "--yes"),
    ("dlq", "export", NONE),
    ("dlq", "purge", NONE, "--yes"),
    ("message", "show", ID),
    ("message", "show", NONE, ID),
    ("message", "show", "{topic}", ID),
    ("message", "find", NONE),
    ("message", "find", "{topic}", "--key", NONE),
    ("message", "trace", NONE),
    ("message", "resend", ID, "--yes"),
    ("message", "verify", ID),
    ("message", "verify", NONE),
    ("timer", "cancel", NONE, "--yes"),
    ("tx", "check", NONE),
    ("tx", "commit", NONE, "--yes"),
    ("tx", "rollback", NONE, "--yes"),
    ("consume", NONE, "-e"),
    ("query", f'select count(*) from "{NONE}"'),
    ("context", "use", NONE),
    ("context", "rm", NONE),
    ("-c", NONE, "topic", "list"),
]
# These have other statuses, or name nothing that could be missing.
ELSEWHERE = {
    *("serve", "nameserver", "systemd", "stop", "demo", "bench", "health", "top", "doctor", "version", "console"),
    *("produce", "request", "reply", "tail"),  # what is missing is made, waited for, or does not answer
    *("topic list", "topic create", "group list", "group create", "dlq list", "timer list", "tx list"),
    *("context add", "context list", "completion install", "completion show"),
    *("check topic", "check group", "check store", "check process", "check memory"),  # statuses of monitoring
    *("store scrub", "store inspect", "store verify", "store repair", "store export", "store import", "store resend"),
    *("spark archive", "spark replay", "spark reconcile", "spark lag", "spark dlq"),
    *("config show", "config check"),
    *("cluster status", "cluster members", "cluster promote", "cluster demote"),
}


@pytest.fixture
def inside(shmq_shared_broker: SharedBroker, capfdbinary: pytest.CaptureFixture[bytes]) -> Inside:
    return Inside(shmq_shared_broker.url, capfdbinary)


_serial = itertools.count()


def filled_in(words: tuple[str, ...], broker: SharedBroker) -> list[str]:
    """The words with a topic and a group of their own."""
    number = next(_serial)
    topic, group = broker.named(f"orders{number}"), broker.named(f"billing{number}")
    with broker.connect() as mq, mq.subscribe(topic, group=group):
        mq.send(topic, b"x")
    return [word.format(topic=topic, group=group) for word in words]


def runnable(table: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """The rows that can run here: a query needs duckdb, which the tests' extra installs."""
    return [words for words in table if words[0] != "query" or importlib.util.find_spec("duckdb")]


def verbs() -> Iterator[str]:
    """Every command that does something, as it is called."""
    context = click.Context(cli)
    for name in cli.list_commands(context):
        command = cli.get_command(context, name)
        if isinstance(command, click.Group):
            yield from (f"{name} {verb}" for verb in command.list_commands(context))
        else:
            yield name


def test_every_verb_is_in_the_table_or_known_to_need_no_line() -> None:
    tabled = {" ".join(words[:2]) for words in NOT_FOUND} | {words[0] for words in NOT_FOUND}
    assert [verb for verb in verbs() if verb not in tabled | ELSEWHERE] == []


@every_row("words", runnable(NOT_FOUND), ids=" ".join)
def test_what_does_not_exist_ends_with_1(
    inside: Inside, shmq_shared_broker: SharedBroker, words: tuple[str, ...]
) -> None:
    error = inside.fails(1, *filled_in(words, shmq_shared_broker))
    assert not error["error"].startswith("the broker answered"), error
    assert "create" not in error["hint"] or words[0] in ("consume", "tail", "message"), error
    assert error["hint"] and "None" not in error["error"]


WRONG_CALLS = [
    ("topic", "shwo"),
    ("topic", "show"),
    ("topic", "create", "a b"),
    ("topic", "update", "{topic}"),
    ("topic", "update", "{topic}", "--queues", "0"),
    ("topic", "delete", "{topic}"),
    ("offset", "reset", "{group}", "{topic}", "--to", "soon"),
    ("offset", "reset", "{group}", "{topic}", "--to", "end", "--queue", "99"),
    ("produce", "{topic}", "x", "--queue", "99"),
    ("consume", "{topic}", "--nonsense"),
    ("message", "show", "a", "b", "c"),
    ("dlq", "show", "a b"),
    ("query", "selct 1"),
    ("query", ""),
    ("query", "select 1", "--since", "soon"),
    ("--watch", "0s", "topic", "list"),
]


@every_row("words", runnable(WRONG_CALLS), ids=" ".join)
def test_a_wrong_call_ends_with_64(inside: Inside, shmq_shared_broker: SharedBroker, words: tuple[str, ...]) -> None:
    inside.fails(64, *filled_in(words, shmq_shared_broker))


OF_A_BROKER = [words for words in NOT_FOUND if words[0] not in ("context", "-c")]


@every_row("words", runnable([*OF_A_BROKER, ("produce", "t", "x"), ("topic", "list")]), ids=" ".join)
def test_no_broker_ends_with_69(inside: Inside, words: tuple[str, ...]) -> None:
    error = inside.fails(69, *(word.format(topic="t", group="g") for word in words), "-u", "shmq:///nonexistent/none")
    assert re.search(r"shmq serve", error["hint"]), error
