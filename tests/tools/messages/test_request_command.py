"""Questions and answers in a shell: the reply on stdout, and a command that makes it."""

import json
from collections.abc import Iterator

import pytest

from shmq.testing import SharedBroker
from tests.tools.json_schema import check
from tests.tools.shell import TIMEOUT, Shell, interrupt, until


@pytest.fixture
def shell(shmq_shared_broker: SharedBroker) -> Shell:
    return Shell(shmq_shared_broker.url)


@pytest.fixture
def topic(shmq_shared_broker: SharedBroker) -> str:
    return shmq_shared_broker.named("prices")


@pytest.fixture
def replier(shell: Shell, shmq_shared_broker: SharedBroker, topic: str) -> Iterator[str]:
    """A replier that turns letters into capitals, for as long as a test lasts; returns its group."""
    group = f"g-{topic}"
    with (
        shell.start("reply", topic, "--exec", "tr a-z A-Z", "-g", group) as process,
        shmq_shared_broker.broker.connect() as mq,
    ):
        until(lambda: group in mq.admin.groups and mq.admin.groups[group].members, "the replier has joined")
        yield group
        interrupt(process)


def test_the_reply_is_what_the_command_printed(shell: Shell, topic: str, replier: str) -> None:
    assert shell.ok("request", topic, "apple", "--timeout", "60s") == b"APPLE\n"
    assert shell.ok("request", topic, "-", "--timeout", "60s", stdin=b"a pear\n") == b"A PEAR\n"
    document = shell.json("message", "request", topic, "fig", "--timeout", "60s")
    assert document["body"] == "FIG"


def test_without_a_replier_the_status_says_try_again(shell: Shell, topic: str) -> None:
    error = shell.fails(75, "request", topic, "unanswered", "--timeout", "200ms")
    assert topic in str(error) and "0.2 s" in str(error)


def test_a_command_that_fails_makes_no_reply_and_the_replier_says_so(shell: Shell, topic: str) -> None:
    words = ("reply", topic, "--exec", '[ "$SHMQ_TAG" = good ] && cat', "-n", "2", "-g", f"g-{topic}")
    with shell.start(*words) as process:
        assert shell.ok("request", topic, "x", "--tag", "good", "--timeout", "60s") == b"x\n"
        assert shell.run("request", topic, "x", "--tag", "bad", "--timeout", "1s").status == 75
        until(lambda: process.poll() is not None, "the replier ends after two requests")
        _, err = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 1 and b"the command ended with 1; there is no reply" in err


def test_a_replier_says_at_its_end_what_it_has_answered(shell: Shell, topic: str) -> None:
    words = ("reply", topic, "--exec", "cat", "-g", f"g-{topic}", "-n", "1", "--json")
    with shell.start(*words) as process:
        assert shell.ok("request", topic, "x", "--timeout", "60s") == b"x\n"
        out, err = process.communicate(timeout=TIMEOUT)
    document = json.loads(out)
    check("reply", document)
    assert document == {"topic": topic, "group": f"g-{topic}", "answered": 1, "failed": 0}
    assert (process.returncode, err) == (0, b"")
