"""`mqadmin` of both release lines administers our broker while a Java client consumes from it."""

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from shmq.testing import Broker
from tests.deadline import eventually
from tests.interop.peers.java import LineClient
from tests.interop.target import Target

Named = Callable[[str], str]
Run = Callable[..., str]
MESSAGES = 8


class Scene:
    """A topic with messages, and a group with one Java member that has read them."""

    def __init__(self, client: LineClient, version: str, target: Target, named: Named) -> None:
        self.client = client
        self.version = version
        self.target = target
        self.topic, self.group, self.producer = named("Admin"), named("AdminGroup"), named("AdminProducer")
        self.run("updateTopic", "-b", target.broker_address, "-t", self.topic, "-r", "4", "-w", "4")
        client.do("producer", name=self.producer, group=self.producer, nameServer=target.name_server)
        eventually(lambda: self.topic in self.run("topicList"), "the topic has a route", 60.0)
        bodies = [f"m{number}" for number in range(MESSAGES)]
        self.sent = client.do("send", name=self.producer, topic=self.topic, bodies=bodies, tag="red", key="k1")
        client.do("push", name=self.group, group=self.group, topic=self.topic, nameServer=target.name_server)
        client.expect(self.group, MESSAGES)
        self.client_id = next(
            line.split()[0] for line in self.rows("consumerConnection", "-g", self.group) if "@" in line
        )

    def run(self, *words: str) -> str:
        """What a command prints."""
        return str(self.client.do("mqadmin", words=[*words, "-n", self.target.name_server]))

    def rows(self, *words: str) -> list[str]:
        """The lines a command prints, without headings and blank ones."""
        return [line for line in self.run(*words).splitlines() if line.strip() and not line.startswith("#")]

    def close(self) -> None:
        self.client.do("push-close", name=self.group)
        self.client.do("producer-close", name=self.producer)


_scenes: dict[str, Scene] = {}


@pytest.fixture(params=["4", "5"])
def java_version(request: pytest.FixtureRequest) -> str:
    """The release line of mqadmin and of the clients."""
    return str(request.param)


@pytest.fixture
def scene(client_of: Callable[[str], LineClient], java_version: str, ours: Target, named: Named) -> Scene:
    """One scene for each release line; it stays for all tests of this module."""
    if java_version not in _scenes:
        _scenes[java_version] = Scene(client_of(f"java-{java_version}"), java_version, ours, named)
    return _scenes[java_version]


@pytest.fixture(scope="module", autouse=True)
def _close_scenes() -> Iterator[None]:
    yield
    for scene in _scenes.values():
        if scene.client.is_alive:
            scene.close()
    _scenes.clear()


def columns(row: str) -> list[str]:
    return re.split(r"\s{2,}", row.strip())


def test_the_cluster_is_listed_with_its_broker(scene: Scene) -> None:
    (row,) = [row for row in scene.rows("clusterList") if scene.target.broker_name in row]
    assert scene.target.broker_address in row and "DefaultCluster" in row
    assert re.search(r"V[45]_\d_\d", row)
    (totals,) = [row for row in scene.rows("clusterList", "-m") if scene.target.broker_name in row]
    assert int(columns(totals)[-2]) >= 0


def test_topics_and_their_queues_are_listed(scene: Scene) -> None:
    assert scene.topic in scene.rows("topicList")
    assert scene.rows("topicClusterList", "-t", scene.topic) == ["DefaultCluster"]
    rows = [columns(row) for row in scene.rows("topicStatus", "-t", scene.topic) if scene.target.broker_name in row]
    assert [row[:3] for row in rows] == [[scene.target.broker_name, str(number), "0"] for number in range(4)]
    assert sum(int(row[3]) for row in rows) == MESSAGES
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}", row[4]) for row in rows)
    route = scene.run("topicRoute", "-t", scene.topic)
    assert scene.target.broker_address in route and '"writeQueueNums":4' in route.replace(" ", "")


def test_a_topic_is_changed_and_deleted(scene: Scene, named: Named) -> None:
    name, address = named("Gone"), scene.target.broker_address
    made = scene.run("updateTopic", "-b", address, "-t", name, "-r", "2", "-w", "3", "-p", "4")
    assert f"create topic to {address} success." in made and "perm=R--" in made
    eventually(lambda: name in scene.rows("topicList"), "the topic has a route", 60.0)
    changed = scene.run("updateTopicPerm", "-b", address, "-t", name, "-p", "6")
    assert "update topic perm from 4 to 6" in changed and "readQueueNums=2, writeQueueNums=3" in changed
    deleted = scene.run("deleteTopic", "-c", "DefaultCluster", "-t", name)
    assert f"delete topic [{name}] from cluster [DefaultCluster] success." in deleted
    assert f"delete topic [{name}] from NameServer success." in deleted


def test_a_group_keeps_its_settings(scene: Scene, named: Named) -> None:
    name, address = named("Told"), scene.target.broker_address
    made = scene.run("updateSubGroup", "-b", address, "-g", name, "-r", "5", "-s", "false", "-q", "2")
    assert f"create subscription group to {address} success." in made
    shown = dict(row.split("=", 1) for row in scene.rows("getConsumerConfig", "-g", name) if "=  " in row)
    values = {key.strip(): value.strip() for key, value in shown.items()}
    assert values["groupName"] == name
    assert (values["retryMaxTimes"], values["retryQueueNums"], values["consumeEnable"]) == ("5", "2", "false")
    deleted = scene.run("deleteSubGroup", "-b", address, "-g", name)
    assert f"delete subscription group [{name}] from broker [{address}] success." in deleted
    assert "retryMaxTimes" not in scene.run("getConsumerConfig", "-g", name)


def test_the_state_of_the_broker_is_a_table_of_figures(scene: Scene) -> None:
    rows = scene.rows("brokerStatus", "-b", scene.target.broker_address)
    table = {key.strip(): value.strip() for key, value in (row.split(":", 1) for row in rows if ":" in row)}
    assert int(table["commitLogMaxOffset"]) > 0 and int(table["putMessageTimesTotal"]) >= MESSAGES
    assert float(table["putTps"].split()[0]) >= 0.0 and 0.0 <= float(table["commitLogDiskRatio"]) <= 1.0
    assert table["runtime"].startswith("[ 0 days, 0 hours,")


def test_connections_are_listed(scene: Scene) -> None:
    consumers = scene.run("consumerConnection", "-g", scene.group)
    assert "ConsumeType: CONSUME_PASSIVELY" in consumers and "MessageModel: CLUSTERING" in consumers
    assert "ConsumeFromWhere: CONSUME_FROM_FIRST_OFFSET" in consumers
    assert re.search(rf"{scene.topic}\s+\*", consumers) and re.search(r"127\.0\.0\.1:\d+\s+JAVA\s+V", consumers)
    producers = scene.run("producerConnection", "-g", scene.producer, "-t", scene.topic)
    assert re.search(r"127\.0\.0\.1:\d+\s+JAVA\s+V", producers)
    producers = scene.run("producer", "-b", scene.target.broker_address)
    assert f"producer group ({scene.producer}) instance" in producers


def progress(scene: Scene, group: str) -> dict[int, tuple[int, int]]:
    """Queue id to (end, consumed) of the scene's topic."""
    rows = [columns(row) for row in scene.rows("consumerProgress", "-g", group)]
    return {int(row[2]): (int(row[3]), int(row[4])) for row in rows if row[0] == scene.topic}


def test_progress_is_shown_reset_and_cloned(scene: Scene, named: Named) -> None:
    def committed() -> bool:
        found = progress(scene, scene.group).values()
        return sum(end for end, _ in found) == MESSAGES and all(end == at for end, at in found)

    eventually(committed, "the group has committed", 60.0)
    assert scene.group in scene.run("consumerProgress")
    assert f"{scene.topic} " in scene.run("brokerConsumeStats", "-b", scene.target.broker_address)
    copy = named("Copy")
    cloned = scene.run("cloneGroupOffset", "-s", scene.group, "-d", copy, "-t", scene.topic, "-o", "true")
    assert "clone group offset success" in cloned
    scene.run("updateSubGroup", "-b", scene.target.broker_address, "-g", copy)
    scene.run("resetOffsetByTime", "-g", copy, "-t", scene.topic, "-s", "0")
    listed = scene.run("topicList", "-c")
    assert re.search(rf"{scene.topic}\s+{copy}\s", listed) and re.search(rf"{scene.topic}\s+{scene.group}\s", listed)


def test_a_running_member_answers_through_the_broker(scene: Scene) -> None:
    status = scene.run("consumerStatus", "-g", scene.group, "-i", scene.client_id)
    assert "#Consumer Properties#" in status and "#Consumer Subscription#" in status
    statuses = scene.run("consumerStatus", "-g", scene.group)
    assert "Same subscription in the same group of consumer" in statuses and "Rebalance OK" in statuses


def test_a_message_is_consumed_again_by_the_member_that_is_named(scene: Scene) -> None:
    before = len(scene.client.received(scene.group))
    first = scene.sent[0]["offsetMsgId"]
    words = ["-t", scene.topic] if scene.version == "5" else []
    said = scene.run("queryMsgById", "-i", first, "-g", scene.group, "-d", scene.client_id, *words)
    assert "CR_SUCCESS" in said
    assert len(scene.client.expect(scene.group, before + 1)) == before + 1


def test_a_reset_brings_the_messages_back_to_a_running_member(scene: Scene) -> None:
    before = len(scene.client.received(scene.group))
    scene.run("resetOffsetByTime", "-g", scene.group, "-t", scene.topic, "-s", "0")
    scene.client.expect(scene.group, before + MESSAGES, timeout=90.0)


def test_statistics_know_what_went_through(scene: Scene, named: Named) -> None:
    fresh = Scene(
        scene.client, scene.version, scene.target, named
    )  # statsAll adds up the last minute, until ten are over

    def counted() -> Any:
        rows = [columns(row) for row in fresh.rows("statsAll", "-t", fresh.topic) if fresh.topic in row]
        return [row for row in rows if fresh.group in row and int(row[-2]) >= MESSAGES]

    try:
        assert eventually(counted, "the statistics show the messages", 60.0)
    finally:
        fresh.close()


def test_the_figures_have_what_java_and_local_members_of_new_groups_read(
    client_of: Callable[[str], LineClient], java_version: str, named: Named
) -> None:
    client, remote = client_of(f"java-{java_version}"), named("FiguresJava")
    with Broker(tcp=True) as broker, broker.connect() as mq, mq.subscribe("Figures", group="FiguresLocal") as local:
        for number in range(MESSAGES):
            mq.send("Figures", b"m%d" % number)
        read = 0
        while read < MESSAGES:
            messages = local.receive(wait=60)
            assert messages, f"only {read} messages came"
            for message in messages:
                message.ack()
            read += len(messages)
        client.do("push", name=remote, group=remote, topic="Figures", nameServer=broker.name_server)
        client.expect(remote, MESSAGES)

        def rows(*words: str) -> list[list[str]]:
            said = str(client.do("mqadmin", words=[*words, "-n", broker.name_server]))
            return [columns(line) for line in said.splitlines() if line.strip() and not line.startswith("#")]

        def totals() -> bool:
            (row,) = [row for row in rows("clusterList", "-m") if broker.name in row]
            return int(row[-2]) >= MESSAGES and int(row[-1]) >= 2 * MESSAGES

        def counted() -> bool:
            out = {row[1]: int(row[-1]) for row in rows("statsAll", "-t", "Figures") if len(row) > 5}
            return all(out.get(group, 0) >= MESSAGES for group in ("FiguresLocal", remote))

        eventually(totals, "the totals have them", 60.0)
        eventually(counted, "the statistics of the groups have them", 60.0)
        client.do("push-close", name=remote)


def test_units_of_a_queue_and_settings_are_shown(scene: Scene) -> None:
    queue = scene.run(
        "queryCq",
        "-t",
        scene.topic,
        "-q",
        "0",
        "-i",
        "0",
        "-c",
        "2",
        "-b",
        scene.target.broker_address,
        "-g",
        scene.group,
    )
    assert "Subscription data" in queue and re.search(r"physicOffset=\d+", queue) and "maxQueueIndex" not in queue
    settings = scene.run("getBrokerConfig", "-b", scene.target.broker_address)
    assert re.search(rf"brokerName\s+=\s+{scene.target.broker_name}", settings)


def test_cleaning_up_succeeds(scene: Scene) -> None:
    for command in ("cleanExpiredCQ", "cleanUnusedTopic", "deleteExpiredCommitLog"):
        assert "success" in scene.run(command, "-b", scene.target.broker_address)


def test_writing_to_a_broker_is_stopped_and_allowed_again(scene: Scene) -> None:
    for command in ("wipeWritePerm", "addWritePerm"):
        said = scene.run(command, "-b", scene.target.broker_name)
        assert f"broker[{scene.target.broker_name}]" in said and "OK" in said


def test_messages_are_sent_and_read_by_hand(scene: Scene, named: Named) -> None:
    name = named("ByHand")
    scene.run("updateTopic", "-b", scene.target.broker_address, "-t", name, "-r", "1", "-w", "1")
    eventually(lambda: name in scene.rows("topicList"), "the topic has a route", 60.0)
    sent = scene.run("sendMessage", "-t", name, "-p", "hello by hand", "-c", "red")
    assert "SEND_OK" in sent
    read = scene.run("consumeMessage", "-t", name, "-g", named("Reader"), "-c", "1")
    assert "hello by hand" in read
