"""POP with the official Java client of release 5: the broker shares out the messages, here as at the stock broker."""

from collections.abc import Callable, Iterator

import pytest

from tests.interop.peers.java import JavaClient
from tests.interop.target import Target

pytestmark = pytest.mark.parametrize("java_version", ["5"])
Named = Callable[[str], str]
Produce = Callable[..., list[dict[str, object]]]


@pytest.fixture
def produce(java_client: JavaClient, target: Target, named: Named) -> Iterator[Produce]:
    name = named("producer")
    java_client.do("producer", name=name, group=name, nameServer=target.name_server)
    yield lambda **arguments: java_client.do("send", name=name, **arguments)
    java_client.do("producer-close", name=name)


@pytest.fixture
def popping(
    java_client: JavaClient, target: Target, named: Named, produce: Produce, mqadmin: Callable[..., str]
) -> Iterator[Callable[..., tuple[str, str]]]:
    """Call it for a topic and a group that pops it; returns (topic, name of a consumer of the group)."""
    opened: list[str] = []
    topic, group = named("topic"), named("group")
    server, broker = ("-n", target.name_server), ("-b", target.broker_address)
    mqadmin("5", "updateTopic", *server, *broker, "-t", topic, "-r", "4", "-w", "4")
    mqadmin("5", "updateSubGroup", *server, *broker, "-g", group)
    said = mqadmin("5", "setConsumeMode", *server, *broker, "-t", topic, "-g", group, "-m", "POP", "-q", "0")
    assert "success" in said, said

    def consumer(**arguments: object) -> tuple[str, str]:
        name = named("pop")
        where = {"group": group, "topic": topic, "nameServer": target.name_server}
        java_client.do("push", name=name, pop=True, **where, **arguments)
        opened.append(name)
        return topic, name

    yield consumer
    for name in opened:
        java_client.do("push-close", name=name)


def receipt_of(event: dict[str, object]) -> list[str]:
    properties = event["properties"]
    assert isinstance(properties, dict)
    return str(properties["POP_CK"]).split(" ")


def test_a_group_that_pops_gets_every_message_once(
    java_client: JavaClient, produce: Produce, popping: Callable[..., tuple[str, str]]
) -> None:
    topic, name = popping()
    produce(topic=topic, bodies=[f"m{number}" for number in range(20)], tag="t", key="k")
    found = java_client.expect(name, 20)
    assert sorted(str(each["body"]) for each in found) == sorted(f"m{number}" for number in range(20))
    assert {each["topic"] for each in found} == {topic}
    assert all(len(receipt_of(each)) == 8 and receipt_of(each)[4] == "0" for each in found)
    produce(topic=topic, bodies=["last"])
    assert sorted(str(each["body"]) for each in java_client.expect(name, 21))[0] == "last"
    assert len({each["msgId"] for each in java_client.expect(name, 21)}) == 21


def test_what_a_listener_fails_comes_again_through_the_retry_topic(
    java_client: JavaClient, target: Target, produce: Produce, popping: Callable[..., tuple[str, str]]
) -> None:
    topic, name = popping(failFirst=2)
    produce(topic=topic, bodies=["again"], tag="t", key="k")
    found = java_client.expect(name, 3)
    assert [each["reconsumeTimes"] for each in found] == [0, 1, 2]
    assert {(each["topic"], each["body"], each["tag"], each["msgId"]) for each in found} == {
        (topic, "again", "t", found[0]["msgId"])
    }
    flag = "2" if target.is_ours else "1"  # RocketMQ takes its first name unless enableRetryTopicV2 is set
    assert [receipt_of(each)[4] for each in found] == ["0", flag, flag]


def test_a_pop_takes_only_the_tags_it_wants(
    java_client: JavaClient, produce: Produce, popping: Callable[..., tuple[str, str]]
) -> None:
    topic, name = popping(tags="red || blue")
    for tag in ("red", "green", "blue"):
        produce(topic=topic, bodies=[tag], tag=tag)
    assert sorted(str(each["body"]) for each in java_client.expect(name, 2)) == ["blue", "red"]
