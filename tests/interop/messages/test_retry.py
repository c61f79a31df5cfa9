"""Delays, retries, dead letters and queries as the official Java client and mqadmin see them."""

import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.deadline import eventually
from tests.interop.peers.cache import program
from tests.interop.peers.java import ClientError, LineClient
from tests.interop.peers.registry import DEFAULT_JDK, java_program
from tests.interop.peers.stock import SMALL_HEAP, make_home, opened
from tests.interop.target import Target

pytestmark = pytest.mark.parametrize("java_version", ["4", "5"])
CLOCK_STEP_MS = 1  # a broker may give a message the millisecond that has just ended
Named = Callable[[str], str]
Producer = Callable[..., list[dict[str, object]]]


@pytest.fixture
def java_client(client_of: Callable[[str], LineClient], java_version: str) -> LineClient:
    """The Java client of the test's parameter."""
    return client_of(f"java-{java_version}")


def mqadmin_alone(version: str, *words: str) -> str:
    """What an mqadmin command prints; these keep a client for ever, so each has a process of its own."""
    home = Path(tempfile.mkdtemp(prefix="shmq-mqadmin-"))
    command = [
        program("java", DEFAULT_JDK),
        *SMALL_HEAP,
        *opened(),
        f"-Duser.home={home}",
        "-cp",
        java_program(version),
    ]
    try:
        done = subprocess.run(
            [*command, "org.apache.rocketmq.tools.command.MQAdminStartup", *words],
            cwd=home,
            env={"ROCKETMQ_HOME": str(make_home(home))},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    finally:
        shutil.rmtree(home, ignore_errors=True)
    return done.stdout + done.stderr


def shows(version: str, wanted: tuple[str, ...], *words: str) -> None:
    """Repeat a command until it prints everything wanted; the index is built behind the log."""
    said = [""]

    def printed() -> bool:
        said[0] = mqadmin_alone(version, *words)
        return all(each in said[0] for each in wanted)

    try:
        eventually(printed, f"{words[0]} prints {wanted}")
    except AssertionError as error:
        raise AssertionError(f"{error}\n{said[0]}") from None


@pytest.fixture
def producer(java_client: LineClient, target: Target, named: Named) -> Producer:
    """Call it with a verb and its arguments, as a producer of its own."""
    name = named("producer")
    java_client.do("producer", name=name, group=name, nameServer=target.name_server)
    yield lambda verb, **arguments: java_client.do(verb, name=name, **arguments)
    if java_client.is_alive:
        java_client.do("producer-close", name=name)


@pytest.fixture
def topic(producer: Producer, named: Named) -> str:
    """A topic that exists, so that consumers find its route at once."""
    name = named("topic")
    producer("send", topic=name, bodies=["first"])
    return name


def test_a_delayed_message_comes_when_it_is_due_and_not_before(
    java_client: LineClient, target: Target, producer: Producer, topic: str, named: Named
) -> None:
    name = named("push")
    java_client.do("push", name=name, group=name, topic=topic, nameServer=target.name_server)
    java_client.expect(name, 1)
    sent_ms = time.time_ns() // 1_000_000 - CLOCK_STEP_MS
    producer("send", topic=topic, bodies=["slow"], delayLevel=2, tag="t", key="k")
    producer("send", topic=topic, bodies=["fast"], delayLevel=1)
    fast, slow = java_client.expect(name, 3)[1:]
    java_client.do("push-close", name=name)
    assert (fast["body"], slow["body"]) == ("fast", "slow")
    # The copy is stored when it is delivered; both clocks are this host's.
    assert fast["storeTimestamp"] - sent_ms >= 1000
    assert slow["storeTimestamp"] - sent_ms >= 5000
    assert (slow["topic"], slow["tag"], slow["keys"], slow["reconsumeTimes"]) == (topic, "t", "k", 0)
    assert slow["properties"]["DELAY"] == "2"


def test_a_message_that_fails_twice_comes_a_third_time_as_the_same_message(
    java_client: LineClient, target: Target, producer: Producer, topic: str, named: Named
) -> None:
    name = named("retry")
    java_client.do("push", name=name, group=name, topic=topic, nameServer=target.name_server, failFirst=2)
    received = java_client.expect(name, 3)
    java_client.do("push-close", name=name)
    assert [each["reconsumeTimes"] for each in received] == [0, 1, 2]
    assert {(each["topic"], each["msgId"], each["body"]) for each in received} == {
        (topic, received[0]["msgId"], "first")
    }
    origins = [each["properties"].get("ORIGIN_MESSAGE_ID") for each in received]
    assert origins[0] is None and origins[1] == origins[2]
    assert [each["properties"].get("RETRY_TOPIC") for each in received[1:]] == [topic, topic]


def test_what_fails_too_often_is_found_among_the_dead_letters(
    java_client: LineClient, target: Target, producer: Producer, topic: str, named: Named
) -> None:
    name = named("dead")
    arguments = {"group": name, "topic": topic, "nameServer": target.name_server, "failFirst": 99, "maxReconsume": 1}
    java_client.do("push", name=name, **arguments)
    assert [each["reconsumeTimes"] for each in java_client.expect(name, 2)] == [0, 1]
    where = {"topic": f"%DLQ%{name}", "broker": target.broker_name, "queue": 0}
    reader = named("reader")
    java_client.do("pull", name=reader, group=reader, nameServer=target.name_server)

    def dead() -> list[dict[str, object]]:
        try:
            return list(java_client.do("pull-once", name=reader, offset=0, **where)["messages"])
        except ClientError:
            return []  # the topic is not there yet, or this client does not know it

    (letter,) = eventually(dead, "the dead letter")
    java_client.do("push-close", name=name)
    java_client.do("pull-close", name=reader)
    assert (letter["body"], letter["reconsumeTimes"], letter["properties"]["DELAY"]) == ("first", 2, "0")
    assert letter["properties"]["RETRY_TOPIC"] == topic


def test_mqadmin_finds_messages_by_key_by_id_and_by_unique_key(
    java_client: LineClient, java_version: str, target: Target, producer: Producer, topic: str
) -> None:
    (sent,) = producer("send", topic=topic, bodies=["wanted"], key="order-42", tag="red")
    server = ("-n", target.name_server)
    of_topic = ("-t", topic) if java_version == "5" else ()  # 4.9 does not know the option

    unique = str(sent["msgId"])
    shows(java_version, (unique, str(sent["queue"])), "queryMsgByKey", *server, "-t", topic, "-k", "order-42")
    by_id = ("queryMsgById", *server, *of_topic, "-i", str(sent["offsetMsgId"]))
    shows(java_version, (topic, "red", "order-42", unique), *by_id)
    shows(java_version, (topic, "order-42"), "queryMsgByUniqueKey", *server, "-t", topic, "-i", unique)
    if target.is_ours:
        missing = mqadmin_alone(java_version, "queryMsgByKey", *server, "-t", topic, "-k", "no-such-key")
        assert str(sent["msgId"]) not in missing
