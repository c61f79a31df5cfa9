"""mqadmin 4.9.8 and 5.3.3 print the same about shmq as about a stock broker in the same state."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.deadline import eventually
from tests.interop.admin.mqadmin_commands import (
    DIFFERENT,
    FIELDS,
    GROUP,
    PENDING,
    PRODUCER,
    SAME,
    SERVED_FOR_5,
    TOPIC,
    UNKNOWN_TO_4,
    WORDS_OF_5,
    comparable,
    names,
)
from tests.interop.pair import Pair
from tests.interop.peers.java import JavaClient
from tests.interop.peers.wire import Wire
from tests.interop.target import Target, fresh_stock, start_ours

UPDATE_CONSUMER_OFFSET = 15
GET_PRODUCER_CONNECTION_LIST = 204
COMMANDS = [*SAME, *FIELDS, *DIFFERENT]


class Prepared:
    """A broker with a topic, four messages, a producer and a consumer that has read them, and what mqadmin says."""

    def __init__(self, target: Target, client: JavaClient) -> None:
        self.version = client.version
        self._target = target
        self._client = client
        self._names = ["producer", "consumer"]
        self._said: dict[str, str] = {}
        pair = Pair("java", client, target, str)
        self.run(f"updateTopic -c DefaultCluster -t {TOPIC} -r 4 -w 4")
        self.run("updateTopic -c DefaultCluster -t MadeTopic -r 4 -w 4")
        eventually(lambda: pair.has_route(TOPIC), "the topic has a route")
        eventually(lambda: pair.has_route("RMQ_SYS_TRANS_HALF_TOPIC"), "a stock broker has looked for transactions")
        producer, consumer = self._names
        pair.do("producer", name=producer, group=PRODUCER)
        sent = [
            pair.do("send", name=producer, topic=TOPIC, shard=shard, bodies=[f"m{shard}"], key=f"k{shard}", tag="red")
            for shard in range(4)
        ]
        self._ids = {"oid": sent[0][0]["offsetMsgId"], "uid": sent[0][0]["msgId"]}
        pair.do("push", name=consumer, group=GROUP, topic=TOPIC)
        client.expect(consumer, 4)
        with Wire(target.broker_address) as wire:
            for queue in range(4):
                fields = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": str(queue), "commitOffset": "1"}
                wire.ask(UPDATE_CONSUMER_OFFSET, fields)
            connections = {"producerGroup": PRODUCER}
            # The producer's first heartbeat to this broker is sent by a timer of the client.
            eventually(
                lambda: _is_served(wire, GET_PRODUCER_CONNECTION_LIST, connections), "the producer", timeout=45.0
            )
        self.run(f"queryMsgByKey -t {TOPIC} -k k3")

    def run(self, command: str) -> str:
        """Return what a command prints; the address of the name server is added."""
        words = command.format(k=self._target.broker_name, b=self._target.broker_address, **getattr(self, "_ids", {}))
        name, *rest = words.split()
        rest += WORDS_OF_5.get(name, []) if self.version == "5" else []
        return str(self._client.do("mqadmin", words=[name, "-n", self._target.name_server, *rest]))

    def say(self, command: str) -> str:
        """Return what a command printed in its turn: all are run once, in the order of the list."""
        if not self._said:
            self._said = {each: self.run(each) for each in COMMANDS}
        return self._said[command]

    def comparable(self, command: str) -> list[str]:
        """Return the output of a command as `comparable` does."""
        target = self._target
        marks = {target.broker_address: "<broker address>", target.name_server: "<name server>"}
        return comparable(self.say(command), {**marks, target.broker_name: "<broker>"})


def _is_served(wire: Wire, code: int, fields: dict[str, str]) -> bool:
    reply = wire.ask(code, fields)
    return reply is not None and reply.code == 0


@pytest.fixture(scope="module", params=["4", "5"], ids=["mqadmin-4.9.8", "mqadmin-5.3.3"])
def both(request: pytest.FixtureRequest) -> Iterator[list[Prepared]]:
    """The stock broker and ours in the same state, asked by one version of mqadmin."""

    def prepared(target: Target) -> Prepared:
        with JavaClient(request.param) as client:  # a fresh one: some commands work only once in a process
            made = Prepared(target, client)
            made.say(COMMANDS[0])
            return made

    # Side by side, because the client of 5.3.3 sleeps three seconds in every other command.
    with fresh_stock("4") as stock, start_ours() as ours, ThreadPoolExecutor(2) as threads:
        yield list(threads.map(prepared, (stock, ours)))


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(each, marks=[pytest.mark.xfail(reason=PENDING[each], strict=True)] if each in PENDING else [])
        for each in SAME
    ],
)
def test_a_command_prints_the_same(both: list[Prepared], command: str) -> None:
    theirs, ours = (each.comparable(command) for each in both)
    if both[0].version == "5" and command in SERVED_FOR_5:
        assert any("not supported" in line for line in theirs) and not any("Exception" in line for line in ours)
        return
    if both[0].version == "5":
        theirs, ours = ([line for line in lines if not UNKNOWN_TO_4.search(line)] for lines in (theirs, ours))
    assert ours == theirs


@pytest.mark.parametrize("command", FIELDS)
def test_a_command_prints_every_field_that_clients_read(both: list[Prepared], command: str) -> None:
    theirs, ours = (names(each.say(command)) for each in both)
    assert ours
    missing = {name for name in theirs - ours if not re.fullmatch(FIELDS[command], name)}
    assert not missing


@pytest.mark.parametrize("command", DIFFERENT)
def test_what_is_different_on_purpose_still_is(both: list[Prepared], command: str) -> None:
    theirs, ours = (each.comparable(command) for each in both)
    assert ours != theirs, f"no longer different, so take it off the list: {DIFFERENT[command]}"
